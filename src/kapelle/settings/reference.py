"""The tables of docs/configuration.md, made from the models."""

import json
from typing import Any

from kapelle.settings.models import REPOSITORY_KEYS, AgentSettings, Settings
from kapelle.settings.validation import children_of


def reference() -> str:
    """The tables of docs/configuration.md."""
    sections = [("", Settings), *children_of(Settings).items(), ("agents.NAME", AgentSettings)]
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
            default = "not set" if field.default is None else f"`{json.dumps(field.default)}`"
            lines.append(f"| `{field.alias or name}` | {default} | {field.description} |")
    return "\n".join([*lines, ""])
