"""Commands that let tasks and runs go on: retry, resume, requeue, continue."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kapelle.cli import help_page
from kapelle.cli.field_errors import name_options
from kapelle.cli.follow import show_start
from kapelle.cli.ids import (
    is_run,
    newest_task_argument,
    newest_task_id,
    newest_work_argument,
    path_of,
    task_argument,
    task_path,
    work_id,
)
from kapelle.cli.output import say
from kapelle.cli.parser import argument, command, flag, follow_to_end, json_flag, option
from kapelle.cli.schema import schemas
from kapelle.cli.spec_options import options_of
from kapelle.cli.types import Number
from kapelle.cli.values import optional, read_prompt, refuse, usd
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.ids import is_id_part

if TYPE_CHECKING:
    from kapelle.client.records import TaskJson


budget_option = option(
    "--budget",
    metavar="USD",
    help="Maximum cost in USD of all attempts together.",
    group=help_page.LIMITS,
)
max_turns_option = option(
    "--max-turns",
    type=Number(1, 1_000_000),
    metavar="NUMBER",
    help="Maximum number of turns per attempt.",
    group=help_page.LIMITS,
)


@command("retry", "kapelle retry 4f2xq --budget 2 -f")
@newest_task_argument
@budget_option
@max_turns_option
@follow_to_end
@json_flag
def retry(
    task_id: str | None, budget: str | None, max_turns: int | None, follow: bool, as_json: bool
) -> int:
    """Run an ended task again from the beginning."""
    path = task_path(newest_task_id(DaemonConnection(), task_id), "retry")
    return _restart(path, _new_limits(budget, max_turns), follow, as_json)


@command("resume", "kapelle resume 4f2xq", 'kapelle resume 4f2xq "use the other API"')
@newest_work_argument
@argument("message", metavar="MESSAGE", required=False, help="Answer or advice for the agent.")
@flag("--merge", help="Merge the base into the branch first; the agent resolves conflicts.")
@budget_option
@max_turns_option
@option(
    "--cycles",
    type=Number(1, 50),
    metavar="NUMBER",
    help="New limit of cycles, for a workflow that reached its limit.",
    group=help_page.LIMITS,
)
@follow_to_end
@json_flag
def resume(
    task_id: str | None,
    message: str | None,
    merge: bool,
    budget: str | None,
    max_turns: int | None,
    cycles: int | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Resume a task where it stopped, or a paused or limited run."""
    task_id, message = _id_and_message(task_id, message, "resume")
    item_id = work_id(DaemonConnection(), task_id)
    limits = _new_limits(budget, max_turns)
    body: dict[str, Any] = {"message": message, "merge": merge, **limits}
    if is_run(item_id):
        alone = "A run that goes on takes neither a message nor new limits."
        refuse((any(body.values()), alone, f'`kapelle answer {item_id} "…"` answers a question.'))
        body = {} if cycles is None else {"cycles": cycles}
    else:
        refuse((cycles is not None, "A task has no cycles.", "Leave out --cycles."))
    return _restart(path_of(item_id, "resume"), body, follow, as_json)


def _id_and_message(
    task_id: str | None, message: str | None, verb: str
) -> tuple[str | None, str | None]:
    """Return the id and the message that were typed; a message alone is for the newest work.

    Raises NotFound for a word that could be an id and is none: nobody can tell a mistyped id from
    a message.
    """
    if message is not None or task_id is None:
        return task_id, message
    if not is_id_part(task_id):
        return None, task_id
    try:
        return work_id(DaemonConnection(), task_id), None
    except NotFound as error:
        error.hint = f"To send it as a message, type an id first: `kapelle {verb} ID {task_id}`."
        raise


def _new_limits(budget: str | None, max_turns: int | None) -> dict[str, float | None]:
    """Return the new limits of a task as the API takes them."""
    return {"budget_usd": optional(usd, budget, "--budget"), "max_turns": max_turns}


@command("requeue", "kapelle requeue 4f2xq")
@task_argument
@follow_to_end
@json_flag
def requeue(task_id: str, follow: bool, as_json: bool) -> int:
    """Put a task back into the queue; stop it first if it runs."""
    return _restart(task_path(task_id, "requeue"), {}, follow, as_json)


