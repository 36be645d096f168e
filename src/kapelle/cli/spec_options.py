"""Options of commands, made of the JSON schema of a spec, and the spec that they ask for.

Built-in specs come from schemas.json, which `make docs` makes of them: pydantic costs more than all
the rest of a command. Other patterns' come from the daemon.
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer

from kapelle.cli import values
from kapelle.cli.config import current
from kapelle.cli.format import one_line
from kapelle.cli.ids import completing
from kapelle.cli.values import read_prompt, read_prompts
from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.options import KEY
from kapelle.domain.times import format_duration

Schema = dict[str, Any]
Params = Mapping[str, Any]
SpecFields = dict[str, Any]

_METAVARS = {
    "boolean": "", "object": "JSON", "pairs": "NAME=VALUE", "any": "VALUE", "integer": "NUMBER",
    "number": "NUMBER",
}  # fmt: skip
_TYPES = {"boolean": bool, "integer": int, "directory": Path}
# How one value is read, and how all that were given for one field are.
_ONE: dict[str, Callable[[Any, str], Any]] = {
    "agent": values.agent,
    "any": values.json_or_text,
    "directory": lambda typed, _: absolute_directory(typed),
    "json_file": lambda typed, flag: values.json_object(values.not_empty(typed, flag), flag),
    "number": values.number,
    "object": values.json_or_text,
    "text": values.not_empty,
    "usd": values.usd,
}
_ALL: dict[str, Callable[[Any, str], Any]] = {
    "environment": values.environment,
    "list": values.texts_or_objects,
    "names": values.listed,
    "pairs": values.pairs,
    "servers": values.mcp_servers,
}
# What people type who look for the runs of a pattern.
OF_RUNS = frozenset({"list", "ls", "status", "cancel", "pause", "resume", "result", "tail"})
# What parameters of commands are called that start work, whatever that is.
_TAKEN = frozenset(
    {"follow", "as_json", "every", "whole_file", "var", "resume", "answer", "progress"}
)
_FIELD = re.compile(r"`([\w.]+)`|(?:^|(?<=[;:] ))([^\n;:]+?)(?= (?:is|must|may|holds)\b)")
_SETTINGS = ("the configuration", "environment variable ")
_REPEATED = frozenset({"check", "prompts", *_ALL})


@cache
def schemas() -> dict[str, Schema]:
    """The schemas of tasks, schedules and built-in patterns by what they are called."""
    text = files("kapelle.cli").joinpath("schemas.json").read_text(encoding="utf-8")
    found: dict[str, Schema] = json.loads(text)
    shared = found.pop("$defs")
    common = found["pattern"]["properties"]
    for schema in found.values():
        fields = schema["properties"].items()
        schema["$defs"] = shared
        schema["properties"] = {name: shape or common[name] for name, shape in fields}
    return found


def built_in() -> dict[str, str]:
    """The patterns that have a command of their own, with what each does."""
    return {
        name: schema[KEY]["summary"]
        for name, schema in schemas().items()
        if name not in {"task", "pattern", "schedule", "learning", "template"}
    }


class SpecOption:
    """One field of a spec as an option, or as an argument; about is its metadata."""

    def __init__(self, path: tuple[str, ...], shape: Schema, required: bool, shared: Schema):
        self.path, self.required, self.default = path, required, shape.get("default")
        self.about: Mapping[str, Any] = shape.get(KEY, {})
        outer = resolved(shape, shared)
        is_list = outer.get("type") == "array"
        if is_list:
            self.limits = resolved(outer.get("items", {}), shared)
        else:
            self.limits = outer
        self.kind: str = self.about.get("kind") or _kind(self.limits)
        self.repeatable = is_list or self.kind in _REPEATED
        words = (str(value) for value in self.limits.get("enum", ()) if value is not None)
        self.choices = tuple(words)
        # A stranger may have written it.
        self.help = one_line(self.about.get("help") or shape.get("description") or "")
        # What a check may be called besides its command.
        if self.kind == "check":
            built_in = self.limits["properties"]["kind"]
        else:
            built_in = {}
        self.checks = resolved(built_in, shared).get("enum", ())[1:]
        self.names: tuple[str, ...] = tuple(self.about.get("names", ()))
        if not any(name.startswith("--") for name in self.names):
            name = path[-1].replace("_", "-")
            # What is on unless it is turned off.
            off = self.kind == "boolean" and self.default and "flags" not in self.about
            self.names += (f"--{name}/--no-{name}" if off else f"--{name}",)

    @property
    def key(self) -> str:
        return self.path[0]

    @property
    def name(self) -> str:
        """What the parameter of the command is called; a field may be called as Python may not, or
        as the command's own."""
        name = re.sub(r"\W", "_", "_".join(self.path))
        if iskeyword(name) or name in _TAKEN:
            return f"{name}_"
        return name

    @property
    def flag(self) -> str:
        name = next((name for name in self.names if name.startswith("--")), self.names[0])
        return name.partition("/")[0]

    @property
    def metavar(self) -> str:
        """What stands behind the option in the help; nothing for one that is on or off."""
        if given := self.about.get("metavar"):
            return str(given)
        if self.choices:
            return one_line("|".join(self.choices))
        if self.kind == "object" and self.repeatable:
            return "TEXT|JSON"  # a step or a check may be told in short
        return _METAVARS.get(self.kind, self.kind.upper())

    @property
    def shown_help(self) -> str:
        """A sentence, with what it is without the option, and whether it may be repeated."""
        words = self.help.rstrip(".")
        if self.default not in (None, [], {}, False, ""):
            if self.kind == "boolean":
                default = "on"
            else:
                default = self.default
            if self.kind == "duration":
                default = format_duration(self.default)
            elif isinstance(default, dict):
                default = " ".join(f"{name}={value}" for name, value in default.items())
            words = f"{words} (default {default})".lstrip()
        if self.required and self.kind != "directory":
            words = f"{words} (required)".lstrip()
        if not words:
            return ""
        return f"{words[0].upper()}{words[1:]}{'; repeatable' if self.repeatable else ''}."

    def value(self, typed: Any, params: Params) -> Any:
        """What was typed as a value of the field; None where nothing was."""
        if self.kind == "check":
            limit = params.get(f"{self.name}_timeout")
            named = self.about.get("timeout", ("",))[0]
            if limit is None:
                timeout_s = None
            else:
                timeout_s = values.duration_s(limit, named)
            return [self._check(check, timeout_s) for check in typed or ()] or None
        if typed is None or (self.repeatable and not typed):
            return None
        if self.kind in _ALL:
            return _ALL[self.kind](typed, self.flag)
        if self.kind == "moment":
            return values.future_time(typed, self.flag, params.get("timezone"))
        if self.kind == "duration":
            return values.duration_s(typed, self.flag, least=self.limits.get("minimum"))
        if self.repeatable:
            return [self._one(part) for part in typed]
        return self._one(typed)

    def _one(self, typed: Any) -> Any:
        if self.kind in _ONE:
            found = _ONE[self.kind](typed, self.flag)
        else:
            found = typed
        if not self.choices:
            return found
        same = (word for word in self.choices if word.lower() == found.lower())
        return values.choice(self.flag, next(same, found), self.choices)

    def _check(self, text: str, timeout_s: float | None) -> Any:
        if not text.strip():
            raise InvalidInput(
                f"{self.flag} is empty.",
                hint=f'Write a command, for example {self.flag} "make test".',
            )
        spec = _object_or_text(text)
        if timeout_s is None:
            return spec
        if isinstance(spec, str):
            if spec in self.checks:
                spec = {"kind": spec}
            else:
                spec = {"command": spec}
        return {**spec, "timeout_s": timeout_s}


