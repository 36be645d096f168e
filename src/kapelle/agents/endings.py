"""How a process ended, as a sentence, and what that makes of its report."""

import signal
from typing import Literal

from kapelle.agents.base import Summary, Verdict
from kapelle.domain.task import Exit

_LONGEST_QUOTE = 300


def how_it_ended(exit: Exit, tail: str) -> str:
    """The end of a process that did not succeed, with its last words."""
    match exit.kind:
        case "exited":
            sentence = f"The agent exited with code {exit.code}"
        case "signaled":
            sentence = f"The agent was killed by {_signal_name(exit.signal)}"
        case "not_started":
            sentence = "The agent could not be started"
        case "lost":
            sentence = "Nobody saw how the agent ended"
    words = _last_line(tail)
    return f"{sentence}: {words}" if words else f"{sentence}."


def judge_report(summary: Summary, exit: Exit, tail: str) -> Verdict:
    """Success is a clean exit and a result that is no error; silence is not success."""
    claimed = claim(summary)
    if exit.kind != "exited":
        return failure(how_it_ended(exit, tail), summary.result, claimed)
    if exit.code == 0 and claimed == "success":
        return Verdict(True, result=summary.result, claimed=claimed)
    if claimed == "success":
        return failure(how_it_ended(exit, tail), summary.result, claimed)
    if summary.question is not None:
        reason = f"It asks: {summary.question}"
        return Verdict(False, reason, claimed=claimed, question=summary.question)
    if claimed == "failure":
        said = summary.error.text if summary.error else summary.result
        return failure(said or how_it_ended(exit, tail), summary.result, claimed)
    if exit.code == 0:
        return failure("The agent exited with code 0 without reporting a result.", None, None)
    return failure(how_it_ended(exit, tail), None, None)


def claim(summary: Summary) -> Literal["success", "failure"] | None:
    """What an agent itself says of its work."""
    if summary.is_error:
        return "failure"
    if summary.result is not None:
        return "success"
    return "failure" if summary.error else None


def failure(
    reason: str, result: str | None, claimed: Literal["success", "failure"] | None
) -> Verdict:
    return Verdict(False, reason, result, claimed)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _last_line(tail: str) -> str:
    stripped = (line.strip() for line in tail[-10_000:].splitlines())
    # What is meant for machines tells a person nothing.
    lines = [line for line in stripped if line and not line.startswith("{")]
    return lines[-1][:_LONGEST_QUOTE] if lines else ""