def _restart(path: str, body: dict[str, Any], is_followed: bool, as_json: bool) -> int:
    """Let a task or a run go on, and follow it from there if asked for."""
    client = DaemonConnection()
    with name_options(options_of(schemas()["task"])):
        item = client.post(path, body)
    return show_start(client, item, is_followed, as_json, after=len(item.get("attempts", ())))


_MESSAGE_HINT = 'Write `kapelle continue ID "what next"`, or pipe it in with `-`.'
# Fields that a forked task takes over. Checks, variables and MCP servers are not among them: the
# daemon shows only their names.
_FORKED_FIELDS = (
    "directory", "project", "tags", "priority", "timeout_s", "max_turns", "budget_usd", "retry",
    "fallback_agents",
)  # fmt: skip


@command(
    "continue",
    'kapelle continue "now add the tests" -f',
    "kapelle continue 4f2xq --comments",
)
@newest_work_argument
@argument(
    "message", metavar="MESSAGE", required=False, help="What to do next; - reads it from stdin."
)
@flag("--fork", help="A new task with a copy of the conversation.")
@flag("--comments", help="The new comments on the pull request as (part of) the message.")
@budget_option
@max_turns_option
@follow_to_end
@json_flag
def continue_(
    task_id: str | None,
    message: str | None,
    fork: bool,
    comments: bool,
    budget: str | None,
    max_turns: int | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Send a follow-up to an ended or waiting task, or to a run.

    A run is followed up by a new task, which starts from its branch and has its checks.
    """
    if fork and comments:
        raise InvalidInput("--comments goes on with the same task.", hint="Leave --fork out.")
    task_id, message = _id_and_message(task_id, message, "continue")
    text = ""
    if message is not None or not comments:
        text = read_prompt(message, None, _MESSAGE_HINT, "message")
    client = DaemonConnection()
    limits = _new_limits(budget, max_turns)
    item_id = work_id(client, task_id)
    body: dict[str, Any] = {"message": text or None}
    if comments:
        body["comments"] = True
    if is_run(item_id):
        alone = "A run is followed up by a new task on its branch, without --fork and limits."
        has_limits = any(limits.values())
        refuse((fork or has_limits, alone, f'Write `kapelle continue {item_id} "…"`.'))
        return _follow_up_run(client, item_id, body, follow, as_json)
    if fork:
        return _fork(client, item_id, text, limits, follow, as_json)
    return _restart(task_path(item_id, "resume"), {**body, **limits}, follow, as_json)


def _follow_up_run(
    client: DaemonConnection, run_id: str, body: dict[str, Any], follow: bool, as_json: bool
) -> int:
    """Create a task on the branch of a run."""
    task = client.create(path_of(run_id, "follow_up"), body)
    return show_start(client, task, follow, as_json)


def _fork(
    client: DaemonConnection,
    task_id: str,
    message: str,
    limits: dict[str, float | None],
    follow: bool,
    as_json: bool,
) -> int:
    """Create a task with a copy of an earlier one's conversation."""
    earlier = client.get(task_path(task_id))
    task = client.create("/tasks", forked_spec(earlier, message, limits))
    if task["status"] == "blocked":
        say(f"It starts when {earlier['id']} has ended, which is {earlier['status']}.")
    return show_start(client, task, follow, as_json)


def forked_spec(
    earlier: "TaskJson", message: str, limits: dict[str, float | None]
) -> dict[str, object]:
    """Return the specification of a task with a copy of an earlier one's conversation."""
    # The conversation belongs to the agent of the last attempt.
    agent = earlier["agent"]
    if earlier["attempts"]:
        agent = earlier["attempts"][-1]["agent"]
    fields: Mapping[str, object] = earlier
    spec: dict[str, object] = {
        "prompt": message,
        "agent": agent,
        "model": earlier["model"] if agent == earlier["agent"] else None,
        "continue_from": earlier["id"],
        "fork_session": True,
        "workspace": earlier["workspace"]["kind"],
    }
    spec |= {name: fields[name] for name in _FORKED_FIELDS}
    spec |= {name: limit for name, limit in limits.items() if limit is not None}
    return {key: value for key, value in spec.items() if value not in (None, [])}
