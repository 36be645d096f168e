"""The options of a pattern, made of the JSON schema of its specification."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kapelle.cli.patterns.schema_values import Kind, parse
from kapelle.domain.errors import InvalidInput

Schema = dict[str, Any]


@dataclass(frozen=True)
class SchemaOption:
    """One field of a specification as an option: --its-name, with what it takes."""

    key: str
    kind: Kind
    required: bool
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    repeatable: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What stands behind the option in the help; nothing for one that is on or off."""
        if self.choices:
            return "|".join(self.choices)
        if self.kind == "object" and self.repeatable:
            return "TEXT|JSON"  # a step or a check may be told in short
        known = {"boolean": "", "object": "JSON", "pairs": "NAME=VALUE", "any": "VALUE"}
        return known.get(self.kind, self.kind.upper())


def options_of(schema: Schema) -> dict[str, SchemaOption]:
    """The options by key, in the order of the schema."""
    required = set(schema.get("required", ()))
    shared = schema.get("$defs", {})
    return {
        key: _option(key, field, key in required, shared)
        for key, field in schema.get("properties", {}).items()
    }


def _option(key: str, field: Schema, required: bool, shared: Schema) -> SchemaOption:
    shape = _resolved(field, shared)
    repeatable = shape.get("type") == "array"
    inner = _resolved(shape.get("items", {}), shared) if repeatable else shape
    choices = tuple(str(value) for value in inner.get("enum", ()) if value is not None)
    return SchemaOption(
        key=key,
        kind=_kind(inner),
        required=required,
        help=field.get("description") or "",
        default=field.get("default"),
        choices=choices,
        repeatable=repeatable or _kind(inner) == "pairs",
    )


def _resolved(field: Schema, shared: Schema) -> Schema:
    """The field without references and without "or nothing"."""
    if "$ref" in field:
        return _resolved(shared.get(field["$ref"].rpartition("/")[2], {}), shared)
    for word in ("anyOf", "oneOf", "allOf"):
        shapes = [part for part in field.get(word, ()) if part.get("type") != "null"]
        if len(shapes) == 1:
            return _resolved(shapes[0], shared)
    if "const" in field:
        return {"enum": [field["const"]], **field}
    return field


def _kind(shape: Schema) -> Kind:
    match shape:
        case {"type": "boolean"}:
            return "boolean"
        case {"type": "integer"}:
            return "integer"
        case {"type": "number"}:
            return "number"
        case {"type": "string"} | {"enum": _}:
            return "text"
        case {"type": "object", "properties": _}:
            return "object"
        case {"type": "object", "additionalProperties": {"type": "string"}}:
            return "pairs"
        case {"type": "object"}:
            return "object"
    return "any"


def spec_from(words: Sequence[str], options: dict[str, SchemaOption]) -> dict[str, Any]:
    """The specification that --key value, --key=value and --flag ask for."""
    spec: dict[str, Any] = {}
    for option, text in _pairs(words, options):
        value = parse(option.flag, option.kind, option.choices, text)
        if option.kind == "pairs":
            spec.setdefault(option.key, {}).update(value)
        elif option.repeatable:
            spec.setdefault(option.key, []).append(value)
        elif option.key in spec:
            raise InvalidInput(f"{option.flag} was given twice.", hint="It takes a single value.")
        else:
            spec[option.key] = value
    return spec


def _pairs(
    words: Sequence[str], options: dict[str, SchemaOption]
) -> Iterator[tuple[SchemaOption, str]]:
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise InvalidInput(
                f"{word!r} belongs to no option.", hint="Write --key value for every field."
            )
        flag, given, value = word.partition("=")
        option, negated = _named(flag, options)
        if given:
            yield option, value
        elif option.kind == "boolean" and not option.repeatable:
            yield option, "false" if negated else "true"
        else:
            value = next(rest, "")
            if not value:
                raise InvalidInput(f"{flag} needs a value.", hint=f"Write {flag} {option.metavar}.")
            yield option, value


def _named(flag: str, options: dict[str, SchemaOption]) -> tuple[SchemaOption, bool]:
    """The option of this name; --no-x is a flag that is off."""
    key = flag.removeprefix("--").replace("-", "_")
    if key in options:
        return options[key], False
    positive = options.get(key.removeprefix("no_"))
    if key.startswith("no_") and positive and positive.kind == "boolean":
        return positive, True
    flags = [option.flag for option in options.values()]
    close = difflib.get_close_matches(flag, flags, n=2, cutoff=0.6)
    if close:
        raise InvalidInput(
            f"There is no option {flag}.", hint=f"Did you mean {' or '.join(close)}?"
        )
    raise InvalidInput(
        f"There is no option {flag}.", hint="`kapelle start PATTERN --help` shows what it takes."
    )
