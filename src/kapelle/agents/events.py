"""Define the events of agents, and read them from JSON that may hold anything.

Bridges load this module, too, so it uses the standard library only.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args


class JsonObject(dict[str, Any]):
    """A JSON object that may hold anything.

    Each method takes the path of a value: the names that lead to it through nested objects. It
    returns an empty value if there is none at the path, or one of another type.
    """

    def at(self, *path: str) -> Any:
        """Return the value of any type, or None."""
        value: Any = self
        for name in path:
            if not isinstance(value, dict):
                return None
            value = value.get(name)
        return value

    def text(self, *path: str) -> str:
        """Return the text, or an empty one."""
        return text_of(self.at(*path))

    def count(self, *path: str) -> int:
        """Return the positive whole number, or 0."""
        value = self.at(*path)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
            return value
        return 0

    def mapping(self, *path: str) -> "JsonObject":
        """Return the object, or an empty one."""
        return mapping_of(self.at(*path))

    def mappings(self, *path: str) -> list["JsonObject"]:
        """Return the items of the list, each as an object."""
        return [mapping_of(item) for item in self.list_of(*path)]

    def list_of(self, *path: str) -> list[Any]:
        """Return the list, or an empty one."""
        value = self.at(*path)
        if isinstance(value, list):
            return value
        return []


def text_of(value: object) -> str:
    """Return a value if it is a text, else an empty text."""
    return value if isinstance(value, str) else ""


def mapping_of(value: object) -> JsonObject:
    """Return a value as a JsonObject if it is a mapping, else an empty one."""
    if isinstance(value, dict):
        return JsonObject(value)
    return JsonObject()


EventKind = Literal[
    "text",  # text: the agent's words, data: {"delta": true} for a piece of a longer text
    "tool_call",  # name: the tool, data: its input
    "tool_result",  # name: the tool, text: its output
    "usage",  # data: UsageData
    "session",  # text: the id to resume by
    "model",  # text: the model that really answers
    "window",  # name: a limit of the account such as weekly, data: WindowData
    "plan",  # text: the planned steps, as lines
    "result",  # text: the final answer, data: {"is_error": bool}
    "error",  # text: the message, name: a FailureClass if the agent knows it, data: ErrorData
    "notice",  # text: trouble that does not end the work, such as a retry; name, data: as error
    "question",  # text: a question to a person
    "stderr",  # text
]


class UsageData(TypedDict, total=False):
    """Usage of tokens and money; input_tokens includes cached_tokens, a turn is one answer."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    turns: int
    cost_usd: float
    total: bool  # the fields replace the sums of this attempt instead of adding to them
    at_least: bool  # the fields never lower a sum; set for agents that the user has configured
    of_session: list[str]  # fields that count the whole session, earlier attempts included
    id: str  # the event replaces the one before it with the same id, because streams repeat events


class WindowData(TypedDict, total=False):
    """One rate limit of an account, as a provider reports it."""

    used: float  # the used share, 1 for all
    resets_at: str | float  # ISO time, or seconds since 1970


class ErrorData(TypedDict, total=False):
    """Details of an error."""

    status: int  # the HTTP status
    type: str  # the provider's name of the error
    retry_at: str  # ISO time


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One event of an agent's work."""

    kind: EventKind
    text: str = ""
    name: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the event without its empty fields."""
        fields = {"text": self.text, "name": self.name, "data": dict(self.data)}
        return {"kind": self.kind, **{key: value for key, value in fields.items() if value}}


_KINDS = frozenset(get_args(EventKind))


def json_object(line: str) -> JsonObject:
    """Return the JSON object that a line holds, or an empty one for any other line."""
    if not line.lstrip().startswith("{"):
        return JsonObject()
    try:
        value = json.loads(line, parse_float=_number, parse_constant=_number)
        if "\\u" in line:
            # JSON may escape half of a surrogate pair, which neither UTF-8 nor a database accepts.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return JsonObject()
    return mapping_of(value)


def parse_event(line: str) -> list[AgentEvent]:
    """Return the event of a line: its JSON object if that has a "kind", else its text."""
    if not line.strip():
        return []
    value = json_object(line)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        return [AgentEvent("text", text=line.rstrip("\r\n"))]
    data = value.mapping("data")
    return [AgentEvent(kind, value.text("text"), value.text("name"), data)]  # type: ignore[arg-type]


def usage(
    input_tokens: object, output_tokens: object, cached_tokens: object, **more: Any
) -> AgentEvent:
    """Return a usage event; the input tokens include the cached ones."""
    tokens = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": cached_tokens,
    }
    return AgentEvent("usage", data=tokens | more)


def error(text: str, name: str = "", kind: EventKind = "error", **data: Any) -> AgentEvent:
    """Return an error event, or a notice, with those fields of ErrorData that have a value."""
    fields = {key: value for key, value in data.items() if value}
    return AgentEvent(kind, text, name, fields)


def plan(steps: list[JsonObject], text: str = "content") -> AgentEvent:
    """Return a plan event with a line for each step: its mark and the text in the field `text`."""
    marks = {"completed": "x", "in_progress": ">"}
    lines = []
    for step in steps:
        status = step.text("status")
        if step.get("completed") is True:
            status = "completed"
        lines.append(f"[{marks.get(status, ' ')}] {step.text(text)}")
    return AgentEvent("plan", "\n".join(lines))


def _number(text: str) -> float | None:
    """Return a number, or None for NaN, 1e999 and their like.

    These are no valid JSON, but no reason to drop the rest of the object.
    """
    value = float(text)
    return value if math.isfinite(value) else None
