"""Why an attempt failed: by structured fields first, by the exit next, by text last."""

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from kapelle.agents.base import Summary
from kapelle.agents.events import AgentEvent
from kapelle.agents.resets import reset_in, reset_stated
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit

_STATUSES = {
    401: FailureClass.AUTHENTICATION,
    402: FailureClass.BILLING,
    403: FailureClass.AUTHENTICATION,
    413: FailureClass.CONTEXT_OVERFLOW,
    429: FailureClass.RATE_LIMIT,
    **dict.fromkeys((408, 500, 502, 503, 504, 520, 522, 524, 529), FailureClass.OVERLOADED),
}
# What providers call their errors, in their own fields; these say more than the status.
_TYPES = {
    name: kind
    for kind, names in {
        FailureClass.AUTHENTICATION: "authentication_error authentication_failed invalid_api_key"
        " unauthenticated permission_error permission_denied",
        FailureClass.BILLING: "billing_error insufficient_quota",
        FailureClass.RATE_LIMIT: "rate_limit_error rate_limit_exceeded rate_limit"
        " resource_exhausted",
        FailureClass.OVERLOADED: "overloaded_error overloaded server_error api_error unavailable",
        FailureClass.CAPABILITY: "model_not_found not_found_error",
        FailureClass.CONTEXT_OVERFLOW: "context_length_exceeded request_too_large",
    }.items()
    for name in names.split()
}
# Sentences that only the thing itself writes; one word such as a product's name proves nothing.
_BY_MESSAGE = (
    (
        r"credit balance is too low|insufficient[_ ]quota|exceeded your current quota"
        r"|billing (?:is not active|hard limit)|spend(?:ing)? limit (?:reached|exceeded)"
        r"|check your plan and billing|requires billing to be enabled|BILLING_DISABLED",
        FailureClass.BILLING,
    ),
    (
        r"prompt is too long|context[_ ]length[_ ]exceeded|maximum context length"
        r"|input token count\D{0,5}[\d,]*\D{0,3} exceeds|context window (?:is )?(?:full|exceeded)"
        r"|exceeds the context window|room in the model's context window|has hit a token limit",
        FailureClass.CONTEXT_OVERFLOW,
    ),
    (
        r"model[_ ]not[_ ]found|model\b.{0,80}\b(?:does not exist|is not (?:available|supported))"
        r"|no such model|unknown model|issue with the selected model"
        r"|model \S{1,80} not found on provider",
        FailureClass.CAPABILITY,
    ),
    (
        r"(?:status|code|error|http)\W{0,12}(?:401|403)\b|invalid (?:api|x-api)[- ]key"
        r"|incorrect api key|(?:please|must) (?:run /login|log ?in|authenticate)"
        r"|not logged in|AuthenticationError|\bapi key is (?:not valid|invalid)"
        r"|\bkey is not valid",
        FailureClass.AUTHENTICATION,
    ),
    (
        r"(?:status|code|error|http)\W{0,12}429\b|too many requests"
        r"|rate[- _]?limit(?:ed|_error|_exceeded|error)"
        r"|rate[- _]?limit (?:is |was |has been )?(?:reached|exceeded|hit)"
        r"|(?:usage|session|weekly|5-hour) limit (?:reached|hit)|hit your .{0,20}limit"
        r"|exceed your .{0,30}rate limit|resource has been exhausted"
        r"|capacity exceeded for this model",
        FailureClass.RATE_LIMIT,
    ),
    (
        r"(?:status|code|error|http)\W{0,12}(?:5[0-9][0-9])\b"
        r"|overloaded_error|(?:^|\W|is |are )overloaded\W*$"
        r"|(?:servers?|model|provider|api) (?:is|are) (?:currently |down or )*overloaded"
        r"|experiencing high demand"
        r"|service unavailable|internal server error|InternalServerError|server had an error"
        r"|bad gateway|gateway time-?out|provider returned error",
        FailureClass.OVERLOADED,
    ),
)
_BY_TAIL = (
    (r"No space left on device|\bENOSPC\b|Disk quota exceeded", FailureClass.DISK_FULL),
    (
        r"heap out of memory|\bENOMEM\b|Cannot allocate memory|MemoryError\b",
        FailureClass.OUT_OF_MEMORY,
    ),
    (
        r"\bECONNREFUSED\b|Connection refused|\bENOTFOUND\b|\bEAI_AGAIN\b|Could not resolve host"
        r"|Network is unreachable|Cannot connect to the Docker daemon|container .{0,80}not running"
        r"|command not found",
        FailureClass.ENVIRONMENT,
    ),
)
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
    kind, status = error.data.get("type"), error.data.get("status")
    found = _TYPES.get(kind.lower()) if isinstance(kind, str) else None
    by_status = _STATUSES.get(status) if isinstance(status, int) else None
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
        return Failure(FailureClass.TAMPERED, "somebody else wrote how it ended")
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
        said = summary.error.text if summary.error else summary.result or ""
        return Failure(FailureClass.TASK, _quote("it reported", said))
    if exit.kind == "exited" and exit.code == 0:
        return Failure(FailureClass.UNKNOWN, "exit code 0 without a report of success")
    ending = f"signal {exit.signal}" if exit.kind == "signaled" else f"exit code {exit.code}"
    return Failure(FailureClass.CRASH, f"{ending} without a report")


def _quote(what: str, text: str) -> str:
    line = " ".join(text.split())
    return f"{what}: {line[:_QUOTE]}" if line else what