def options_of(schema: Schema) -> list[SpecOption]:
    """The options in the order of the schema; the fields of a group are options of their own."""
    shared = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    found: list[SpecOption] = []
    for key, shape in schema.get("properties", {}).items():
        about = shape.get(KEY, {})
        if "group" in about:
            inner = resolved(shape, shared)["properties"]
            for name, part in inner.items():
                facts = {**part.get(KEY, {}), "group": about["group"]}
                found.append(SpecOption((key, name), {**part, KEY: facts}, False, shared))
        else:
            found.append(SpecOption((key,), shape, key in required, shared))
    return found


def resolved(shape: Schema, shared: Schema) -> Schema:
    """The shape without references and without "or nothing"."""
    if "$ref" in shape:
        return resolved(shared.get(shape["$ref"].rpartition("/")[2], {}), shared)
    for word in ("anyOf", "oneOf", "allOf"):
        shapes = [part for part in shape.get(word, ()) if part.get("type") != "null"]
        if len(shapes) == 1:
            return resolved(shapes[0], shared)
    if "const" in shape:
        return {"enum": [shape["const"]], **shape}
    return shape


def _kind(shape: Schema) -> str:
    kind = shape.get("type", "text" if "enum" in shape else "any")
    if kind != "object":
        if kind == "string":
            return "text"
        return str(kind)
    parts = [*shape.get("patternProperties", {}).values(), shape.get("additionalProperties", {})]
    texts = [part for part in parts if isinstance(part, dict) and part.get("type") == "string"]
    if texts and "properties" not in shape:
        return "pairs"
    return "object"


