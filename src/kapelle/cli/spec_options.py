"""Options of commands, made of the JSON schema of a spec, and the spec that they ask for.

Built-in specs come from schemas.json, which `make docs` makes of them: pydantic costs more than all
the rest of a command. Other patterns' come from the daemon.
"""

import inspect
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from kapelle.cli.config import current
from kapelle.cli.ids import complete_schedule, complete_task
from kapelle.cli.prompt import read_prompt
from kapelle.cli.values import (
    choice,
    duration_s,
    environment,
    key_values,
    listed,
    mcp_servers,
    not_empty,
    optional_usd,
)
from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.options import KEY

Schema = dict[str, Any]
Params = Mapping[str, Any]
Spec = dict[str, Any]

_COMPLETE = {"task": complete_task, "schedule": complete_schedule}
_REPEATED = frozenset({"check", "environment", "list", "names", "pairs", "prompts", "servers"})
_METAVARS = {
    "boolean": "", "object": "JSON", "pairs": "NAME=VALUE", "any": "VALUE", "integer": "NUMBER",
    "number": "NUMBER",
}  # fmt: skip
_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0"})


@cache
def schemas() -> dict[str, Schema]:
    """The schemas of tasks, schedules and built-in patterns by what they are called."""
    text = files("kapelle.cli").joinpath("schemas.json").read_text(encoding="utf-8")
    found: dict[str, Schema] = json.loads(text)
    return found


def built_in() -> dict[str, str]:
    """The patterns that have a command of their own, with what each does."""
    return {
        name: schema[KEY]["summary"]
        for name, schema in schemas().items()
        if name not in {"task", "pattern", "schedule"}
    }


@dataclass(frozen=True)
class Option:
    """One field of a spec as an option, or as an argument."""

    path: tuple[str, ...]
    kind: str
    names: tuple[str, ...]
    about: Mapping[str, Any]
    help: str = ""
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.path[0]

    @property
    def name(self) -> str:
        """What the parameter of the command is called."""
        return "_".join(self.path)

    @property
    def flag(self) -> str:
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def metavar(self) -> str:
        """What stands behind the option in the help; nothing for one that is on or off."""
        if given := self.about.get("metavar"):
            return str(given)
        if self.choices:
            return "|".join(self.choices)
        if self.kind == "object" and self.repeatable:
            return "TEXT|JSON"  # a step or a check may be told in short
        return _METAVARS.get(self.kind, self.kind.upper())

    @property
    def shown_help(self) -> str:
        """A sentence, with whether it may be repeated."""
        words = self.help.rstrip(".")
        words = words[:1].upper() + words[1:]
        return f"{words}{'; repeatable' if self.repeatable and words else ''}." if words else ""

    def value(self, typed: Any, params: Params) -> Any:
        """What was typed as a value of the field; None where nothing was."""
        if self.kind == "check" and (limit := params.get(f"{self.name}_timeout")) is not None:
            duration_s(limit, self.about["timeout"][0])  # refused without checks too
        if typed is None or typed is False or (self.repeatable and not typed):
            return None
        if self.kind == "duration":
            return duration_s(typed, self.flag, none=self.limits.get("minimum") == 0)
        if self.kind == "check":
            return self._checks(typed, params)
        if self.kind in _READERS:
            return _READERS[self.kind](self.flag, typed)
        return [self._one(part) for part in typed] if self.repeatable else self._one(typed)

    def _one(self, typed: Any) -> Any:
        match self.kind:
            case "boolean":
                return _boolean(self.flag, typed)
            case "integer":
                return _integer(self.flag, typed)
            case "number":
                return _number(self.flag, typed)
            case "object" | "any":
                return _json_or_text(self.flag, typed)
        text = not_empty(typed, self.flag)
        if not self.choices:
            return text
        same = (word for word in self.choices if word.lower() == text.lower())
        return choice(self.flag, next(same, text), self.choices)

    def _checks(self, typed: Sequence[str], params: Params) -> list[Any]:
        """Checks as the API takes them; a plain string does unless there is a time limit."""
        limit = params.get(f"{self.name}_timeout")
        timeout_s = None if limit is None else duration_s(limit, self.about["timeout"][0])
        return [self._check(check, timeout_s) for check in typed]

    def _check(self, text: str, timeout_s: float | None) -> Any:
        if not text.strip():
            raise InvalidInput(
                f"{self.flag} is empty.",
                hint=f'Write a command, for example {self.flag} "make test".',
            )
        spec: Any = text
        if text.lstrip().startswith("{"):
            try:
                spec = json.loads(text)
            except ValueError:
                spec = text
        if timeout_s is None:
            return spec
        if isinstance(spec, str):
            spec = {"kind": spec} if spec in self.limits["kinds"] else {"command": spec}
        return {**spec, "timeout_s": timeout_s}


