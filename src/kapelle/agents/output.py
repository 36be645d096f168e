"""Reads what agents print: JSON objects that may be anything, and Kapelle's own event lines.

The standard library and base alone: bridges load this too.
"""

import json
from typing import Any, get_args

from kapelle.agents.base import AgentEvent, EventKind

Json = dict[str, Any]

_KINDS = frozenset(get_args(EventKind))


def json_object(line: str) -> Json | None:
    """The JSON object that a line holds, or None for anything else."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(line, parse_constant=_no_constant)
        if "\\u" in line:
            # JSON may escape half a surrogate pair, which no UTF-8 file or database accepts.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def mapping_of(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def mappings_of(value: object) -> list[Json]:
    """The items of a list, each as an object."""
    return [mapping_of(item) for item in list_of(value)]


def count_of(value: object) -> int:
    """A number of things, or 0 for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
        return value
    return 0


def parse_event(line: str) -> list[AgentEvent]:
    """The event of a line with a JSON object that has a "kind"; any other line is text."""
    if not line.strip():
        return []
    value = json_object(line) or {}
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        return [AgentEvent("text", text=line.rstrip("\r\n"))]
    return [
        AgentEvent(
            kind,  # type: ignore[arg-type]
            text=text_of(value.get("text")),
            name=text_of(value.get("name")),
            data=mapping_of(value.get("data")),
        )
    ]


def usage(sent: object, received: object, cached: object, **more: Any) -> AgentEvent:
    """The event of what was used: tokens sent, cached ones included, and received."""
    tokens = {"input_tokens": sent, "output_tokens": received, "cached_tokens": cached}
    return AgentEvent("usage", data=tokens | more)


def error(text: str, name: str = "", kind: EventKind = "error", **data: Any) -> AgentEvent:
    """The event of an error, or a notice, with those fields of ErrorData that have a value."""
    given = {key: value for key, value in data.items() if value}
    return AgentEvent(kind, text, name, given)


def plan(steps: list[tuple[str, str]]) -> AgentEvent:
    """The event of a plan: each step's status, as most agents call it, and its text."""
    marks = {"completed": "x", "in_progress": ">"}
    lines = [f"[{marks.get(status, ' ')}] {text}" for status, text in steps]
    return AgentEvent("plan", "\n".join(lines))


def _no_constant(constant: str) -> None:
    """NaN and its like are no JSON, and no reason to throw away all the rest."""
