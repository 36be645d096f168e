"""Why an attempt failed: by structured fields first, by the exit next, by text last."""

import re
import signal
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

from kapelle.agents.base import Summary
from kapelle.agents.events import AgentEvent
from kapelle.agents.resets import reset_in, reset_stated
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit

_KNOWN = {
    FailureClass(name): known
    for name, known in tomllib.loads(
        files("kapelle.agents").joinpath("failures.toml").read_text(encoding="utf-8")
    ).items()
}
_STATUSES = {code: kind for kind, known in _KNOWN.items() for code in known.get("statuses", ())}
_TYPES = {name.lower(): kind for kind, known in _KNOWN.items() for name in known.get("types", ())}
_BY_MESSAGE = [("|".join(known["said"]), kind) for kind, known in _KNOWN.items() if "said" in known]
_BY_TAIL = [
    ("|".join(known["printed"]), kind) for kind, known in _KNOWN.items() if "printed" in known
]
_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
)
# How providers say that a limit is that of one model, not of the account.
_OF_MODEL = re.compile(
    r"\b(?:opus|sonnet|haiku)(?: usage| weekly)? limit|limit reached for \S+ in organization"
    r"|for this model\b|limit: \d+, model: ",
    re.IGNORECASE,
)
_QUOTE = 300
_LONGEST_REFUSAL = 2000


def classify(summary: Summary, exit: Exit, tail: str, environment: Sequence[str] = ()) -> Failure:
    """The class of a failure with its evidence; environment are the user's own patterns."""
    error = summary.error
    found = (
        (_by_field(error) if error else None)
        or _by_exit(exit, tail)
        or _by_pattern(environment, f"{error.text if error else ''}\n{tail}")
        or (_by_message(error.text) if error else None)
        or (_by_message(summary.result or "") if summary.is_error else None)
        or (_by_claim(summary, exit) if error or summary.is_error else None)
        or _by_text(tail)
        or _by_claim(summary, exit)
    )
    return _scoped(found, (error.text if error else summary.result) or "")


def known_type(*names: str) -> str:
    """Of the names that an agent and its provider have for an error the first that says what it
    is, else the last."""
    return next((name for name in names if name.lower() in _TYPES), names[-1])


def failure_of(error: AgentEvent) -> Failure | None:
    """What an error or notice event alone says."""
    found = _by_field(error) or _by_message(error.text)
    return found and _scoped(found, error.text)


def _scoped(failure: Failure, text: str) -> Failure:
    limit = failure.kind is FailureClass.RATE_LIMIT
    return replace(failure, of_model=limit and bool(_OF_MODEL.search(text)))


def _by_field(error: AgentEvent) -> Failure | None:
    retry_at = reset_stated(error.data.get("retry_at")) or reset_in(error.text)
    if error.name in FailureClass.__members__.values():
        return Failure(FailureClass(error.name), _quote("it reported", error.text), retry_at)
    kind = error.data.get("type")
    status = error.data.get("status")
    if isinstance(kind, str):
        found = _TYPES.get(kind.lower())
    else:
        found = None
    if isinstance(status, int):
        by_status = _STATUSES.get(status)
    else:
        by_status = None
    # The message of a refusal may say that it is about money, size or the model: that counts.
    by_message = _by_message(error.text)
    special = {FailureClass.BILLING, FailureClass.CONTEXT_OVERFLOW, FailureClass.CAPABILITY}
    if by_message and by_message.kind in special and (found or by_status or status in {400, 404}):
        return Failure(by_message.kind, by_message.evidence, retry_at)
    if found is FailureClass.BILLING or (found and not by_status):
        return Failure(found, f"error type {kind}", retry_at)
    if by_status:
        return Failure(by_status, f"HTTP status {status}", retry_at)
    return None


def _by_exit(exit: Exit, tail: str) -> Failure | None:
    if exit.kind == "lost":
        return Failure(FailureClass.LOST, "nobody saw how it ended")
    if exit.kind == "tampered":
        return Failure(FailureClass.TAMPERED, "another process wrote the exit record")
    if exit.kind == "signaled" and exit.signal in _CRASHES:
        return Failure(FailureClass.CRASH, f"signal {exit.signal}")
    if exit.kind == "signaled" and exit.signal == signal.SIGKILL:
        return Failure(FailureClass.OUT_OF_MEMORY, "killed by SIGKILL, which Kapelle did not send")
    if exit.kind == "not_started" or (exit.kind == "exited" and exit.code in {126, 127}):
        return Failure(FailureClass.ENVIRONMENT, _quote("it could not be started", tail[-_QUOTE:]))
    return None


def _by_pattern(patterns: Sequence[str], text: str) -> Failure | None:
    for line in text.splitlines():
        for pattern in patterns:
            if place_behind(pattern.lower().split("*"), line.lower()) >= 0:
                return Failure(FailureClass.ENVIRONMENT, _quote("the output has", line))
    return None


def place_behind(parts: Sequence[str], line: str) -> int:
    """The place behind parts that stand in a line in this order, or -1; no parts make it slow."""
    place = 0
    for part in parts:
        found = line.find(part, place)
        if found < 0:
            return -1
        place = found + len(part)
    return place


def _by_message(text: str) -> Failure | None:
    # A provider's refusal is short; what is longer is the agent's own account of its work.
    if len(text) > _LONGEST_REFUSAL:
        return None
    for pattern, kind in _BY_MESSAGE:
        if re.search(pattern, text, re.IGNORECASE):
            return Failure(kind, _quote("it said", text), reset_in(text))
    return None


def _by_text(tail: str) -> Failure | None:
    for pattern, kind in _BY_TAIL:
        found = re.search(pattern, tail)
        if found:
            return Failure(kind, _quote("its output ends with", found[0]))
    return None


def _by_claim(summary: Summary, exit: Exit) -> Failure:
    if summary.error or summary.is_error:
        if summary.error:
            said = summary.error.text
        else:
            said = summary.result or ""
        return Failure(FailureClass.TASK, _quote("it reported", said))
    if exit.kind == "exited" and exit.code == 0:
        return Failure(FailureClass.UNKNOWN, "exit code 0 without a report of success")
    if exit.kind == "signaled":
        ending = f"signal {exit.signal}"
    else:
        ending = f"exit code {exit.code}"
    return Failure(FailureClass.CRASH, f"{ending} without a report")


def _quote(what: str, text: str) -> str:
    line = " ".join(text.split())
    if line:
        return f"{what}: {line[:_QUOTE]}"
    return what
