"""Writes the documents that are made from the code: `make docs` runs it, tests compare."""

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

import click
from docs.records import client_records
from docs.services import idle_services
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kapelle.agents.base import Capabilities
from kapelle.agents.registry import get
from kapelle.api import app
from kapelle.cli.commands import command_names, load
from kapelle.domain.learning import LearningSpec
from kapelle.domain.options import KEY
from kapelle.domain.schedule import ScheduleSpec
from kapelle.domain.specs import Spec, TaskSpec
from kapelle.domain.template import TemplateSpec
from kapelle.patterns import registry
from kapelle.patterns.context import Context
from kapelle.patterns.results import Checked, Merged, RunResult, Scored, TaskResult
from kapelle.patterns.spec import PatternSpec
from kapelle.settings import AgentSettings, Settings
from kapelle.settings.config import list_children
from kapelle.settings.models import REPOSITORY_KEYS, DockerSettings, Price, ReadJson

DOCS = Path(__file__).parent
SCHEMAS = DOCS.parent / "src" / "kapelle" / "cli" / "schemas.json"
Parts = Mapping[str, str]


def documents() -> dict[str, str]:
    """Every document that is made from the code as a whole or in parts, as it should be."""
    parts: dict[str, Parts] = {
        "agents.md": {"agents": agents()},
        "configuration.md": {"settings": configuration()},
        **options(),
        **context(),
    }
    pages = {name: with_parts(_page(name), made) for name, made in parts.items()}
    records = client_records(app.openapi(idle_services()))
    return {
        "openapi.json": openapi(),
        "cli.md": cli(),
        "../src/kapelle/client/records.py": records,
        **pages,
    }


def with_parts(page: str, parts: Parts) -> str:
    """A page with new content between the marks of each part; raises ValueError without marks."""
    for name, content in parts.items():
        begin, end = f"<!-- made by make docs: {name} -->\n", "<!-- end of that -->"
        found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", page, re.DOTALL)
        if found is None:
            raise ValueError(f"there is no place for: {name}")
        made = f"{begin}\n{content.strip()}\n\n{end}"
        page = page[: found.start()] + made + page[found.end() :]
    return page


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def openapi() -> str:
    """docs/openapi.json, from the table of operations."""
    return json.dumps(app.openapi(idle_services()), indent=2, ensure_ascii=False) + "\n"


_CLI_INTRODUCTION = """\
# The command line

Ids and data go to standard output, remarks and errors to standard error. Every command that reports
something takes `--json`. Exit codes: 0 done, 1 the work failed, 2 usage or error, 3 input needed,
130 interrupted.
Terminals show the last five letters of ids, and four or more that only one ends or
begins with may be typed.
Without an id, some commands take the newest task or run of the repository around them.

`KAPELLE_HOME` chooses the home; with `KAPELLE_URL` and `KAPELLE_TOKEN` the command line talks to
a daemon over TCP instead of the private socket.

This page is made by `make docs` from the program's own help.
"""


def cli() -> str:
    """docs/cli.md, from the commands' own help."""
    parts = [_CLI_INTRODUCTION]
    for name in command_names():
        parts += _command_sections(load(name), name, "##")
    return "\n".join(parts)


def _command_sections(command: click.Command, title: str, level: str) -> Iterator[str]:
    """A command's help, then that of the commands inside it."""
    yield f"{level} {title}\n\n```text\n{_command_help(command, f'kapelle {title}')}\n```\n"
    for inner in getattr(command, "commands", {}).values():
        yield from _command_sections(inner, f"{title} {inner.name}", f"{level}#")


def _command_help(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path, terminal_width=100, max_content_width=100,
                            help_option_names=["-h", "--help"])  # fmt: skip
    text = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines())


def configuration() -> str:
    """The tables of docs/configuration.md."""
    sections = [
        ("", Settings),
        *list_children(Settings).items(),
        ("workspace.docker", DockerSettings),
        ("agents.NAME", AgentSettings),
        ("agents.NAME.read", ReadJson),
        ("prices.MODEL", Price),
    ]
    return "\n".join(
        _settings_table(name, model) for name, model in sections if list_children(model)
    )


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """What stands below each field of a model, or of one that it is made from."""
    found: dict[str, str] = {}
    for one in (one for one in reversed(model.__mro__) if one.__module__.startswith("kapelle.")):
        [made] = ast.parse(inspect.getsource(one)).body
        for field, below in pairwise(made.body if isinstance(made, ast.ClassDef) else ()):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = inspect.cleandoc(text)
    return found


def _settings_table(section: str, model: Any) -> str:
    top = section.partition(".")[0]
    lines = [f"### `[{section}]`" if section else "### Top level", ""]
    if section:
        scope = "" if top in REPOSITORY_KEYS else " Only in your own config.toml."
        lines += [f"{_docstrings(Settings)[top]}{scope}", ""]
    told = _docstrings(model)
    rows = []
    for name, field in model.model_fields.items():
        if not list_children(field.annotation) and name != "agents":
            about = told.get(name, field.description)
            rows.append(f"| `{field.alias or name}` | {_settings_default(field)} | {about} |")
    if rows:
        lines += ["| key | default | meaning |", "|---|---|---|", *rows]
    else:
        # It holds tables alone, which stand below.
        names = ", ".join(f"`[{section}.{name}]`" for name in model.model_fields)
        lines.append(f"Tables: {names}.")
    return "\n".join([*lines, ""])


