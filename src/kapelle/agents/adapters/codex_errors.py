"""What Codex's messages say for certain: a status, a kind of failure, when a limit ends."""

import re
from datetime import UTC, datetime
from typing import Any

from kapelle.agents.base import AgentEvent
from kapelle.agents.reading import json_object, mapping_of, text_of
from kapelle.domain.failures import FailureClass

_RETRY = re.compile(r"Reconnecting\.\.\. [^(]*\((.*)\)", re.DOTALL)
_STATUS = re.compile(r"(?:unexpected status|exceeded retry limit, last status:) (\d{3})\b")
_INTERNAL = re.compile(r"We.re currently experiencing high demand")
_AGAIN_AT = re.compile(
    r"try again at (?:([A-Z][a-z]{2}) (\d{1,2})(?:st|nd|rd|th), (\d{4}) )?(\d{1,2}:\d{2} [AP]M)",
    re.IGNORECASE,
)
# Its own sentences, as they begin; what a provider wrote is for the general rules.
_SENTENCES = (
    (r"You.ve hit your usage limit|rate limit exceeded:", FailureClass.RATE_LIMIT),
    (
        r"Quota exceeded\.|To use Codex with your ChatGPT plan, upgrade|You.re out of credits"
        r"|Your workspace is out of credits|You hit your spend cap",
        FailureClass.BILLING,
    ),
    (r"Codex ran out of room in the model's context window", FailureClass.CONTEXT_OVERFLOW),
    (r"Your input exceeds the context window", FailureClass.CONTEXT_OVERFLOW),
    (r"Selected model is at capacity", FailureClass.OVERLOADED),
    (r"stream disconnected before completion", FailureClass.OVERLOADED),
    (r"Connection failed:", FailureClass.ENVIRONMENT),
    (
        r"Missing environment variable:|Your access token could not be refreshed",
        FailureClass.AUTHENTICATION,
    ),
)


def error(message: str) -> AgentEvent:
    """What ended the run."""
    text, data = _unwrapped(message)
    name = next((kind for start, kind in _SENTENCES if re.match(start, text)), "")
    return AgentEvent("error", text, name, data | _facts(text))


def notice(message: str) -> AgentEvent:
    """What did not end it: a retry, or a warning."""
    retry = _RETRY.match(message)
    if retry is None:
        return AgentEvent("notice", message)
    cause = error(retry[1])
    return AgentEvent("notice", message, cause.name, cause.data)


def _unwrapped(message: str) -> tuple[str, dict[str, Any]]:
    """The message inside the answer to a bad request, which is shown as it came."""
    body = json_object(message)
    if body is None:
        return message, {}
    inner = mapping_of(body.get("error"))
    text = text_of(inner.get("message")) or text_of(body.get("detail")) or message
    kind = text_of(inner.get("code")) or text_of(inner.get("type"))
    return text, {"status": 400} | ({"type": kind} if kind else {})


def _facts(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if found := _STATUS.match(text):
        facts["status"] = int(found[1])
    elif _INTERNAL.match(text):
        facts["status"] = 500
    if at := _again_at(text):
        facts["retry_at"] = at.isoformat()
    return facts


def _again_at(text: str) -> datetime | None:
    """It names a time of this day, or a date with one, by the clock of this place."""
    found = _AGAIN_AT.search(text)
    if found is None:
        return None
    month, day, year, clock = found.groups()
    date = f"{month} {day} {year}" if month else f"{datetime.now():%b %d %Y}"
    try:
        at = datetime.strptime(f"{date} {clock.upper()}", "%b %d %Y %I:%M %p")
    except ValueError:
        return None
    return at.astimezone(UTC)
