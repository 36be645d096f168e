"""Kapelle's own line format: one JSON object with a "kind" per line, anything else is text."""

from typing import get_args

from kapelle.agents.base import AgentEvent, EventKind
from kapelle.agents.reading import json_object, mapping_of, text_of

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
