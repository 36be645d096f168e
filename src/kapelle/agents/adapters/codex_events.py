"""Reads what Codex says: the events on its output, and the usage in its rollout file."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kapelle.agents.base import AgentEvent
from kapelle.agents.output import json_object, list_of, mapping_of, text_of
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


_Json = dict[str, Any]


def parse_line(line: str) -> list[AgentEvent]:
    """What a line says, of the output or of the rollout file; they have no type in common."""
    said = json_object(line)
    read = _READERS.get(text_of(said.get("type"))) if said else None
    return read(said) if read and said else []


def _thread_started(said: _Json) -> list[AgentEvent]:
    return [AgentEvent("session", text_of(said.get("thread_id")))]


def _turn_completed(said: _Json) -> list[AgentEvent]:
    return [AgentEvent("result")]  # its text is the last message


def _turn_failed(said: _Json) -> list[AgentEvent]:
    return [error(text_of(mapping_of(said.get("error")).get("message")))]


def _error(said: _Json) -> list[AgentEvent]:
    message = text_of(said.get("message"))
    return [notice(message) if message.startswith("Reconnecting...") else error(message)]


def _item_started(said: _Json) -> list[AgentEvent]:
    item = mapping_of(said.get("item"))
    if item.get("type") == "todo_list":
        return [_plan(item)]
    name = _tool(item)
    return [AgentEvent("tool_call", name=name, data=_input(item))] if name else []


def _item_updated(said: _Json) -> list[AgentEvent]:
    item = mapping_of(said.get("item"))
    return [_plan(item)] if item.get("type") == "todo_list" else []


def _item_completed(said: _Json) -> list[AgentEvent]:
    item = mapping_of(said.get("item"))
    match item.get("type"):
        case "agent_message":
            return [AgentEvent("text", text_of(item.get("text")))]
        case "error":
            return [notice(text_of(item.get("message")))]
        case "todo_list":
            return [_plan(item)]
    name = _tool(item)
    return [AgentEvent("tool_result", _output(item), name)] if name else []


def _tool(item: _Json) -> str:
    """The name of the tool that an item is a use of; empty for what is no use of a tool."""
    match item.get("type"):
        case "command_execution":
            return "shell"
        case "file_change":
            return "apply_patch"
        case "mcp_tool_call":
            return f"mcp__{text_of(item.get('server'))}__{text_of(item.get('tool'))}"
        case "collab_tool_call":
            return text_of(item.get("tool")) or "collab_tool_call"
        case "web_search":
            return "web_search"
    return ""


def _input(item: _Json) -> _Json:
    if item.get("type") == "mcp_tool_call":
        return mapping_of(item.get("arguments"))
    return {key: item[key] for key in ("command", "changes", "prompt", "query") if item.get(key)}


def _output(item: _Json) -> str:
    match item.get("type"):
        case "command_execution":
            return text_of(item.get("aggregated_output"))
        case "file_change":
            changes = [mapping_of(change) for change in list_of(item.get("changes"))]
            return "\n".join(f"{change.get('kind')} {change.get('path')}" for change in changes)
        case "mcp_tool_call":
            parts = list_of(mapping_of(item.get("result")).get("content"))
            texts = [text_of(mapping_of(part).get("text")) for part in parts]
            return "\n".join(texts) or text_of(mapping_of(item.get("error")).get("message"))
    return text_of(item.get("status"))


def _plan(item: _Json) -> AgentEvent:
    steps = [mapping_of(step) for step in list_of(item.get("items"))]
    lines = [
        f"[{'x' if step.get('completed') is True else ' '}] {step.get('text')}" for step in steps
    ]
    return AgentEvent("plan", "\n".join(lines))


def _token_usage_record(said: _Json) -> list[AgentEvent]:
    """One answer of the model, noted as soon as it has come."""
    payload = mapping_of(said.get("payload"))
    usage = mapping_of(payload.get("usage"))
    data = {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": usage.get("cached_input_tokens"),
        "turns": 1,
        "id": text_of(payload.get("response_id")) or None,
    }
    return [AgentEvent("usage", data=data)]


def _event_msg(said: _Json) -> list[AgentEvent]:
    """Where a run begins: what the file had before is of the session's earlier ones."""
    payload = mapping_of(said.get("payload"))
    trigger = mapping_of(payload.get("turn_attribution")).get("turn_trigger")
    if payload.get("type") != "task_started" or trigger != "exec":
        return []
    nothing = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "turns": 0}
    return [AgentEvent("usage", data={**nothing, "total": True})]


def _turn_context(said: _Json) -> list[AgentEvent]:
    return [AgentEvent("model", text_of(mapping_of(said.get("payload")).get("model")))]


_READERS: dict[str, Callable[[_Json], list[AgentEvent]]] = {
    "thread.started": _thread_started,
    "turn.completed": _turn_completed,
    "turn.failed": _turn_failed,
    "error": _error,
    "item.started": _item_started,
    "item.updated": _item_updated,
    "item.completed": _item_completed,
    "token_usage_record": _token_usage_record,
    "event_msg": _event_msg,
    "turn_context": _turn_context,
}
