"""One attempt for people: who made it, how it ended, what it used and what went wrong."""

import signal
from collections.abc import Iterator

from kapelle.cli.amounts import usage_line
from kapelle.cli.outcome import Task
from kapelle.cli.style import STATUS_STYLE, paint
from kapelle.cli.text import one_line, tail
from kapelle.cli.times import between, size

DIAGNOSIS_TAIL = 15


def headline(attempt: Task) -> str:
    """How an attempt went, in a few words."""
    facts = [
        *_how_it_went(attempt),
        between(attempt["started_at"], attempt["ended_at"]),
        size(attempt["output_bytes"]),
        "resumed" if attempt["mode"] == "resume" else "",
    ]
    return ", ".join(filter(None, facts))


def details(attempt: Task, known_reason: str | None) -> Iterator[str]:
    """The lines below it; a reason that was told already is left out."""
    yield one_line(_who(attempt))
    if attempt["reason"] and attempt["reason"] != known_reason:
        yield one_line(attempt["reason"])
    if attempt["failure"]:
        evidence = f": {one_line(attempt['evidence'], 300)}" if attempt["evidence"] else ""
        yield f"{paint('failure', 'dim')} {attempt['failure']}{evidence}"
    for warning in attempt["warnings"]:
        yield paint(f"warning: {one_line(warning['text'], 300)}", "yellow")
    if attempt["usage"]:
        yield f"{paint('used', 'dim')} {usage_line(attempt['usage'])}"
    if attempt["diagnosis"]:
        yield paint("diagnosis of the attempt before:", "dim")
        yield from (f"    {line}" for line in tail(attempt["diagnosis"], DIAGNOSIS_TAIL))


def _who(attempt: Task) -> str:
    model = f" with {attempt['model']}" if attempt["model"] else ""
    reason = f" ({attempt['model_reason']})" if attempt["model_reason"] else ""
    return f"by {attempt['agent']}{model}{reason}"


def _how_it_went(attempt: Task) -> list[str]:
    # An attempt that ended with a question counts as failed, but nothing about it failed.
    if (attempt["reason"] or "").startswith("It asks:"):
        return [paint("asked", STATUS_STYLE["waiting"])]
    status = paint(attempt["status"], STATUS_STYLE.get(attempt["status"]))
    return [status, ending(attempt["exit"])]


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
    return "never started" if exit["kind"] == "not_started" else "end not seen"
