"""Requests beside the work, such as titles and classifiers, which take no step of a script."""

import json
from typing import Any

from tests.agents.model.aider import form_asked_for
from tests.agents.model.scripts import Step

_SCHEMAS = (
    ("generationConfig", "responseJsonSchema"),
    ("generationConfig", "responseSchema"),
    ("output_config", "format", "schema"),
    ("response_format", "json_schema", "schema"),
    ("text", "format", "schema"),
)


def is_side(lane: str, has_tools: bool, text: str) -> bool:
    """Whether a request is no work: it offers no tools, and nothing else tells that it is."""
    return not (has_tools or lane.startswith("plain") or form_asked_for(text))


def side_step(body: Any) -> Step:
    """The shortest answer that the asker can read."""
    for path in _SCHEMAS:
        schema = body
        for key in path:
            schema = schema.get(key) if isinstance(schema, dict) else None
        if isinstance(schema, dict):
            return {"text": json.dumps(_least(schema))}
    return {"text": "ok"}


def _least(schema: dict[str, Any]) -> Any:
    """A small value that fits a JSON schema."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = str(schema.get("type", "object")).lower()
    if kind == "object":
        return {name: _least(value) for name, value in schema.get("properties", {}).items()}
    return {"string": "ok", "boolean": False, "array": []}.get(kind, 1)