def _list(flag: str, typed: Sequence[str]) -> list[str]:
    """Values separated by commas, in which one may stand twice."""
    parts = [part.strip() for entry in typed for part in entry.split(",")]
    return [not_empty(part, flag) for part in parts]


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "usd": lambda flag, typed: optional_usd(typed, flag),
    "directory": lambda _, typed: absolute_directory(Path(typed)),
    "environment": lambda _, typed: environment(typed),
    "servers": lambda _, typed: mcp_servers(typed),
    "names": lambda flag, typed: listed(typed, flag),
    "list": _list,
    "json_file": lambda flag, typed: _json_file(flag, typed),
    "pairs": lambda flag, typed: _pairs(flag, typed),
}


def options_of(schema: Schema) -> list[Option]:
    """The options in the order of the schema; the fields of a group are options of their own."""
    shared = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    found: list[Option] = []
    for key, shape in schema.get("properties", {}).items():
        about = shape.get(KEY, {})
        if "group" in about:
            inner = _resolved(shape, shared)["properties"]
            for name, part in inner.items():
                facts = {**part.get(KEY, {}), "group": about["group"]}
                found.append(_option((key, name), {**part, KEY: facts}, False, shared))
        else:
            found.append(_option((key,), shape, key in required, shared))
    return found


def _option(path: tuple[str, ...], shape: Schema, required: bool, shared: Schema) -> Option:
    about = shape.get(KEY, {})
    outer = _resolved(shape, shared)
    is_list = outer.get("type") == "array"
    inner = _resolved(outer.get("items", {}), shared) if is_list else outer
    kind = about.get("kind") or _kind(inner)
    limits: Schema = dict(inner)
    limits |= {name: outer[name] for name in ("minItems", "maxItems") if name in outer}
    if kind == "check":
        limits["kinds"] = _resolved(inner["properties"]["kind"], shared)["enum"][1:]
    names = tuple(about.get("names", ()))
    if not any(name.startswith("--") for name in names):
        names = (*names, "--" + path[-1].replace("_", "-"))
    return Option(
        path=path,
        kind=kind,
        names=names,
        about=about,
        help=about.get("help") or shape.get("description") or "",
        required=required,
        default=shape.get("default"),
        choices=tuple(str(value) for value in inner.get("enum", ()) if value is not None),
        repeatable=is_list or kind in _REPEATED,
        limits=limits,
    )


def _resolved(shape: Schema, shared: Schema) -> Schema:
    """The shape without references and without "or nothing"."""
    if "$ref" in shape:
        return _resolved(shared.get(shape["$ref"].rpartition("/")[2], {}), shared)
    for word in ("anyOf", "oneOf", "allOf"):
        shapes = [part for part in shape.get(word, ()) if part.get("type") != "null"]
        if len(shapes) == 1:
            return _resolved(shapes[0], shared)
    if "const" in shape:
        return {"enum": [shape["const"]], **shape}
    return shape


def _kind(shape: Schema) -> str:
    match shape:
        case {"type": "boolean" | "integer" | "number" as kind}:
            return str(kind)
        case {"type": "string"} | {"enum": _}:
            return "text"
        case {"type": "object", "properties": _}:
            return "object"
        case {"type": "object", "additionalProperties": {"type": "string"}}:
            return "pairs"
        case {"type": "object", "patternProperties": found} if all(
            part.get("type") == "string" for part in found.values()
        ):
            return "pairs"
        case {"type": "object"}:
            return "object"
    return "any"


def parameters_of(options: Sequence[Option]) -> Iterator[inspect.Parameter]:
    """The parameters of a command with these options, as Typer takes them; arguments first."""
    for option in options:
        if option.about.get("argument"):
            yield from _argument_parameters(option)
    for option in options:
        if not option.about.get("argument"):
            yield from _option_parameters(option)


