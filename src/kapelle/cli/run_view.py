"""The view of one run: its state, its result, its tasks, what to type next."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kapelle.cli.events import read_run_events
from kapelle.cli.figures import (
    format_elapsed,
    format_seconds,
    format_usd,
    format_usd_limit,
)
from kapelle.cli.ids import path_of
from kapelle.cli.layout import (
    STATUS_STYLE,
    command_lines,
    field_line,
    field_lines,
    paint,
    terminal_width,
)
from kapelle.cli.passages import STATUS_MARKS
from kapelle.cli.progress import describe_progress
from kapelle.cli.questions import asked_lines
from kapelle.cli.result_view import ResultItem, is_item_list, item_table, result_lines
from kapelle.cli.task_view import describe_task
from kapelle.cli.text import cut_title, one_line, shorten_ids_on_terminal
from kapelle.cli.view import (
    format_agent,
    repository_name,
    work_heading_lines,
    workspace_lines,
)
from kapelle.client.http import DaemonConnection
from kapelle.domain.report import next_commands
from kapelle.domain.text import format_count

if TYPE_CHECKING:
    from kapelle.client.records import RunJson, StepJson, TaskJson, WorkJson

_MOST_STEPS = 12
_WAITING_STATUSES = frozenset({"queued", "blocked", "waiting"})
_ROLES = ("planner", "worker", "reviewer", "judge")
# The width of what stands before and behind the label of a step.
_BESIDE_LABEL = 15


def describe(client: DaemonConnection, item: "WorkJson") -> Iterator[str]:
    """Yield the view of a task or a run, with what else the daemon knows about it."""
    if "pattern" not in item:
        messages = client.get(path_of(item["id"], "messages"))
        yield from describe_task(item, messages)
        return
    steps: list[StepJson] = client.get(path_of(item["id"], "steps"))
    iterations: list[ResultItem] = []
    if item["result"] is None and "iteration" in item["progress"]:
        for event in read_run_events(client, item["id"]):
            if event["kind"] == "run.progress":
                iterations.append(event["data"])
    open_tasks: dict[str, TaskJson] = {}
    for step in steps:
        if step["kind"] == "task" and step["subject"] and not step["ended_at"]:
            open_tasks[step["subject"]] = client.get(path_of(step["subject"]))
    titles: dict[str, str] = {}
    if any(step["kind"] == "run" for step in steps):
        query = {"parent_id": item["id"], "nested": True, "archived": True}
        for run in client.pages("/runs", query):
            titles[run["id"]] = run["title"]
    yield from describe_run(item, steps, iterations, open_tasks, titles)


def describe_run(
    run: "RunJson",
    steps: Sequence["StepJson"],
    iterations: Sequence[ResultItem] = (),
    open_tasks: "Mapping[str, TaskJson] | None" = None,
    titles: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the lines of the view.

    iterations are the reports of the run about its progress, in order. open_tasks are the tasks
    that the run waits for, titles those of its nested runs; both by id.
    """
    reason = run["reason"]
    if run["questions"]:
        reason = None  # the questions follow, each with its token
    yield from work_heading_lines(run, reason)
    yield from _spec_lines(run)
    if run["progress"] and not run["ended_at"]:
        limit = run["spec"].get("max_iterations")
        yield field_line("progress", describe_progress(run["progress"], limit))
        plan = run["progress"].get("plan")
        if is_item_list(plan):
            yield from item_table("plan", plan, None)
    yield from asked_lines(run)
    yield from result_lines(run, iterations)
    step_lines = list(_steps_lines(run, steps, open_tasks or {}, titles or {}))
    if step_lines:
        yield field_line("tasks", "")
        yield from step_lines
    yield from workspace_lines(run)
    yield from command_lines(next_commands(run))


def _spec_lines(run: "RunJson") -> Iterator[str]:
    """Yield the pattern, the agents, what was spent, and what the run belongs to."""
    time = f"created {format_elapsed(run['created_at'], None)} ago"
    if run["started_at"]:
        time += f", under way {format_seconds(run['spent']['seconds'])}"
    return field_lines(
        {
            "pattern": one_line(run["pattern"]),
            "agents": _format_agents(run),
            "time": time,
            "spent": _format_spent(run),
            "repository": repository_name(run),
            "project": one_line(run["project"] or ""),
            "parent": run.get("parent_id"),
            "parent_task": run.get("parent_task_id"),
            "schedule": run.get("schedule_id"),
        }
    )