def with_parameters(
    function: Callable[..., Any], schema: Schema, *groups: Sequence[SpecOption] | Mapping[str, Any]
) -> Callable[..., Any]:
    """The function as Typer takes it, with the help that is in the schema.

    A group has the options of fields, of which arguments come first, or parameters by name.
    """
    made: dict[str, Any] = {}
    for group in groups:
        if isinstance(group, Mapping):
            made |= group
            continue
        for option in sorted(group, key=lambda option: "argument" not in option.about):
            made |= _annotations(option)
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, annotation=found) for name, found in made.items()]
    facts = schema[KEY]
    function.__doc__ = "\n\n".join(filter(None, [facts["summary"], facts.get("about")]))
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _annotations(option: SpecOption) -> dict[str, Any]:
    about = option.about
    made = dict[str, Any]()

    def add(name: str, kind: Any, *names: str, **facts: Any) -> None:
        made[name] = Annotated[kind, typer.Option(None, *names, **facts)]

    if argument := about.get("argument"):
        if option.repeatable:
            texts: Any = list[str]
        else:
            texts = str
        info = typer.Argument(metavar=argument, help=about["help"], show_default=False)
        made[option.name] = Annotated[texts | None, info]
        if more := about.get("more"):
            add(f"{option.name}_more", list[str] | None, more[0], metavar=argument, help=more[1])
    else:
        for name, _, help in about.get("flags", ()):
            add(_flag_name(option, name), bool | None, name, help=help)
    if not argument and not about.get("hidden"):
        facts: dict[str, Any] = {"help": option.shown_help, "metavar": option.metavar or None}
        if option.kind == "integer":
            facts |= {"min": option.limits.get("minimum"), "max": option.limits.get("maximum")}
        if complete := about.get("complete"):
            facts["autocompletion"] = completing(complete)
        kind: Any = _TYPES.get(option.kind, str)
        add(option.name, (list[kind] if option.repeatable else kind) | None, *option.names, **facts)
    if file := about.get("file"):
        add(f"{option.name}_file", Path | None, file[0], metavar="FILE", help=file[1])
    if not argument and (limit := about.get("timeout")):
        add(f"{option.name}_timeout", str | None, limit[0], metavar="DURATION", help=limit[1])
    return made


def _flag_name(option: SpecOption, flag: str) -> str:
    return f"{option.name}_{flag.strip('-').replace('-', '_')}"


def spec_of(options: Sequence[SpecOption], params: Params, command: str = "") -> SpecFields:
    """What was asked for; what was not given is left to the daemon.

    With a command, its arguments are read too, from stdin if need be, when all else is known.
    """
    spec: SpecFields = {}
    for option in sorted(options, key=lambda option: "argument" in option.about):
        if "argument" not in option.about:
            _take(spec, option, _given(option, params))
        elif command:
            _read_argument(spec, option, params, command)
    for option in options:
        if option.key in spec:
            for key, value in option.about.get("implies", {}).items():
                spec.setdefault(key, value)
    return spec


def _take(spec: SpecFields, option: SpecOption, value: Any) -> None:
    """Put a value in its place; nothing is left out."""
    if value is None:
        return
    *around, last = option.path
    place = spec
    for part in around:
        place = place.setdefault(part, {})
    place[last] = value
    for name, implied in option.about.get("group", {}).items():
        place.setdefault(name, implied)


def _given(option: SpecOption, params: Params) -> Any:
    if option.kind == "prompts":
        return params.get(option.name) or None
    typed = params.get(option.name)
    file = params.get(f"{option.name}_file")
    if file is not None:
        text = read_prompt(None, file, "Write one in each line.", option.about["file"][0])
        found = (re.sub(r"^\s*[-*]\s", "", line).strip() for line in text.splitlines())
        typed = [*(typed or ()), *filter(None, found)]
    value = option.value(typed, params)
    if value is not None:
        set_by = {option.flag: value}
    else:
        set_by = {}
    for name, meant, _ in option.about.get("flags", ()):
        if params.get(_flag_name(option, name)):
            set_by[name] = meant
    if len(set(map(str, set_by.values()))) > 1:
        raise InvalidInput(
            f"{' and '.join(set_by)} exclude each other.", hint="Leave one of them out."
        )
    return next(iter(set_by.values()), None)


