"""`kapelle continue`: a task that goes on, or a new one in a copy of its conversation."""

from typing import Annotated, Any

from kapelle.cli.command import Budget, FollowToEnd, Json, MaxTurns, argument, flag
from kapelle.cli.follow import show_new
from kapelle.cli.ids import NewestTaskId, task_path, work_id
from kapelle.cli.outcome import Task
from kapelle.cli.output import say
from kapelle.cli.prompt import read_prompt
from kapelle.cli.request import begin
from kapelle.cli.tasks import new_limits
from kapelle.client.http import Connection
from kapelle.domain.ids import is_part

_MESSAGE = 'Write `kapelle continue ID "what next"`, or pipe it in with `-`.'
# What a forked task takes over. Its checks, variables and MCP servers it does not: the daemon
# shows their names only.
_KEPT = (
    "directory", "project", "tags", "priority", "timeout_s", "max_turns", "budget_usd", "retry",
    "fallback_agents",
)  # fmt: skip


def continue_(
    task_id: NewestTaskId = None,
    message: Annotated[str | None, argument("MESSAGE", "What next; - reads it from stdin.")] = None,
    fork: Annotated[bool, flag("As a new task, in a copy of the conversation.", "--fork")] = False,
    budget: Budget = None,
    max_turns: MaxTurns = None,
    follow: FollowToEnd = False,
    as_json: Json = False,
) -> None:
    """Follow up on a task that has ended or waits."""
    if message is None and task_id is not None and not is_part(task_id):
        task_id, message = None, task_id  # what is next for the newest
    said, limits = read_prompt(message, None, _MESSAGE, "message"), new_limits(budget, max_turns)
    client = Connection()
    task_id = work_id(client, task_id, "tasks")
    if not fork:
        task = client.post(task_path(task_id, "resume"), {"message": said, **limits})
        show_new(client, task, follow, as_json, len(task["attempts"]))
        return
    earlier = client.get(task_path(task_id))
    task = begin(client, "/tasks", forked(earlier, said, limits))
    if task["status"] == "blocked":
        say(f"It begins when {earlier['id']} has ended, which is {earlier['status']}.")
    show_new(client, task, follow, as_json)


def forked(earlier: Task, message: str, limits: dict[str, float | None]) -> dict[str, Any]:
    """The new task that goes on in a copy of an earlier one's conversation."""
    last = earlier["attempts"][-1] if earlier["attempts"] else earlier
    same_agent = last["agent"] == earlier["agent"]
    spec = {
        "prompt": message,
        # The conversation is one of the agent that had it last.
        "agent": last["agent"],
        "model": earlier["model"] if same_agent else None,
        "continue_from": earlier["id"],
        "fork_session": True,
        "workspace": earlier["workspace"]["kind"],
        **{name: earlier[name] for name in _KEPT},
        **{name: limit for name, limit in limits.items() if limit is not None},
    }
    return {key: value for key, value in spec.items() if value not in (None, [])}
