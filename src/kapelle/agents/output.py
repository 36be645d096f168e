"""Reads what agents print: JSON objects that may be anything."""

import json
from typing import Any, get_args

from kapelle.agents.base import AgentEvent, EventKind


def json_object(line: str) -> dict[str, Any] | None:
    """The JSON object that a line holds, or None for anything else."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(line, parse_constant=_nothing)
        if "\\u" in line:
            # JSON may escape half a surrogate pair, which no UTF-8 file or database accepts.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def mapping_of(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _nothing(constant: str) -> None:
    """NaN and its like are no JSON, and no reason to throw away all the rest."""


_KINDS = frozenset(get_args(EventKind))


def parse_event(line: str) -> list[AgentEvent]:
    """The event a line holds; a line that is no event is text, a blank one is nothing."""
    if not line.strip():
        return []
    if line.lstrip().startswith("{"):
        event = _event(line)
        if event:
            return [event]
    return [AgentEvent("text", text=line.rstrip("\r\n"))]


def _event(line: str) -> AgentEvent | None:
    value = json_object(line) or {}
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    return AgentEvent(
        kind,  # type: ignore[arg-type]
        text=text_of(value.get("text")),
        name=text_of(value.get("name")),
        data=mapping_of(value.get("data")),
    )
