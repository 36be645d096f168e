"""Finds values in JSON by dotted paths: `message.content.0.text`, `-1.result`."""

import json
from typing import Any

from kapelle.agents.reading import json_object


def json_document(line: str) -> dict[str, Any] | list[Any] | None:
    """The JSON object or array that a line holds, or None for anything else."""
    if not line.lstrip().startswith("["):
        return json_object(line)
    found = (json_object(f'{{"array": {line}}}') or {}).get("array")
    return found if isinstance(found, list) else None


def value_at(document: object, path: str | None) -> object:
    """What is there: names lead into objects, numbers into arrays, from the end if negative."""
    if not path:
        return None
    found = document
    for step in path.split("."):
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.removeprefix("-").isdecimal():
            found = _item(found, step)
        else:
            return None
    return found


def text_at(document: object, path: str | None) -> str:
    """The text there; anything else that says something is written as JSON."""
    found = value_at(document, path)
    if isinstance(found, str):
        return found
    if not found and number_at(document, path) is None:
        return ""
    try:
        return json.dumps(found, ensure_ascii=False)
    except RecursionError:
        return ""


def number_at(document: object, path: str | None) -> float | None:
    found = value_at(document, path)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _item(array: list[Any], step: str) -> object:
    # A number of thousands of digits is no index, and int refuses it.
    index = int(step) if len(step) < 20 else len(array)
    return array[index] if -len(array) <= index < len(array) else None
