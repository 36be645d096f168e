"""What agents say: the event, and reading it out of JSON that may be anything.

The standard library alone: bridges load this too.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args


class JsonObject(dict[str, Any]):
    """A JSON object that may hold anything: a path of names leads into the objects within it.

    What is not there, or of another type, is empty.
    """

    def at(self, *path: str) -> Any:
        found: Any = self
        for name in path:
            if isinstance(found, dict):
                found = found.get(name)
            else:
                found = None
        return found

    def text(self, *path: str) -> str:
        return text_of(self.at(*path))

    def count(self, *path: str) -> int:
        """A number of things, or 0 for anything else."""
        found = self.at(*path)
        if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 2**53:
            return found
        return 0

    def mapping(self, *path: str) -> "JsonObject":
        return mapping_of(self.at(*path))

    def mappings(self, *path: str) -> list["JsonObject"]:
        """The items of a list, each as an object."""
        return [mapping_of(item) for item in self.list_of(*path)]

    def list_of(self, *path: str) -> list[Any]:
        found = self.at(*path)
        if isinstance(found, list):
            return found
        return []


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def mapping_of(value: object) -> JsonObject:
    if isinstance(value, dict):
        return JsonObject(value)
    return JsonObject()


EventKind = Literal[
    "text",  # text: what the agent said, data: {"delta": true} for a piece of a longer text
    "tool_call",  # name: the tool, data: its input
    "tool_result",  # name: the tool, text: its output
    "usage",  # data: see UsageData
    "session",  # text: the id to resume by
    "model",  # text: the model that really answers
    "window",  # name: a limit of the account such as weekly, data: see WindowData
    "plan",  # text: what it intends to do, as lines
    "result",  # text: the final answer, data: {"is_error": bool}
    "error",  # text: the message, name: a FailureClass if the agent says so much, data: ErrorData
    "notice",  # text: what goes wrong without ending it, such as a retry; name, data: as error
    "question",  # text: what a person is asked
    "stderr",  # text
]


class UsageData(TypedDict, total=False):
    """What was used; input_tokens includes cached_tokens, and a turn is one answer of a model."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    turns: int
    cost_usd: float
    total: bool  # it replaces the fields counted so far in this attempt instead of adding to them
    at_least: bool  # of an agent of the user's own, which cannot lower what was counted
    of_session: list[str]  # fields that count the whole session, earlier attempts included
    id: str  # one with the id of the last replaces it: streams repeat themselves


class WindowData(TypedDict, total=False):
    """What a provider tells of one limit of an account."""

    used: float  # the share of it, 1 for all
    resets_at: str | float  # ISO time, or seconds since 1970


class ErrorData(TypedDict, total=False):
    status: int  # of HTTP
    type: str  # the provider's own name of the error
    retry_at: str  # ISO time


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One thing an agent said or did."""

    kind: EventKind
    text: str = ""
    name: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        filled = {"text": self.text, "name": self.name, "data": dict(self.data)}
        return {"kind": self.kind, **{key: value for key, value in filled.items() if value}}


_KINDS = frozenset(get_args(EventKind))


def json_object(line: str) -> JsonObject:
    """The JSON object that a line holds, which is empty for anything else."""
    if not line.lstrip().startswith("{"):
        return JsonObject()
    try:
        value = json.loads(line, parse_float=_number, parse_constant=_number)
        if "\\u" in line:
            # JSON may escape half a surrogate pair, which no UTF-8 file or database accepts.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return JsonObject()
    return mapping_of(value)


def parse_event(line: str) -> list[AgentEvent]:
    """The event of a line with a JSON object that has a "kind"; any other line is text."""
    if not line.strip():
        return []
    value = json_object(line)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        return [AgentEvent("text", text=line.rstrip("\r\n"))]
    data = value.mapping("data")
    return [AgentEvent(kind, value.text("text"), value.text("name"), data)]  # type: ignore[arg-type]


def usage(sent: object, received: object, cached: object, **more: Any) -> AgentEvent:
    """The event of what was used: tokens sent, cached ones included, and received."""
    tokens = {"input_tokens": sent, "output_tokens": received, "cached_tokens": cached}
    return AgentEvent("usage", data=tokens | more)


def error(text: str, name: str = "", kind: EventKind = "error", **data: Any) -> AgentEvent:
    """The event of an error, or a notice, with those fields of ErrorData that have a value."""
    given = {key: value for key, value in data.items() if value}
    return AgentEvent(kind, text, name, given)


def plan(steps: list[JsonObject], text: str = "content") -> AgentEvent:
    """The event of a plan: each step's status, as most agents call it, and its text."""
    marks = {"completed": "x", "in_progress": ">"}
    lines = []
    for step in steps:
        if step.get("completed") is True:
            status = "completed"
        else:
            status = step.text("status")
        lines.append(f"[{marks.get(status, ' ')}] {step.text(text)}")
    return AgentEvent("plan", "\n".join(lines))


def _number(text: str) -> float | None:
    """None for NaN, 1e999 and their like: no JSON, and no reason to throw away all the rest."""
    value = float(text)
    return value if math.isfinite(value) else None
