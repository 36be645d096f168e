"""How a process ended, as a sentence."""

import signal
from typing import Literal

from kapelle.agents.base import Verdict
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
    lines = [line.strip() for line in tail[-10_000:].splitlines() if line.strip()]
    return lines[-1][:_LONGEST_QUOTE] if lines else ""
