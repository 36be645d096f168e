"""Reads the errors of ACP agents: each puts the provider's status somewhere else."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from acp import RequestError

from kapelle.agents.base import ErrorData
from kapelle.agents.bridges.acp.events import emit
from kapelle.agents.reading import mapping_of, text_of

_AUTHENTICATION_REQUIRED = -32000
_STATUS = re.compile(
    r"(?:API Error|status(?: code)?|HTTP|request rejected)\W{0,4}([45]\d\d)\b", re.IGNORECASE
)
_STATUS_KEYS = frozenset({"status", "statusCode", "status_code", "httpStatusCode", "code"})
_TYPE_KEYS = frozenset({"errorKind", "codexErrorInfo", "type", "status"})
_TEXT_KEYS = frozenset({"message", "details", "additionalDetails"})
# Codex's own words, where they say it beyond doubt.
_CLASSES = {
    "unauthorized": "authentication",
    "usageLimitExceeded": "rate_limit",
    "serverOverloaded": "overloaded",
    "contextWindowExceeded": "context_overflow",
}
_LONGEST_TYPE = 60


@dataclass
class Problem(Exception):
    """What ends an attempt without a result: an error event in the making."""

    text: str
    name: str = ""
    data: ErrorData = field(default_factory=ErrorData)

    def tell(self) -> None:
        emit("error", self.text, self.name, self.data)


def problem_of(error: RequestError) -> Problem:
    """The message of a JSON-RPC error, with what it says about the provider's answer."""
    facts = list(_facts(error.data))
    texts = [str(error)]
    for key, value in facts:
        if key in _TEXT_KEYS and isinstance(value, str) and value not in texts[0]:
            texts.append(value)
    text = ": ".join(dict.fromkeys(filter(None, texts)))
    types = [
        v for k, v in facts if k in _TYPE_KEYS and isinstance(v, str) and len(v) <= _LONGEST_TYPE
    ]
    data = ErrorData()
    if status := _status(error, facts, text):
        data["status"] = status
    if types:
        data["type"] = types[0]
    name = _CLASSES.get(types[0], "") if types else ""
    if error.code == _AUTHENTICATION_REQUIRED and data.get("status", 401) in {401, 403}:
        name = "authentication"
    return Problem(text, name, data)


def session_failure(meta: object) -> dict[str, Any]:
    """What codex-acp tells of a failure to clients that ask for it; there is no error then."""
    air = mapping_of(mapping_of(mapping_of(meta).get("jetbrains")).get("air"))
    return mapping_of(air.get("sessionFailure"))


def failure_in(response: dict[str, Any]) -> Problem | None:
    """The failure within an answer that looks like a success."""
    failure = session_failure(response.get("_meta"))
    if failure.get("severity") != "error":
        return None
    text = text_of(failure.get("title")) or "The turn failed."
    found = _STATUS.search(text)
    data = ErrorData(status=int(found[1])) if found else ErrorData()
    return Problem(text, "context_overflow" if "context window" in text else "", data)


def needs_login(error: RequestError) -> bool:
    return error.code == _AUTHENTICATION_REQUIRED


def _status(error: RequestError, facts: list[tuple[str, Any]], text: str) -> int | None:
    # Gemini says 500 for whatever it does not know the status of.
    if error.code == 500 and "not found" in text.lower():
        return 404
    told = [error.code, *(value for key, value in facts if key in _STATUS_KEYS)]
    for value in told:
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _facts(value: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every key with its value, however deep."""
    if isinstance(value, str) and depth == 0:
        yield "message", value
    if not isinstance(value, dict) or depth > 4:
        return
    for key, inner in value.items():
        yield key, inner
        yield from _facts(inner, depth + 1)
