"""One run for people: where it stands, what it did, what it used and what to type next."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kapelle.cli.amounts import dollars, limit
from kapelle.cli.fields import command_lines, field, workspace_fields
from kapelle.cli.outcome import Task
from kapelle.cli.runs.outcome import Run, next_commands
from kapelle.cli.runs.progress import state_words
from kapelle.cli.runs.results import what_came_of_it
from kapelle.cli.runs.tasks import Step, task_lines
from kapelle.cli.style import STATUS_STYLE, paint
from kapelle.cli.text import one_line
from kapelle.cli.times import between, short
from kapelle.domain.text import counted

_ROLES = ("planner", "worker", "reviewer", "judge")


def describe(
    run: Run,
    steps: Sequence[Step],
    told: Sequence[dict[str, Any]] = (),
    open_tasks: Mapping[str, Task] = MappingProxyType({}),
) -> Iterator[str]:
    """The lines of the human view.

    told is what the run said of its progress, in order; open_tasks are those it waits for, by id.
    """
    yield paint(one_line(run["title"]), "bold")
    yield field("id", run["id"])
    yield field("status", _status(run))
    yield from _circumstances(run)
    if run["progress"] and not run["ended_at"]:
        most = run["spec"].get("max_iterations")
        yield field("progress", state_words(run["progress"], most))
    yield from _questions(run)
    yield from what_came_of_it(run, told)
    tasks = list(task_lines(run, steps, open_tasks))
    if tasks:
        yield field("tasks", "")
        yield from tasks
    yield from workspace_fields(run)
    yield from command_lines(next_commands(run))


def _status(run: Run) -> str:
    status = paint(run["status"], STATUS_STYLE.get(run["status"]))
    status += ", archived" if run.get("archived_at") else ""
    # The questions stand below, each with its token.
    reason = None if run["questions"] else run["reason"]
    return f"{status}: {one_line(reason)}" if reason else status


def _circumstances(run: Run) -> Iterator[str]:
    yield field("pattern", one_line(run["pattern"]))
    if who := _who(run["spec"]):
        yield field("agents", one_line(who))
    taken = f", under way {short(run['spent']['seconds'])}" if run["started_at"] else ""
    yield field("time", f"created {between(run['created_at'], None)} ago{taken}")
    yield field("spent", _spent(run))
    if run["project"]:
        yield field("project", one_line(run["project"]))
    for name in ("parent_id", "schedule_id"):
        if run[name]:
            yield field(name.removesuffix("_id"), run[name])


def _who(spec: dict[str, Any]) -> str:
    named = [_agent("", spec.get("agent"), spec.get("model"))]
    named += [_agent(f"{role} ", spec.get(role), spec.get(f"{role}_model")) for role in _ROLES]
    fallback = spec.get("fallback_agents")
    return ", ".join(filter(None, named)) + (f", then {', '.join(fallback)}" if fallback else "")


def _agent(role: str, agent: str | None, model: str | None) -> str:
    if not agent and not model:
        return ""
    return f"{role}{agent or 'the default'}" + (f" with {model}" if model else "")


def _spent(run: Run) -> str:
    """What was used, against what may be."""
    spent, spec = run["spent"], run["spec"]
    calls = counted(spent["agent_calls"], "agent call")
    if spec.get("max_agent_calls"):
        calls = f"{spent['agent_calls']:,} of {counted(spec['max_agent_calls'], 'agent call')}"
    facts = [calls]
    budget, cost = spec.get("budget_usd"), spent["cost_usd"]
    if cost is not None or budget:
        known = "cost unknown" if cost is None else dollars(cost)
        facts.append(f"{known} of {limit(budget)}" if budget else known)
    if spec.get("max_seconds"):
        facts.append(f"{short(spent['seconds'])} of {short(spec['max_seconds'])}")
    return ", ".join(facts)


def _questions(run: Run) -> Iterator[str]:
    if not run["questions"]:
        return
    yield field("asks", "")
    for question in run["questions"]:
        default = f" [{one_line(question['default'])}]" if question["default"] else ""
        yield paint(f"    ? {one_line(question['text'])}{default}", "yellow")
        yield f'      kapelle runs answer {question["token"]} "…"'
