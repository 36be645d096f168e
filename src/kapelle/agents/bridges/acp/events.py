"""Prints Kapelle's events, one JSON line each."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from kapelle.agents.base import AgentEvent, EventKind


def emit(
    kind: EventKind, text: str = "", name: str = "", data: Mapping[str, Any] | None = None
) -> None:
    event = AgentEvent(kind, text, name, data or {})
    line = json.dumps(event.to_json(), ensure_ascii=False, default=str)
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