def _format_agents(run: "RunJson") -> str:
    """Return the agent of each role, and the agents that replace them."""
    spec = run["spec"]
    agents = []
    if spec.get("agent") or spec.get("model"):
        agents.append(format_agent(spec.get("agent"), spec.get("model")))
    for role in _ROLES:
        model = spec.get(f"{role}_model")
        if spec.get(role) or model:
            agents.append(f"{role} {format_agent(spec.get(role), model)}")
    text = ", ".join(agents)
    if spec.get("fallback_agents"):
        text += one_line(f", then {', '.join(spec['fallback_agents'])}")
    return text


def _format_spent(run: "RunJson") -> str:
    """Return the agent calls, the cost and the time, each with its limit."""
    spent = run["spent"]
    spec = run["spec"]
    call_limit = spec.get("max_agent_calls")
    budget = spec.get("budget_usd")
    time_limit = spec.get("max_seconds")
    parts = []
    if call_limit:
        parts.append(f"{spent['agent_calls']:,} of {format_count(call_limit, 'agent call')}")
    else:
        parts.append(format_count(spent["agent_calls"], "agent call"))
    cost = None
    if spent["cost_usd"] is not None:
        cost = format_usd(spent["cost_usd"])
    if budget:
        parts.append(f"{cost or 'cost unknown'} of {format_usd_limit(budget)}")
    elif cost:
        parts.append(cost)
    if time_limit:
        parts.append(f"{format_seconds(spent['seconds'])} of {format_seconds(time_limit)}")
    return ", ".join(parts)


def _steps_lines(
    run: "RunJson",
    steps: Sequence["StepJson"],
    open_tasks: "Mapping[str, TaskJson]",
    titles: Mapping[str, str],
) -> Iterator[str]:
    """Yield the last tasks and runs that the run started, and the steps of its spec to come."""
    children = [step for step in steps if step["kind"] in {"task", "run"} and step["subject"]]
    children.sort(key=lambda step: step["position"])
    if len(children) > _MOST_STEPS:
        earlier_count = len(children) - _MOST_STEPS
        earlier = f"    … {earlier_count} earlier ones: kapelle runs steps {run['id']}"
        yield paint(shorten_ids_on_terminal(earlier), "dim")
    for step in children[-_MOST_STEPS:]:
        work_id = step["subject"] or ""
        yield from _step_lines(step, titles.get(work_id, step["label"]), open_tasks.get(work_id))
    if run["ended_at"]:
        return
    for step_spec in (run["spec"].get("steps") or [])[len(children) :]:
        if isinstance(step_spec, str):
            label = step_spec
        else:
            label = step_spec.get("name") or step_spec.get("prompt") or ""
        yield paint(f"    · {one_line(label, 80)}", "dim")


def _step_lines(step: "StepJson", label: str, task: "TaskJson | None") -> Iterator[str]:
    """Yield a task or a run that was started, with its reason and what to type if it waits."""
    result = step["result"] or task or {}
    status = result.get("status")
    if not status:
        status = "running" if step["ended_at"] is None else "failed"
    mark = paint(STATUS_MARKS.get(status, "▸"), STATUS_STYLE.get(status))
    time = format_elapsed(step["started_at"], step["ended_at"])
    if status in _WAITING_STATUSES:
        time += f", {status}"
    if result.get("verified") is False:
        time += ", not verified"
    title = cut_title(label, max((terminal_width() or 120) - _BESIDE_LABEL, 30))
    yield f"    {mark} {title} {paint(time, 'dim')}".rstrip()
    yield paint(shorten_ids_on_terminal(f"      {step['subject']}"), "dim")
    reason = step["error"]
    if not reason and status != "completed":
        reason = result.get("reason")
    if reason:
        yield f"      {shorten_ids_on_terminal(one_line(reason, 200))}"
    if task and task["status"] == "waiting":
        command, _ = next_commands(task)[0]
        yield f"      {shorten_ids_on_terminal(command)}"