def _settings_default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    return "not set" if field.default is None else f"`{json.dumps(field.default)}`"


_AGENTS = {
    **{
        name: AgentSettings(model="m")
        for name in ("claude", "codex", "gemini", "opencode", "aider", "qwen", "copilot")
    },
    "acp": AgentSettings(type="acp", command=["claude-agent-acp"]),
    "anthropic": AgentSettings(model="m"),
    "openai": AgentSettings(model="m"),
    "command": AgentSettings(
        command=["x", "{model}", "{system}", "{session}", "{prompt}"],
        output="json",
        read={"session": "id", "result": "text"},
    ),
    "rehearsal": AgentSettings(),
}
_COLUMNS = {
    "resume": "resume",
    "fork": "fork",
    "model": "model",
    "turns limit": "max_turns",
    "budget limit": "budget",
    "system prompt": "system_prompt",
    "MCP": "mcp",
    "ACP": "acp",
    "usage": "usage",
    "cost": "cost",
    "list of tools": "tools",
    "kept from writing": "read_only",
}


def agents() -> str:
    """The table of docs/agents.md; what Kapelle does for an agent that cannot is said so."""
    lines = ["| agent | tested | " + " | ".join(_COLUMNS) + " |"]
    lines.append("|---" * (len(_COLUMNS) + 2) + "|")
    settings = Settings(agents=_AGENTS)
    for name in _AGENTS:
        agent = get(name, settings)
        cells = [_capability(field, agent.capabilities) for field in _COLUMNS.values()]
        lines.append(f"| `{name}` | {agent.tested or ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _capability(field: str, capabilities: Capabilities) -> str:
    if getattr(capabilities, field):
        return "own" if field in {"max_turns", "budget", "cost"} else "yes"
    # Without an option of its own, what it reports is counted, and it is stopped.
    if field in {"max_turns", "budget"} and capabilities.usage:
        return "watched"
    if field == "cost" and capabilities.usage:
        return "price table"
    return ""


def schemas() -> str:
    """src/kapelle/cli/schemas.json: the specs as the command line knows them, each thing once.

    A field that is one of every pattern's stands with "pattern", and elsewhere by its name alone.
    """
    made, shared = specs(), dict[str, Any]()
    common = made["pattern"]["properties"]
    for name, schema in made.items():
        shared |= schema.pop("$defs")
        fields = {} if name == "pattern" else schema["properties"]
        for key in [key for key, shape in fields.items() if shape == common.get(key)]:
            fields[key] = None
    return json.dumps({"$defs": shared, **made}, indent=1, ensure_ascii=False) + "\n"


def specs() -> dict[str, dict[str, Any]]:
    """What the command line makes options of, by what it is called."""
    found: dict[str, type[BaseModel]] = {
        "task": TaskSpec, "schedule": ScheduleSpec, "learning": LearningSpec,
        "template": TemplateSpec, "pattern": PatternSpec, **_SPECS,
    }  # fmt: skip
    made = {name: _for_people(spec.model_json_schema()) for name, spec in found.items()}
    return {name: _read(schema) for name, schema in made.items()}


# Of a shape the command line reads these; how long a text may be, the daemon knows.
_BY_NAME = {"$defs", "properties", "patternProperties"}
_AS_IT_IS = {KEY, "$ref", "const", "default", "description", "enum", "maximum", "minimum"}
_SHAPES = {"additionalProperties", "allOf", "anyOf", "items", "oneOf", "required", "type"}


def _read(shape: Any) -> Any:
    """A shape without what the command line does not read."""
    if isinstance(shape, list):
        return [_read(one) for one in shape]
    if not isinstance(shape, dict):
        return shape
    found = {key: part for key, part in shape.items() if key in _AS_IT_IS}
    found |= {key: _read(part) for key, part in shape.items() if key in _SHAPES}
    for key in _BY_NAME & shape.keys():
        found[key] = {name: _read(one) for name, one in shape[key].items()}
    return {key: found[key] for key in shape if key in found}


def _for_people(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the fields that nobody types, and what only these refer to."""
    typed = {
        name: shape
        for name, shape in schema["properties"].items()
        if not (about := shape.get(KEY, {})).get("hidden") or "flags" in about
    }
    shared = schema.get("$defs", {})
    others = json.dumps({**typed, "$defs": shared})
    used = {name: shape for name, shape in shared.items() if f'/{name}"' in others}
    return {**schema, "$defs": used, "properties": typed}


_SPECS = {pattern.name: pattern.spec for pattern in registry.load_built_in()}


def options() -> dict[str, Parts]:
    """The tables in the pages of the patterns, from commands and specifications."""
    found: dict[str, Parts] = {"runs.md": {"options": _shared_options()}}
    for name, spec in _SPECS.items():
        page = f"{name}.md"
        # A page may ask for the fields of another model that stands beside the spec.
        models = re.findall(r"<!-- made by make docs: fields of (\w+) -->", _page(page))
        beside = vars(sys.modules[spec.__module__])
        tables = {f"fields of {model}": _spec_fields(beside[model]) for model in models}
        found[page] = {"options": _own_options(name), **tables}
    return found


def _own_options(name: str) -> str:
    """What a pattern takes beside what all take, then what is for the command line alone."""
    fields = {
        key: field
        for key, field in _SPECS[name].model_fields.items()
        if key not in PatternSpec.model_fields
    }
    shared = PatternSpec.model_fields
    parameters = [item for item in load(name).params if not _field_of(item, shared)]
    named = _named(parameters, fields)
    rows = [_row(", ".join(named.get(key, ())), key, field) for key, field in fields.items()]
    only = [item for item in parameters if not _field_of(item, fields)]
    shown = [f"| {_option(item)} | | | {_sentence(item.help or '')} |" for item in only]
    return "\n".join([*_HEAD, *rows, *shown])


def _shared_options() -> str:
    fields = PatternSpec.model_fields
    parameters = [item for item in load("loop").params if _field_of(item, fields)]
    named = _named(parameters, fields)
    rows = [_row(", ".join(named.get(key, ())), key, field) for key, field in fields.items()]
    return "\n".join([*_HEAD, *rows])


def _spec_fields(spec: type[Spec]) -> str:
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
        if key := _field_of(item, fields):
            found.setdefault(key, []).append(_option(item))
    return found


def _field_of(parameter: Any, fields: Mapping[str, object]) -> str:
    """The field that a parameter fills: its name, or the beginning of it."""
    name = str(parameter.name)
    near = [key for key in fields if name == key or name.startswith(f"{key}_")]
    return max(near, key=len, default="")


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


_RESULTS = (TaskResult, Checked, Scored, Merged, RunResult)


def context() -> dict[str, Parts]:
    """The parts of docs/patterns.md: what a pattern may call, from the Context itself."""
    return {"patterns.md": {"methods": methods(), "results": results()}}


def methods() -> str:
    """Every method with its parameters and what it promises."""
    lines = []
    for name, member in vars(Context).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"- **`ctx.{name}`**: {_text(member)}")
        elif inspect.isfunction(member):
            lines.append(f"- **`ctx.{name}{_signature(member)}`**: {_text(member)}")
    return "\n".join(lines)


def _signature(function: Any) -> str:
    shown: list[str] = []
    starred = False
    for item in inspect.signature(function).parameters.values():
        if item.name == "self":
            continue
        if item.kind is item.KEYWORD_ONLY and not starred:
            starred = True
            if not any(word.startswith("*") for word in shown):
                shown.append("*")
        shown += _parameters(item)
        starred = starred or item.kind is item.VAR_POSITIONAL
    returned = inspect.signature(function).return_annotation
    return f"({', '.join(shown)})" + ("" if returned is None else f" → {_type(returned)}")


def _parameters(item: inspect.Parameter) -> list[str]:
    """A parameter as it is written; those of a TypedDict each for itself."""
    if item.kind is item.VAR_KEYWORD and get_origin(item.annotation) is Unpack:
        return [f"{name}=…" for name in get_args(item.annotation)[0].__annotations__]
    return [_parameter(item)]


def _parameter(item: inspect.Parameter) -> str:
    if item.default is not item.empty:
        return f"{item.name}={item.default!r}"
    if item.kind is item.VAR_POSITIONAL:
        return f"*{item.name}"
    return f"**{item.name}" if item.kind is item.VAR_KEYWORD else str(item.name)


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    # A type variable says nothing to whoever does not see the others.
    return re.sub(r"~\w+", "object", re.sub(r"\b(?:\w+\.)+", "", text))


def _text(member: Any) -> str:
    return " ".join((inspect.getdoc(member) or "").split())


def results() -> str:
    """What the methods give back, with every field."""
    lines = ["| result | what it is | fields |", "|---|---|---|"]
    for kind in _RESULTS:
        lines.append(f"| `{kind.__name__}` | {_text(kind)} | {', '.join(_result_fields(kind))} |")
    return "\n".join(lines)


def _result_fields(kind: type[BaseModel]) -> list[str]:
    bases = [base for base in kind.__mro__ if base.__module__.startswith("kapelle.")]
    members = {name: member for base in bases for name, member in vars(base).items()}
    own = [name for name, member in members.items() if isinstance(member, property)]
    return [f"`{name}`" for name in (*own, *kind.model_fields)]


if __name__ == "__main__":
    if SCHEMAS.read_text(encoding="utf-8") != schemas():
        SCHEMAS.write_text(schemas(), encoding="utf-8")
        # Once more from the start: the commands, and so their help, were made of the old ones.
        os.execv(sys.executable, [sys.executable, "-m", "docs.generate"])
    for name, text in documents().items():
        (DOCS / name).write_text(text, encoding="utf-8")
