"""What the lines of `copilot --output-format json` say, and the spans of its telemetry."""

from typing import Any

from kapelle.agents.base import AgentEvent
from kapelle.agents.reading import json_object, mapping_of, text_of
from kapelle.domain.failures import FailureClass

# The categories of its own schema that leave no doubt.
_CLASSES = {
    "authentication": FailureClass.AUTHENTICATION,
    "authorization": FailureClass.AUTHENTICATION,
    "quota": FailureClass.BILLING,
    "rate_limit": FailureClass.RATE_LIMIT,
    "context_limit": FailureClass.CONTEXT_OVERFLOW,
}


def parse_line(line: str) -> list[AgentEvent]:
    """The events of one line; what is no JSON is a message to a person."""
    value = json_object(line)
    if value is None:
        return [AgentEvent("notice", line.strip())] if line.strip() else []
    data = mapping_of(value.get("data"))
    match value.get("type"):
        case "assistant.message":
            return _message(data) if "agentId" not in value else []
        case "tool.execution_start":
            name = text_of(data.get("toolName"))
            return [AgentEvent("tool_call", name=name, data=mapping_of(data.get("arguments")))]
        case "tool.execution_complete":
            return [_tool_result(data)]
        case "model.call_failure":
            return [AgentEvent("notice", _reason(data), data=_facts(data))]
        case "session.warning":
            return [AgentEvent("notice", text_of(data.get("message")))]
        case "session.error":
            return [_error(data)]
        case "result":
            return _result(value)
        case "span":
            return _span(mapping_of(value.get("attributes")))
        case _:
            return []


def _message(data: dict[str, Any]) -> list[AgentEvent]:
    events = [AgentEvent("model", text_of(data.get("model")))]
    text = text_of(data.get("content"))
    return [*events, AgentEvent("text", text)] if text else events


def _tool_result(data: dict[str, Any]) -> AgentEvent:
    output = text_of(mapping_of(data.get("result")).get("content"))
    problem = text_of(mapping_of(data.get("error")).get("message"))
    return AgentEvent("tool_result", output or problem)


def _reason(data: dict[str, Any]) -> str:
    """What a provider said, which is handed on as the text of a JSON object."""
    said = text_of(data.get("errorMessage"))
    return text_of((json_object(said) or {}).get("message")) or said or "a request failed"


def _facts(data: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if isinstance(data.get("statusCode"), int):
        facts["status"] = data["statusCode"]
    if code := text_of(data.get("errorCode")):
        facts["type"] = code
    return facts


def _error(data: dict[str, Any]) -> AgentEvent:
    message = text_of(data.get("message"))
    name = _CLASSES.get(text_of(data.get("errorType")), "")
    if data.get("statusCode") == 404 and message.startswith("Model "):
        name = FailureClass.CAPABILITY
    return AgentEvent("error", message or "unknown error", name, _facts(data))


def _result(value: dict[str, Any]) -> list[AgentEvent]:
    """The last line; what was answered is in the last message."""
    session = AgentEvent("session", text_of(value.get("sessionId")))
    failed = {} if value.get("exitCode") == 0 else {"is_error": True}
    return [session, AgentEvent("result", data=failed)]


def _span(attributes: dict[str, Any]) -> list[AgentEvent]:
    """One request to a model, by a sub-agent too; one that failed tells no tokens."""
    if attributes.get("gen_ai.operation.name") != "chat":
        return []
    if "gen_ai.usage.input_tokens" not in attributes:
        return []
    usage = {
        "input_tokens": attributes.get("gen_ai.usage.input_tokens", 0),
        "output_tokens": attributes.get("gen_ai.usage.output_tokens", 0),
        "cached_tokens": attributes.get("gen_ai.usage.cache_read.input_tokens", 0),
        "turns": 1,
    }
    session = AgentEvent("session", text_of(attributes.get("gen_ai.conversation.id")))
    return [session, AgentEvent("usage", data=usage)]
