"""One task for people: what was claimed and what was verified, shown apart."""

import signal
from collections.abc import Iterator

from kapelle.cli.format import (
    STATUS_STYLE,
    agent_words,
    between,
    command_lines,
    cost,
    elapsed_s,
    field,
    heading,
    last_lines,
    mark,
    one_line,
    paint,
    short,
    size,
    usage_line,
    usd_limit,
    workspace_fields,
)
from kapelle.cli.outcome import Task, waiting_words
from kapelle.cli.questions import asked_lines
from kapelle.domain.report import next_commands
from kapelle.domain.text import counted

DIAGNOSIS_TAIL = 15
CHECK_TAIL = 12
RESULT_TAIL = 20


def describe(task: Task) -> Iterator[str]:
    """The lines of the human view, ready for the terminal."""
    waits = task["status"] == "waiting"
    asks = task.get("questions")
    reason = waiting_words(task) if waits else task["reason"]
    yield from heading(task, None if asks else reason)
    yield from asked_lines(task)
    yield from _circumstances(task)
    yield from _claim_and_verdict(task)
    yield from _attempts(task)
    yield from workspace_fields(task)
    if refused := task.get("merge_refused"):
        where = f"on what {refused['base']} would be, commit {refused['commit'][:12]}"
        text = f"refused: {one_line(refused['name'], 100)} fails {where}"
        yield field("merge", paint(text, "yellow"))
    if task["result"]:
        yield field("result", "")
        yield from (f"    {line}" for line in last_lines(task["result"], RESULT_TAIL))
    yield from command_lines(next_commands(task))


def _circumstances(task: Task) -> Iterator[str]:
    yield field("agent", agent_words(task["agent"], task["model"], task["fallback_agents"]))
    if limits := _limits(task):
        yield field("limits", ", ".join(limits))
    if task["mcp"]:
        yield field("mcp", one_line(", ".join(task["mcp"])))
    if task.get("tools"):
        yield field("tools", one_line(", ".join(task["tools"])))
    if task.get("read_only"):
        yield field("workspace", "it only reports: what it changed is thrown away")
    took = [elapsed_s(one["started_at"], one["ended_at"]) for one in task["attempts"]]
    ran = f", ran {short(sum(took))}" if took else ""
    yield field("time", f"created {between(task['created_at'], None)} ago{ran}")
    yield field("priority", task["priority"])
    if task["project"] or task["tags"]:
        yield field("labels", one_line(", ".join(filter(None, [task["project"], *task["tags"]]))))
    if task["depends_on"]:
        yield field("after", " ".join(task["depends_on"]))
    if task.get("run_id"):
        yield field("run", task["run_id"])
    if task.get("parent_task_id"):
        yield field("parent", task["parent_task_id"])
    if task.get("children"):
        yield field("children", " ".join(task["children"]))


def _limits(task: Task) -> list[str]:
    turns, budget, seconds = task["max_turns"], task["budget_usd"], task["timeout_s"]
    found = [f"{usd_limit(budget)} in all"] if budget else []
    found += [f"{counted(turns, 'turn')} an attempt"] if turns else []
    return found + ([f"{short(seconds)} an attempt"] if seconds else [])


def _claim_and_verdict(task: Task) -> Iterator[str]:
    attempts, checks = task["attempts"], task["checks"]
    if attempts:
        claimed = attempts[-1]["claimed"] or "nothing"
        yield field("claimed", f"{claimed} {paint('(what the agent says of itself)', 'dim')}")
    if checks:
        passed = sum(check["passed"] for check in checks)
        blind = ", but none looks at the work" if task.get("verified") is False else ""
        yield field("verified", f"{passed} of {len(checks)} checks passed{blind}")
    elif task["status"] == "completed":
        yield field("verified", "not verified: the task has no checks")
    for check in checks:
        took = f" ({check['duration_s']:.1f}s)" if check.get("duration_s") is not None else ""
        on = f" on {check['commit'][:12]}" if check.get("commit") else ""
        proved = ", proved" if check.get("proved") else ""
        yield f"    {mark(check['passed'])} {one_line(check['name'], 100)}{took}{on}{proved}"
        if check.get("proof") and not check["proved"]:
            yield paint(f"        {one_line(check['proof'], 300)}", "yellow")
        if not check["passed"] and check["output"].strip():
            yield from (f"        {line}" for line in last_lines(check["output"], CHECK_TAIL))


def _attempts(task: Task) -> Iterator[str]:
    for attempt in task["attempts"]:
        yield field(f"attempt {attempt['number']}", headline(attempt))
        yield from (f"    {line}" for line in details(attempt, task["reason"]))
    used = [attempt["usage"] for attempt in task["attempts"] if attempt["usage"]]
    if len(used) > 1:
        known = [usage["cost_usd"] for usage in used if usage["cost_usd"] is not None]
        total = cost(sum(known) if known else None, len(used) - len(known))
        yield field("cost", f"{total} in all" if known else total)


def headline(attempt: Task) -> str:
    """How an attempt went, in a few words."""
    # An attempt that ended with a question counts as failed, but nothing about it failed.
    # An older daemon that still runs does not know the field.
    asked = attempt["status"] == "failed" and attempt.get("question") is not None
    status = "asked" if asked else attempt["status"]
    facts = [
        paint(status, STATUS_STYLE.get("waiting" if asked else status)),
        "" if asked else ending(attempt["exit"]),
        between(attempt["started_at"], attempt["ended_at"]),
        size(attempt["output_bytes"]),
        "resumed" if attempt["mode"] == "resume" else "",
    ]
    return ", ".join(filter(None, facts))


def details(attempt: Task, known_reason: str | None) -> Iterator[str]:
    """The lines below it; a reason that was told already is left out."""
    reason = f" ({attempt['model_reason']})" if attempt["model_reason"] else ""
    yield one_line(f"by {agent_words(attempt['agent'], attempt['model'])}{reason}")
    if attempt["reason"] and attempt["reason"] != known_reason:
        yield one_line(attempt["reason"])
    if attempt["failure"]:
        evidence = f": {one_line(attempt['evidence'], 300)}" if attempt["evidence"] else ""
        yield f"{paint('failure', 'dim')} {attempt['failure']}{evidence}"
    for warning in attempt["warnings"]:
        yield paint(f"warning: {one_line(warning['text'], 300)}", "yellow")
    for told in attempt.get("memory") or ():
        yield f"{paint('memory', 'dim')} {one_line(told['title'], 100)} ({told['id']})"
    if attempt["usage"]:
        yield f"{paint('used', 'dim')} {usage_line(attempt['usage'])}"
    if attempt["diagnosis"]:
        yield paint("diagnosis of the attempt before:", "dim")
        yield from (f"    {line}" for line in last_lines(attempt["diagnosis"], DIAGNOSIS_TAIL))


def ending(exit: Task | None) -> str:
    """How a process ended, in words."""
    if exit is None:
        return ""
    if exit["kind"] == "exited":
        return f"exit code {exit['code']}"
    if exit["kind"] == "signaled":
        try:
            return f"killed by {signal.Signals(exit['signal']).name}"
        except (ValueError, TypeError):
            return f"killed by signal {exit['signal']}"
    others = {"not_started": "never started", "tampered": "end tampered with"}
    return others.get(exit["kind"], "end not seen")
