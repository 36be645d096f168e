"""Server-sent events, read line by line."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServerEvent:
    kind: str
    data: dict[str, Any]
    id: str | None


def parse(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The events in a stream; one cut off in the middle is dropped, as the standard asks."""
    fields: dict[str, str] = {}
    last_id: str | None = None
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if "data" in fields:
                last_id = fields.get("id", last_id)
                yield ServerEvent(fields.get("event", "message"), _data(fields["data"]), last_id)
            fields = {}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in fields:
            fields["data"] += "\n" + value
        elif name:
            fields[name] = value


def _data(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"text": text}
    return value if isinstance(value, dict) else {"value": value}
