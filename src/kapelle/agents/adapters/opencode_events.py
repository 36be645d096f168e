"""What the lines of `opencode run --format json` say."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from kapelle.agents.base import AgentEvent
from kapelle.agents.reading import json_object, mapping_of, text_of
from kapelle.domain.failures import FailureClass

_CLASSES = {
    "ProviderAuthError": FailureClass.AUTHENTICATION,
    "ProviderModelNotFoundError": FailureClass.CAPABILITY,
    "ContextOverflowError": FailureClass.CONTEXT_OVERFLOW,
}


def parse_line(line: str) -> list[AgentEvent]:
    """The events of one line; what is no JSON is a warning that it prints among them."""
    value = json_object(line)
    if value is None:
        return [AgentEvent("notice", line.strip())] if line.strip() else []
    part = mapping_of(value.get("part"))
    session = AgentEvent("session", text_of(value.get("sessionID")))
    match value.get("type"):
        case "step_start":
            return [session]
        case "text":
            return [AgentEvent("text", text_of(part.get("text")))]
        case "tool_use":
            return _tool(part)
        case "step_finish":
            return _step(part)
        case "error":
            return [session, _error(value)]
        case _:
            return []


def last_word(output: str) -> str | None:
    """How an output's last step ended: its reason, "error", or "" in the middle of it.

    A "stop" is no end where more steps follow it: the history may have been compacted in between.
    """
    for line in reversed(output.splitlines()):
        value = json_object(line) or {}
        match value.get("type"):
            case "step_finish":
                return text_of(mapping_of(value.get("part")).get("reason"))
            case "error":
                return "error"
            case "step_start" | "tool_use":
                return ""
    return None


def _tool(part: dict[str, Any]) -> list[AgentEvent]:
    name, state = text_of(part.get("tool")), mapping_of(part.get("state"))
    output = text_of(state.get("output")) or text_of(state.get("error"))
    return [
        AgentEvent("tool_call", name=name, data=mapping_of(state.get("input"))),
        AgentEvent("tool_result", output, name),
    ]


def _step(part: dict[str, Any]) -> list[AgentEvent]:
    """One answer of the model: what it took, and whether it was the last."""
    tokens = mapping_of(part.get("tokens"))
    cache = mapping_of(tokens.get("cache"))
    cached = _count(cache.get("read"))
    usage = AgentEvent(
        "usage",
        data={
            "input_tokens": _count(tokens.get("input")) + cached + _count(cache.get("write")),
            "output_tokens": _count(tokens.get("output")) + _count(tokens.get("reasoning")),
            "cached_tokens": cached,
            "turns": 1,
            # It counts 0 for a model whose price it does not know.
            **({"cost_usd": part["cost"]} if part.get("cost") else {}),
        },
    )
    reason = text_of(part.get("reason"))
    if reason == "stop":
        return [usage, AgentEvent("result")]
    if reason in {"", "tool-calls", "unknown"}:
        return [usage]
    cut = f"The model's answer ended with {reason}."
    return [usage, AgentEvent("result", cut, data={"is_error": True})]


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _error(value: dict[str, Any]) -> AgentEvent:
    error = mapping_of(value.get("error"))
    data, name = mapping_of(error.get("data")), text_of(error.get("name"))
    message = text_of(data.get("message")) or text_of(error.get("message")) or name
    body = mapping_of((json_object(text_of(data.get("responseBody"))) or {}).get("error"))
    facts = {
        "status": _count(data.get("statusCode")),
        "type": text_of(body.get("code")) or text_of(body.get("type")),
        "retry_at": _retry_at(mapping_of(data.get("responseHeaders")), value.get("timestamp")),
    }
    known = {key: fact for key, fact in facts.items() if fact}
    return AgentEvent("error", message or "unknown error", _CLASSES.get(name, ""), known)


def _retry_at(headers: dict[str, Any], milliseconds: object) -> str | None:
    """When a limit ends: a header gives seconds from the moment of the line, or a date."""
    stated = text_of(headers.get("retry-after"))
    try:
        if stated.isdecimal() and isinstance(milliseconds, int):
            said_at = datetime.fromtimestamp(milliseconds / 1000, UTC)
            return (said_at + timedelta(seconds=int(stated))).isoformat()
        return parsedate_to_datetime(stated).isoformat() if stated else None
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None
