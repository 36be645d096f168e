"""One task for people: what was claimed and what was verified, shown apart."""

from collections.abc import Iterator

from kapelle.cli.amounts import cost, limit
from kapelle.cli.attempt_view import details, headline
from kapelle.cli.fields import command_lines, field, workspace_fields
from kapelle.cli.outcome import Task, next_commands
from kapelle.cli.style import STATUS_STYLE, paint
from kapelle.cli.text import one_line, tail
from kapelle.cli.times import between, short
from kapelle.cli.waiting import what_it_waits_for
from kapelle.domain.text import counted

CHECK_TAIL = 12
RESULT_TAIL = 20


def describe(task: Task) -> Iterator[str]:
    """The lines of the human view, ready for the terminal."""
    yield paint(one_line(task["title"]), "bold")
    yield field("id", task["id"])
    yield field("status", _status(task))
    yield from _circumstances(task)
    yield from _claim_and_verdict(task)
    yield from _attempts(task)
    yield from workspace_fields(task)
    if task["result"]:
        yield field("result", "")
        yield from (f"    {line}" for line in tail(task["result"], RESULT_TAIL))
    yield from command_lines(next_commands(task))


def _status(task: Task) -> str:
    status = paint(task["status"], STATUS_STYLE.get(task["status"]))
    status += ", archived" if task.get("archived_at") else ""
    reason = what_it_waits_for(task) if task["status"] == "waiting" else task["reason"]
    return f"{status}: {one_line(reason)}" if reason else status


def _circumstances(task: Task) -> Iterator[str]:
    agent = task["agent"] + (f" with {task['model']}" if task["model"] else "")
    if task["fallback_agents"]:
        agent += f", then {', '.join(task['fallback_agents'])}"
    yield field("agent", one_line(agent))
    if limits := _limits(task):
        yield field("limits", ", ".join(limits))
    if task["mcp"]:
        yield field("mcp", one_line(", ".join(task["mcp"])))
    taken = between(task["started_at"], task["ended_at"])
    yield field(
        "time",
        f"created {between(task['created_at'], None)} ago" + (f", ran {taken}" if taken else ""),
    )
    yield field("priority", task["priority"])
    if task["project"] or task["tags"]:
        yield field("labels", one_line(", ".join(filter(None, [task["project"], *task["tags"]]))))
    if task["depends_on"]:
        yield field("after", " ".join(task["depends_on"]))
    if task.get("run_id"):
        yield field("run", task["run_id"])


def _limits(task: Task) -> list[str]:
    turns, budget, seconds = task["max_turns"], task["budget_usd"], task["timeout_s"]
    found = [f"{limit(budget)} in all"] if budget else []
    found += [f"{counted(turns, 'turn')} an attempt"] if turns else []
    return found + ([f"{short(seconds)} an attempt"] if seconds else [])


def _claim_and_verdict(task: Task) -> Iterator[str]:
    attempts, checks = task["attempts"], task["checks"]
    if attempts:
        claimed = attempts[-1]["claimed"] or "nothing"
        yield field("claimed", f"{claimed} {paint('(what the agent says of itself)', 'dim')}")
    if checks:
        passed = sum(check["passed"] for check in checks)
        yield field("verified", f"{passed} of {len(checks)} checks passed")
    elif task["status"] == "completed":
        yield field("verified", "nothing: the task has no checks")
    for check in checks:
        mark = paint("✓", "green") if check["passed"] else paint("✗", "red")
        took = f" ({check['duration_s']:.1f}s)" if check.get("duration_s") is not None else ""
        yield f"    {mark} {one_line(check['name'], 100)}{took}"
        if not check["passed"] and check["output"].strip():
            yield from (f"        {line}" for line in tail(check["output"], CHECK_TAIL))


def _attempts(task: Task) -> Iterator[str]:
    for attempt in task["attempts"]:
        yield field(f"attempt {attempt['number']}", headline(attempt))
        yield from (f"    {line}" for line in details(attempt, task["reason"]))
    used = [attempt["usage"] for attempt in task["attempts"] if attempt["usage"]]
    if len(used) > 1:
        known = [usage["cost_usd"] for usage in used if usage["cost_usd"] is not None]
        total = cost(sum(known) if known else None, len(used) - len(known))
        yield field("cost", f"{total} in all" if known else total)
