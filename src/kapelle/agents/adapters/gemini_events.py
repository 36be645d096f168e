"""What the lines of `gemini -o stream-json` and of its chat log say."""

import re
from typing import Any

from kapelle.agents.base import AgentEvent
from kapelle.agents.reading import json_object, mapping_of, text_of
from kapelle.domain.failures import FailureClass

_API_ERROR = re.compile(r"\[API Error: (\{.*\})\]", re.DOTALL)
_CHOICES = frozenset({"pro", "flash", "flash-lite"})
_CLASSES = {
    "FatalTurnLimitedError": FailureClass.LIMIT,
    "FatalAuthenticationError": FailureClass.AUTHENTICATION,
}
# What messages say beyond their status, such as 400 for a bad key.
_BY_MESSAGE = (
    (r"^Maximum session turns exceeded", FailureClass.LIMIT),
    (r"API key (?:not valid|expired|not found)|API_KEY_INVALID", FailureClass.AUTHENTICATION),
    (r"input token count\b[^a-z]*exceeds", FailureClass.CONTEXT_OVERFLOW),
    (r"is not found for API version", FailureClass.CAPABILITY),
    (r"\blimit: 0(?![\d.])|requires billing to be enabled", FailureClass.BILLING),
    (r"may be a transient API issue", FailureClass.OVERLOADED),
)


def parse_line(line: str) -> list[AgentEvent]:
    """The events of one line; what is no JSON object says nothing."""
    value = json_object(line) or {}
    match value.get("type"):
        case "init":
            return _begin(value)
        case "message" if value.get("role") == "assistant":
            return [AgentEvent("text", text_of(value.get("content")), data={"delta": True})]
        case "tool_use":
            name = text_of(value.get("tool_name"))
            return [AgentEvent("tool_call", name=name, data=mapping_of(value.get("parameters")))]
        case "tool_result":
            return [_tool_result(value)]
        case "error":
            return [_problem(value)]
        case "result":
            return _result(value)
        case "gemini":
            return _answer(value)
        case _:
            return []


def has_answer(output: str) -> bool:
    """Whether its result follows an answer of the model, as far as the output tells.

    Where the next request would not fit any more it just ends, and calls that a success.
    """
    ended = False
    for line in reversed(output.splitlines()):
        value = json_object(line) or {}
        if ended and "type" in value:
            return value["type"] not in ("tool_use", "tool_result") and value.get("role") != "user"
        ended = ended or value.get("type") == "result"
    return True


def _begin(value: dict[str, Any]) -> list[AgentEvent]:
    session, model = text_of(value.get("session_id")), text_of(value.get("model"))
    # The name of a choice of models has no price; which one it came to is told later.
    named = model not in _CHOICES and not model.startswith("auto")
    return [AgentEvent("session", session), *([AgentEvent("model", model)] if named else [])]


def _tool_result(value: dict[str, Any]) -> AgentEvent:
    said = mapping_of(value.get("error")).get("message")
    # The id of a call begins with the name of its tool.
    name = text_of(value.get("tool_id")).rpartition("__")[0]
    return AgentEvent("tool_result", text_of(value.get("output")) or text_of(said), name)


def _problem(value: dict[str, Any]) -> AgentEvent:
    """A message amid the work; some end it, and a result of success follows all the same."""
    message = text_of(value.get("message"))
    ends = value.get("severity") == "error" or message.startswith("Loop detected")
    return AgentEvent("error" if ends else "notice", message, _class_of(message))


def _result(value: dict[str, Any]) -> list[AgentEvent]:
    events = _usage(mapping_of(value.get("stats")))
    if value.get("status") == "success":
        return [*events, AgentEvent("result")]
    error = mapping_of(value.get("error"))
    if error:
        events.append(_error(text_of(error.get("type")), text_of(error.get("message"))))
    return [*events, AgentEvent("result", data={"is_error": True})]


def _error(kind: str, message: str) -> AgentEvent:
    """The error that ended it, out of the JSON that the provider answered with, if it is there."""
    found = _API_ERROR.match(message)
    told = mapping_of((json_object(found[1]) or {}).get("error")) if found else {}
    text = text_of(told.get("message")) or message
    data: dict[str, Any] = {"type": text_of(told.get("status")) or kind}
    if _count(told.get("code")):
        data["status"] = told["code"]
    return AgentEvent("error", text, _CLASSES.get(kind) or _class_of(message), data)


def _class_of(message: str) -> str:
    fitting = (name for pattern, name in _BY_MESSAGE if re.search(pattern, message, re.IGNORECASE))
    return next(fitting, "")


def _usage(stats: dict[str, Any]) -> list[AgentEvent]:
    """The sums of this run, helpers of the main model included, and the model that did most."""
    if not stats:
        return []
    sent, total = _count(stats.get("input_tokens")), _count(stats.get("total_tokens"))
    usage = {
        "input_tokens": sent,
        # Thinking is paid for as output, and only in the total.
        "output_tokens": max(_count(stats.get("output_tokens")), total - sent),
        "cached_tokens": _count(stats.get("cached")),
        "total": True,
    }
    models = mapping_of(stats.get("models"))
    most = max(
        models, key=lambda name: _count(mapping_of(models[name]).get("total_tokens")), default=""
    )
    return [AgentEvent("usage", data=usage), *([AgentEvent("model", most)] if most else [])]


def _answer(value: dict[str, Any]) -> list[AgentEvent]:
    """An answer of the model as the chat log has it, again whenever a tool has added to it."""
    tokens = mapping_of(value.get("tokens"))
    if not tokens:
        return []
    usage = {
        "input_tokens": _count(tokens.get("input")) + _count(tokens.get("tool")),
        "output_tokens": _count(tokens.get("output")) + _count(tokens.get("thoughts")),
        "cached_tokens": _count(tokens.get("cached")),
        "turns": 1,
        "id": text_of(value.get("id")),
    }
    return [AgentEvent("usage", data=usage), AgentEvent("model", text_of(value.get("model")))]


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