def _read_argument(spec: SpecFields, option: SpecOption, params: Params, command: str) -> None:
    typed = params.get(option.name)
    file = params.get(f"{option.name}_file")
    about = option.about
    if typed is None and file is None and spec.get("interactive"):
        spec[option.key] = ""  # it is typed in the terminal
        return
    if option.repeatable:
        prompts = [*(typed or ()), *(params.get(f"{option.name}_more") or ())]
        spec[option.key] = _read_list(option, prompts, command)
        return
    later = about.get("before", "")
    followers = spec.get(later)
    words = f'Write --{later.removesuffix("s")} "what to do", or leave it out.'
    if followers and typed is None and file is None:
        spec[later] = read_prompts(followers, words, 1)
        return
    if typed in OF_RUNS and command != "run":
        raise InvalidInput(
            f"{typed!r} is taken for no {option.key}, but for a command.",
            hint=f"Write `kapelle runs {typed}`, or `kapelle runs list --pattern {command}`.",
        )
    hint = f'Write `kapelle {command} "what to do"`' + (
        f", `{about['file'][0]} FILE`, or pipe it in with `-`." if about.get("file") else "."
    )
    if typed is None and file is None and about.get("ask"):
        from kapelle.cli.follow import can_ask, read_line

        if can_ask():
            typed = read_line(about["ask"]) or ""
            if params.get("follow") and not params.get("as_json"):
                spec.update({**about.get("asked", {}), **spec})
    text = read_prompt(typed, file, hint, option.key)
    if followers:
        spec[later] = [text, *read_prompts(followers, words, 2)]
    else:
        spec[option.key] = text


def _read_list(option: SpecOption, prompts: list[str], command: str) -> list[Any]:
    """The texts of a list of prompts; how many there may be, the daemon says."""
    example = f'Write `kapelle {command} "design it" {option.about["more"][0]} "implement it"`.'
    values.refuse((not prompts and option.required, f"There are no {option.key}.", example))
    return read_prompts([*map(_object_or_text, prompts)], example, 1)


def _object_or_text(text: str) -> Any:
    """A step or a check, which may be told in short."""
    with suppress(ValueError):
        if text.lstrip().startswith("{"):
            return json.loads(text)
        return text
    return text


@contextmanager
def spelled(options: Sequence[SpecOption]) -> Iterator[None]:
    """Lets an error name options where it names fields: in backticks, or before what is wrong."""
    names = {".".join(option.path): _spelling(option) for option in options}

    def spelling(match: re.Match[str]) -> str:
        place = match[1] or match[2]
        before = match.string[: match.start()].partition(": ")[0]
        field, _, part = place.partition(".")
        # A setting, behind the file that it stands in, may be called like a field.
        if match[2] and ("/" in before or before.startswith(_SETTINGS)):
            return match[0]
        if place in names or field not in names:
            return names.get(place, match[0])
        number, _, rest = part.partition(".")
        if number.isdigit():
            part = f"number {int(number) + 1}" + f": {rest}" * bool(rest)
        return f"{names[field]} {part}"

    try:
        yield
    except KapelleError as error:
        error.args = (_FIELD.sub(spelling, error.message),)
        raise


def _spelling(option: SpecOption) -> str:
    flags = option.about.get("flags")
    if flags and option.kind != "boolean":
        return " or ".join(name for name, _, _ in flags)
    named = option.about.get("argument") or option.flag
    return " or ".join([named, *option.about.get("more", ())[:1]])


def absolute_directory(directory: Path | None) -> str:
    """The directory as an absolute path; it must be one that exists here."""
    if directory is None:
        given = Path()
    else:
        given = Path(values.not_empty(str(directory), "--directory"))
    path = os.path.abspath(given if given.is_absolute() else current() / given)
    # With a URL the daemon may stand on another machine.
    if not os.path.isdir(path) and not os.environ.get("KAPELLE_URL"):
        raise InvalidInput(f"{directory} is not a directory.", hint="Use -C with one that exists.")
    return path
