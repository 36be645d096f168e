"""The tables of options in the pages of the patterns, made from commands and specifications."""

from enum import Enum
from typing import Any

from pydantic.fields import FieldInfo

from kapelle import pages
from kapelle.cli.commands import load
from kapelle.cli.patterns.options import SHARED
from kapelle.domain.specs import Spec
from kapelle.patterns.best_of import BestOfSpec
from kapelle.patterns.loop import LoopSpec
from kapelle.patterns.pipeline import PipelineSpec, StepSpec
from kapelle.patterns.spec import PatternSpec
from kapelle.patterns.team import TeamSpec

_SPECS: dict[str, type[PatternSpec]] = {
    "pipeline": PipelineSpec,
    "loop": LoopSpec,
    "team": TeamSpec,
    "best-of": BestOfSpec,
}
# Options that are not called as the field that they fill.
_FIELDS = {
    "prompts": "steps", "step": "steps", "file": "steps", "prompt_file": "prompt",
    "goal_file": "goal", "criteria": "success_criteria", "score": "eval", "minimize": "direction",
    "maximize": "direction", "candidate": "candidates", "check": "checks",
    "fallback": "fallback_agents", "worktree": "workspace", "in_place": "workspace",
    "non_interactive": "ask", "cooldown": "cooldown_s", "eval_timeout": "eval_timeout_s",
    "task_timeout": "task_timeout_s", "budget": "budget_usd",
}  # fmt: skip


def tables() -> dict[str, pages.Parts]:
    """The made parts of every page."""
    found = {f"{name}.md": {"options": _own(name)} for name in _SPECS}
    found["pipeline.md"] |= {"fields of a step": _fields(StepSpec)}
    found["runs.md"] = {"options": _shared()}
    return dict(found)


def _own(name: str) -> str:
    """What a pattern takes beside what all take, then what is for the command line alone."""
    fields = {
        key: field
        for key, field in _SPECS[name].model_fields.items()
        if key not in PatternSpec.model_fields
    }
    parameters = [item for item in load(name).params if item.name not in SHARED]
    named = _named(parameters, fields)
    rows = [_row(", ".join(named.get(key, ())), key, field) for key, field in fields.items()]
    only = [item for item in parameters if _field_of(item) not in fields]
    shown = [f"| {_option(item)} | | | {_sentence(item.help)} |" for item in only]
    return "\n".join([*_HEAD, *rows, *shown])


def _shared() -> str:
    fields = PatternSpec.model_fields
    parameters = [item for item in load("loop").params if item.name in SHARED]
    named = _named(parameters, fields)
    rows = [_row(", ".join(named.get(key, ())), key, field) for key, field in fields.items()]
    return "\n".join([*_HEAD, *rows])


def _fields(spec: type[Spec]) -> str:
    rows = [
        f"| `{key}` | {_default(field)} | {_cell(field.description or '')} |"
        for key, field in spec.model_fields.items()
    ]
    return "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])


_HEAD = ("| option | field | default | meaning |", "|---|---|---|---|")


def _named(parameters: list[Any], fields: dict[str, FieldInfo]) -> dict[str, list[str]]:
    """The options of each field."""
    found: dict[str, list[str]] = {}
    for item in parameters:
        if _field_of(item) in fields:
            found.setdefault(_field_of(item), []).append(_option(item))
    return found


def _field_of(parameter: Any) -> str:
    name = str(parameter.name)
    return _FIELDS.get(name, name)


def _option(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    return ", ".join(f"`{word}`" for word in parameter.opts)


def _row(option: str, key: str, field: FieldInfo) -> str:
    return f"| {option} | `{key}` | {_default(field)} | {_cell(field.description or '')} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value in (None, [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _sentence(text: str) -> str:
    """A help text as the other meanings are written."""
    words = _cell(text).rstrip(".")
    return words if words[1:2].isupper() else words[:1].lower() + words[1:]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