def _argument_parameters(option: Option) -> Iterator[inspect.Parameter]:
    about = option.about
    kind = list[str] if option.repeatable else str
    info = typer.Argument(metavar=about["argument"], help=about["help"], show_default=False)
    yield _parameter(option.name, kind, info)
    if more := about.get("more"):
        info = typer.Option(more[0], metavar=about["argument"], help=more[1])
        yield _parameter(f"{option.name}_more", list[str], info)
    if file := about.get("file"):
        info = typer.Option(file[0], metavar="FILE", help=file[1])
        yield _parameter(f"{option.name}_file", Path, info)


def _option_parameters(option: Option) -> Iterator[inspect.Parameter]:
    for name, _, help in option.about.get("flags", ()):
        yield _parameter(_flag_name(option, name), bool, typer.Option(name, help=help))
    if not option.about.get("hidden"):
        facts: dict[str, Any] = {"help": option.shown_help}
        if option.kind != "boolean":
            facts["metavar"] = option.metavar
        if option.kind == "integer" and not option.repeatable:
            facts |= {"min": option.limits.get("minimum"), "max": option.limits.get("maximum")}
        if complete := option.about.get("complete"):
            facts["autocompletion"] = _COMPLETE[complete]
        yield _parameter(option.name, _annotation(option), typer.Option(*option.names, **facts))
    if timeout := option.about.get("timeout"):
        info = typer.Option(timeout[0], metavar="DURATION", help=timeout[1])
        yield _parameter(f"{option.name}_timeout", str, info)


def _flag_name(option: Option, flag: str) -> str:
    return f"{option.name}_{flag.strip('-').replace('-', '_')}"


def _annotation(option: Option) -> Any:
    if option.repeatable:
        return list[str]
    if option.kind in {"directory", "json_file"}:
        return Path
    return {"boolean": bool, "integer": int}.get(option.kind, str)


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    default: Any = False if kind is bool else None
    annotation: Any = Annotated[kind if kind is bool else kind | None, info]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def spec_of(options: Sequence[Option], params: Params, command: str = "") -> Spec:
    """What was asked for; what was not given is left to the daemon.

    With a command, its arguments are read too, from stdin if need be.
    """
    spec: Spec = {}
    for option in options:
        if not option.about.get("argument"):
            _take(spec, option, _given(option, params))
    if command:
        for option in options:
            if option.about.get("argument"):
                _read_argument(spec, option, params, command)
    for option in options:
        if option.key in spec:
            for key, value in option.about.get("implies", {}).items():
                spec.setdefault(key, value)
    return spec


def _take(spec: Spec, option: Option, value: Any) -> None:
    """Put a value in its place; what is nothing, by default too, is left out."""
    if value is None or (not value and value == option.default):
        return
    *around, last = option.path
    place = spec
    for part in around:
        place = place.setdefault(part, {})
    place[last] = value
    for name, implied in option.about.get("group", {}).items():
        place.setdefault(name, implied)


def _given(option: Option, params: Params) -> Any:
    if option.kind == "prompts":
        return params.get(option.name) or None
    value = option.value(params.get(option.name), params)
    set_by = {option.flag: value} if value is not None else {}
    for name, meant, _ in option.about.get("flags", ()):
        if params.get(_flag_name(option, name)):
            set_by[name] = meant
    if len(set(map(str, set_by.values()))) > 1:
        raise InvalidInput(
            f"{' and '.join(set_by)} exclude each other.", hint="Leave one of them out."
        )
    return next(iter(set_by.values()), None)


def _read_argument(spec: Spec, option: Option, params: Params, command: str) -> None:
    typed, file = params.get(option.name), params.get(f"{option.name}_file")
    about = option.about
    if option.repeatable:
        prompts = [*(typed or ()), *(params.get(f"{option.name}_more") or ())]
        spec[option.key] = _read_list(option, prompts, command)
        return
    followers = spec.get(about.get("before", ""))
    words = f'Write {_more_flag(option)} "what to do", or leave it out.' if followers else ""
    if followers and typed is None and file is None:
        spec[about["before"]] = _read_prompts(followers, words, 1)
        return
    hint = f'Write `kapelle {command} "what to do"`' + (
        f", `{about['file'][0]} FILE`, or pipe it in with `-`." if about.get("file") else "."
    )
    if typed is None and file is None and about.get("ask"):
        from kapelle.cli.follow import can_ask, read_line

        if can_ask():
            typed = read_line(about["ask"]) or ""
    elif typed is None and file == Path("-"):
        typed, file = "-", None
    text = read_prompt(typed, file, hint, option.key)
    if followers:
        spec[about["before"]] = [text, *_read_prompts(followers, words, 2)]
    else:
        spec[option.key] = text


