"""The tables of docs/configuration.md, made from the models."""

import json
from typing import Any

from pydantic.fields import FieldInfo

from kapelle.settings.models import REPOSITORY_KEYS, AgentSettings, Price, ReadJson, Settings
from kapelle.settings.validation import children_of


def reference() -> str:
    """The tables of docs/configuration.md."""
    sections = [
        ("", Settings),
        *children_of(Settings).items(),
        ("agents.NAME", AgentSettings),
        ("agents.NAME.read", ReadJson),
        ("prices.MODEL", Price),
    ]
    return "\n".join(_table(name, model) for name, model in sections if children_of(model))


def _table(section: str, model: Any) -> str:
    top = section.partition(".")[0]
    lines = [f"### `[{section}]`" if section else "### Top level", ""]
    if section:
        scope = "" if top in REPOSITORY_KEYS else " Only in your own config.toml."
        lines += [f"{Settings.model_fields[top].description}{scope}", ""]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        if not children_of(field.annotation) and name != "agents":
            lines.append(f"| `{field.alias or name}` | {_default(field)} | {field.description} |")
    return "\n".join([*lines, ""])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    return "not set" if field.default is None else f"`{json.dumps(field.default)}`"
