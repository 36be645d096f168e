"""The JSON schemas of specifications, which options are made of.

They come from schemas.json, which `make docs` writes: importing the pydantic models would take
longer than all the rest of a command. The schemas of other patterns come from the daemon.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from kapelle.domain.options import KEY

Schema = dict[str, Any]

_OTHER_SCHEMAS = frozenset({"task", "pattern", "schedule", "learning", "template"})


@cache
def schemas() -> dict[str, Schema]:
    """Return the schemas by name: task, schedule, learning, template and the built-in patterns."""
    text = files("kapelle.cli").joinpath("schemas.json").read_text(encoding="utf-8")
    loaded: dict[str, Schema] = json.loads(text)
    shared = loaded.pop("$defs")
    common = loaded["pattern"]["properties"]
    for schema in loaded.values():
        fields = schema["properties"].items()
        schema["$defs"] = shared
        # A field that all patterns have is written once, with "pattern".
        schema["properties"] = {name: shape or common[name] for name, shape in fields}
    return loaded


@cache
def built_in_patterns() -> dict[str, str]:
    """Return the built-in patterns, which have a command of their own, with their summaries."""
    return {
        name: schema[KEY]["summary"]
        for name, schema in schemas().items()
        if name not in _OTHER_SCHEMAS
    }


def resolve(shape: Schema, shared: Schema) -> Schema:
    """Return a shape without references and without "or null"."""
    if "$ref" in shape:
        return resolve(shared.get(shape["$ref"].rpartition("/")[2], {}), shared)
    for word in ("anyOf", "oneOf", "allOf"):
        shapes = [part for part in shape.get(word, ()) if part.get("type") != "null"]
        if len(shapes) == 1:
            return resolve(shapes[0], shared)
    if "const" in shape:
        return {"enum": [shape["const"]], **shape}
    return shape


def kind_of(shape: Schema) -> str:
    """Return the kind of values that a resolved shape allows, such as text, number or pairs."""
    kind = shape.get("type", "text" if "enum" in shape else "any")
    if kind == "string":
        return "text"
    if kind == "object" and _holds_texts(shape):
        return "pairs"
    return str(kind)


def _holds_texts(shape: Schema) -> bool:
    """Return whether an object maps any names to texts."""
    if "properties" in shape:
        return False
    parts = [*shape.get("patternProperties", {}).values(), shape.get("additionalProperties", {})]
    return any(isinstance(part, dict) and part.get("type") == "string" for part in parts)
