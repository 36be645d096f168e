"""Classify why an attempt failed: by structured fields first, then by its exit, then by text."""

import re
import signal
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from kapelle.agents.events import AgentEvent
from kapelle.agents.resets import find_reset_time, parse_reset_time
from kapelle.agents.verdict import Summary
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit


def _read_evidence() -> dict[FailureClass, dict[str, Any]]:
    text = files("kapelle.agents").joinpath("failures.toml").read_text(encoding="utf-8")
    return {FailureClass(name): fields for name, fields in tomllib.loads(text).items()}


_STATUSES: dict[int, FailureClass] = {}
_TYPES: dict[str, FailureClass] = {}  # by the provider's name of an error, in lower case
_BY_MESSAGE: list[tuple[str, FailureClass]] = []  # regular expressions, in the order of the file
_BY_TAIL: list[tuple[str, FailureClass]] = []
for _kind, _fields in _read_evidence().items():
    _STATUSES |= dict.fromkeys(_fields.get("statuses", ()), _kind)
    _TYPES |= {name.lower(): _kind for name in _fields.get("types", ())}
    if "said" in _fields:
        _BY_MESSAGE.append(("|".join(_fields["said"]), _kind))
    if "printed" in _fields:
        _BY_TAIL.append(("|".join(_fields["printed"]), _kind))
_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
)
# Messages of providers about a limit of one model instead of the whole account.
_OF_MODEL = re.compile(
    r"\b(?:opus|sonnet|haiku)(?: usage| weekly)? limit|limit reached for \S+ in organization"
    r"|for this model\b|limit: \d+, model: ",
    re.IGNORECASE,
)
_QUOTE = 300
_LONGEST_REFUSAL = 2000


# Classes that the message of a refusal tells more precisely than its status or type.
_SPECIAL = frozenset({FailureClass.BILLING, FailureClass.CONTEXT_OVERFLOW, FailureClass.CAPABILITY})


def classify(summary: Summary, exit: Exit, tail: str, environment: Sequence[str] = ()) -> Failure:
    """Return the class of a failure with its evidence.

    environment are the user's own patterns of outputs that mean a failing environment.
    """
    error = summary.error
    message = (error.text if error else summary.result) or ""
    failure = _by_evidence(summary, exit, tail, environment) or _by_claim(summary, exit)
    return _with_scope(failure, message)


def _by_evidence(
    summary: Summary, exit: Exit, tail: str, environment: Sequence[str]
) -> Failure | None:
    """Return the failure by the first evidence, in the order of how much each kind proves."""
    error = summary.error
    failure = _by_field(error) if error else None
    failure = failure or _by_exit(exit, tail)
    failure = failure or _by_pattern(environment, f"{error.text if error else ''}\n{tail}")
    if error:
        failure = failure or _by_message(error.text)
    if summary.is_error:
        failure = failure or _by_message(summary.result or "")
    if error or summary.is_error:
        return failure or _by_claim(summary, exit)
    return failure or _by_text(tail)


def choose_type(*names: str) -> str:
    """Return the first of an error's names that a failure class has, else the last name."""
    return next((name for name in names if name.lower() in _TYPES), names[-1])


def classify_event(error: AgentEvent) -> Failure | None:
    """Return the failure that an error or notice event alone proves, if any."""
    failure = _by_field(error) or _by_message(error.text)
    if failure is None:
        return None
    return _with_scope(failure, error.text)


def _with_scope(failure: Failure, text: str) -> Failure:
    """Return the failure with the note whether a rate limit is that of one model."""
    is_limit = failure.kind is FailureClass.RATE_LIMIT
    return replace(failure, of_model=is_limit and bool(_OF_MODEL.search(text)))


def _by_field(error: AgentEvent) -> Failure | None:
    retry_at = parse_reset_time(error.data.get("retry_at")) or find_reset_time(error.text)
    if error.name in FailureClass.__members__.values():
        return Failure(FailureClass(error.name), _quote("it reported", error.text), retry_at)
    error_type = error.data.get("type")
    status = error.data.get("status")
    by_type = _TYPES.get(error_type.lower()) if isinstance(error_type, str) else None
    by_status = _STATUSES.get(status) if isinstance(status, int) else None
    # The message of a refusal may tell that it is about money, size or the model.
    by_message = _by_message(error.text)
    is_refusal = bool(by_type or by_status) or status in {400, 404}
    if is_refusal and by_message and by_message.kind in _SPECIAL:
        return Failure(by_message.kind, by_message.evidence, retry_at)
    if by_type is FailureClass.BILLING or (by_type and not by_status):
        return Failure(by_type, f"error type {error_type}", retry_at)
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
            if find_end(pattern.lower().split("*"), line.lower()) >= 0:
                return Failure(FailureClass.ENVIRONMENT, _quote("the output has", line))
    return None


def find_end(parts: Sequence[str], line: str) -> int:
    """Return the place after parts that stand in a line in this order, or -1.

    Unlike a regular expression, no parts make this slow.
    """
    end = 0
    for part in parts:
        start = line.find(part, end)
        if start < 0:
            return -1
        end = start + len(part)
    return end


def _by_message(text: str) -> Failure | None:
    # A provider's refusal is short; a longer text is the agent's report of its work.
    if len(text) > _LONGEST_REFUSAL:
        return None
    for pattern, kind in _BY_MESSAGE:
        if re.search(pattern, text, re.IGNORECASE):
            return Failure(kind, _quote("it said", text), find_reset_time(text))
    return None


def _by_text(tail: str) -> Failure | None:
    for pattern, kind in _BY_TAIL:
        match = re.search(pattern, tail)
        if match:
            return Failure(kind, _quote("its output ends with", match[0]))
    return None


def _by_claim(summary: Summary, exit: Exit) -> Failure:
    if summary.error or summary.is_error:
        message = (summary.error.text if summary.error else summary.result) or ""
        return Failure(FailureClass.TASK, _quote("it reported", message))
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