def _more_flag(option: Option) -> str:
    return "--" + str(option.about["before"]).removesuffix("s")


def _read_list(option: Option, prompts: list[str], command: str) -> list[str]:
    """The texts of a list of prompts, of which there must be so many."""
    least, most = option.limits.get("minItems", 0), option.limits.get("maxItems", math.inf)
    more = option.about["more"][0]
    example = f'Write `kapelle {command} "design it" {more} "implement it"`.'
    if not prompts:
        raise InvalidInput(f"There are no {option.key}.", hint=example)
    if len(prompts) < least:
        raise InvalidInput(
            f"There must be at least {least} {option.key}, not {len(prompts)}.",
            hint=f"Add {more} PROMPT; `kapelle run` is for a single task.",
        )
    if len(prompts) > most:
        raise InvalidInput(
            f"There may be at most {most} {option.key}, not {len(prompts)}.",
            hint="Join some of them.",
        )
    return _read_prompts(prompts, example, 1)


def _read_prompts(prompts: Sequence[str], hint: str, first: int) -> list[str]:
    if [*prompts].count("-") > 1:
        raise InvalidInput(
            "Only one step can come from stdin.", hint="Write the prompt of each other step."
        )
    return [
        read_prompt(prompt, None, hint, f"prompt of step {number}")
        for number, prompt in enumerate(prompts, first)
    ]


def spell(error: KapelleError, options: Sequence[Option]) -> None:
    """Put options in the place of the fields that an error names in backticks."""
    names = {".".join(option.path): _spelled(option) for option in options}

    def spelled(match: re.Match[str]) -> str:
        return names.get(match[1], match[0])

    error.args = (re.sub(r"`([\w.]+)`", spelled, error.message),)


def _spelled(option: Option) -> str:
    flags = option.about.get("flags")
    if flags and option.kind != "boolean":
        return " or ".join(name for name, _, _ in flags)
    return option.about.get("argument") or option.flag


def absolute_directory(directory: Path | None) -> str:
    """The directory as an absolute path; it must be one that exists here."""
    given = Path(not_empty(str(directory), "--directory")) if directory is not None else Path()
    path = os.path.abspath(given if given.is_absolute() else current() / given)
    # With a URL the daemon may stand on another machine.
    if not os.path.isdir(path) and not os.environ.get("KAPELLE_URL"):
        raise InvalidInput(f"{directory} is not a directory.", hint="Use -C with one that exists.")
    return path


def _boolean(flag: str, typed: Any) -> bool:
    if typed is True:
        return True
    word = typed.strip().lower()
    if word not in _YES | _NO:
        raise InvalidInput(f"{flag} is on or off, not {typed!r}.", hint=f"Write {flag} alone.")
    return word in _YES


def _integer(flag: str, typed: Any) -> int:
    try:
        return int(typed)
    except ValueError:
        raise InvalidInput(
            f"{flag} is a whole number, not {typed!r}.", hint=f"Write {flag} 3."
        ) from None


def _number(flag: str, text: str) -> float:
    """A number; where it means seconds, a duration such as 10m will do."""
    try:
        number = float(text)
    except ValueError:
        if flag.endswith(("-s", "-seconds")):
            return duration_s(text, flag)
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(
            f"{flag} is not a number: {text!r}.", hint=f"Write {flag} 100 or {flag} 0.95."
        )
    return number


def _json_or_text(flag: str, text: str) -> Any:
    """JSON where it looks like it; a plain text is left to the pattern, as a short form."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{flag} is not JSON: {error}.") from None


def _pairs(flag: str, entries: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for entry in entries:
        if not entry.lstrip().startswith("{"):
            pairs |= key_values([entry], flag)
            continue
        value = _json_or_text(flag, entry)
        if not all(isinstance(item, str) for item in value.values()):
            raise InvalidInput(f"{flag} holds texts only.", hint=f"Write {flag} NAME=VALUE.")
        pairs |= value
    return pairs


def _json_file(flag: str, file: Path) -> dict[str, Any]:
    hint = 'It is an object, such as {"type": "object", "properties": {…}}.'
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            f"{flag} {file} cannot be read: {error.strerror}.", hint="Check its name."
        ) from None
    except ValueError as error:
        raise InvalidInput(f"{flag} {file} is not JSON: {error}.", hint=hint) from None
    if not isinstance(found, dict) or not found:
        raise InvalidInput(f"{flag} {file} is not a schema.", hint=hint)
    return found
