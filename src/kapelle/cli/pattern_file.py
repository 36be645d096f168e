"""The specification of a built-in pattern from a file, with variables and durations."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kapelle.cli.output import say
from kapelle.cli.schema import Schema, resolve, schemas
from kapelle.cli.spec_file import SpecFile, ValuePath, name_kind
from kapelle.cli.spec_values import absolute_directory
from kapelle.cli.usage_errors import did_you_mean
from kapelle.cli.values import duration_s, not_empty
from kapelle.domain.errors import InvalidInput, format_problem
from kapelle.domain.text import format_value

# Lists whose items are named by the singular and their number.
_NUMBERED = frozenset({"steps", "checks"})
_USE = re.compile(r"\$\$\{|\$\{([^}\n]*)\}|\$\{")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# How other tools write a variable; ${{ … }} is an expression of GitHub Actions.
_BRACES = re.compile(r"(?<!\$)\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def read_pattern_file(
    pattern: str, path: Path, variables: Mapping[str, str], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the specification of a built-in pattern from a file or from standard input (-).

    Variables of the command line replace those of the file, and overrides its fields. Raises
    InvalidInput, whose message begins with the file and names every mistake, one a line.
    """
    file = SpecFile(path)
    fields = file.read(as_texts=True)
    if not isinstance(fields, dict):
        required = [name for name in schemas()[pattern]["required"] if name != "directory"]
        words = f"a {pattern} is a mapping with {' and '.join(required)}, not {name_kind(fields)}"
        raise file.refusal(file.line(()) or 1, words, f"Begin a line with `{required[0]}:`.")
    declared = _declared_variables(file, fields.pop("variables", None), variables)
    filler = _VariableFiller(file, declared, variables)
    spec: dict[str, Any] = _convert(file, fields, (), filler)
    filler.note_unused()
    changes = {key: value for key, value in overrides.items() if value is not None}
    if "directory" in changes or spec.get("directory") is None:
        # On the command line a relative directory begins at the current one.
        changes["directory"] = absolute_directory(Path(changes.get("directory") or "."))
    return _validate(file, pattern, {**spec, **changes}, changes)


def _declared_variables(
    file: SpecFile, section: Any, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Return the section of variables, and note its mistakes."""
    if section is None:
        return {}
    if not isinstance(section, dict):
        words = f"variables must be a mapping of names to texts, not {name_kind(section)}"
        file.note(("variables",), words, "Write `variables: {version: 1.0}`.")
        return {}
    for name, value in section.items():
        path = ("variables", name)
        if not _VARIABLE.fullmatch(name):
            hint = "Use letters, digits and _, no digit first."
            file.note(path, f"{name!r} cannot be the name of a variable", hint)
        elif isinstance(value, list | dict):
            file.note(path, f"the variable {name} must be text, not {name_kind(value)}")
        elif value is None and name not in variables:
            file.note(path, f"the variable {name} has no value", f"Add --var {name}=VALUE.")
    return section


class _VariableFiller:
    """Replaces the variables in texts of a file, and notes wrong uses of them."""

    def __init__(
        self, file: SpecFile, declared: Mapping[str, Any], variables: Mapping[str, str]
    ) -> None:
        self._file = file
        self._declared = declared
        self._variables = variables
        self._values = {
            name: _scalar_text(value) for name, value in declared.items() if value is not None
        }
        self._values.update(variables)
        self._used: set[str] = set()

    def fill(self, text: str, path: ValuePath) -> str:
        """Return a text with the values of its variables."""
        for match in _BRACES.finditer(text):
            self._note_braces(match, path)
        # A value is not searched for variables itself, so no value can ask for another.
        return _USE.sub(lambda match: self._value(match, path), text)

    def _value(self, match: re.Match[str], path: ValuePath) -> str:
        written = match.group()
        name = match.group(1)
        if written == "$${":
            return "${"
        if name is None or not _VARIABLE.fullmatch(name):
            hint = "For ${ itself write $${."
            self._file.note(path, f"{written} is no variable", hint, text=written)
            return written
        self._used.add(name)
        if name not in self._values and name not in self._declared:
            words = f"the variable {name} is not defined{did_you_mean(name.lower(), self._values)}"
            hint = f"Add --var {name}=VALUE, or write $${{{name}}} if it is none."
            self._file.note(path, words, hint, text=written)
        return self._values.get(name, written)

    def _note_braces(self, match: re.Match[str], path: ValuePath) -> None:
        """Note {{ name }}, as other tools write a variable, or warn of it."""
        name = match[1]
        right = f"Variables are written ${{{name}}} and declared under `variables`."
        if name in self._variables:
            self._file.note(path, f"{match[0]} is no variable", right, text=match[0])
            return
        line = self._file.line(path, match[0])
        words = f"{match[0]} goes to the agent as it is. {right}"
        say(f"warning: {self._file.sentence(line, words)}")

    def note_unused(self) -> None:
        """Note variables of the command line that the file does not have."""
        names = sorted({*self._declared, *self._used})
        for name in sorted(set(self._variables) - set(names)):
            similar = did_you_mean(name.lower(), names)
            words = f"--var {name}: there is no such variable in the file{similar}"
            hint = f"It has {', '.join(names)}."
            if not names:
                hint = f"It has no variables: write ${{{name}}} where the value belongs."
            self._file.note(("variables",), words, hint)


def _scalar_text(value: Any) -> str:
    """Return a scalar as text; the specification decides whether it is a number."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _convert(file: SpecFile, value: Any, path: ValuePath, filler: _VariableFiller) -> Any:
    """Return a value with its variables filled in, durations in seconds and whole directories."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_convert(file, part, (*path, n), filler) for n, part in enumerate(value)]
    if isinstance(value, dict):
        return _convert_mapping(file, value, path, filler)
    return filler.fill(_scalar_text(value), path)


def _convert_mapping(
    file: SpecFile, mapping: dict[str, Any], path: ValuePath, filler: _VariableFiller
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, part in mapping.items():
        field = _field_of(key, path)
        key_path = (*path, key)
        if field in fields or (field != key and field in mapping):
            file.note(key_path, f"{key} and {field} mean the same", "Leave one of them out.")
            continue
        file.line_by_path[(*path, field)] = file.line(key_path)
        value = _convert(file, part, key_path, filler)
        try:
            if isinstance(value, str) and path != ("env",):
                value = _read_text(file, field, key, value)
            fields[field] = value
        except InvalidInput as error:
            file.note(key_path, error.message, error.hint or "")
    return fields


def _field_of(key: str, path: ValuePath) -> str:
    """Return the field of a key: a file may leave out the unit of a timeout."""
    if key not in {"timeout", "task_timeout"} or path == ("env",):
        return key
    if path or key == "task_timeout":
        return f"{key}_s"
    return "task_timeout_s"


def _read_text(file: SpecFile, field: str, key: str, text: str) -> Any:
    """Return the value of a field that is written as a text."""
    if field.endswith(("_s", "_seconds")):
        return duration_s(text, key)
    if field == "directory":
        return _read_directory(file, text)
    return text


def _read_directory(file: SpecFile, text: str) -> str:
    not_empty(text, "directory")
    try:
        return absolute_directory(file.directory / text)
    except InvalidInput:
        hint = "A relative path begins at the directory of the file."
        raise InvalidInput(f"{format_value(text)} is not a directory", hint=hint) from None


def _validate(
    file: SpecFile, pattern: str, values: dict[str, Any], overrides: Collection[str]
) -> dict[str, Any]:
    """Return the validated specification; raises InvalidInput with all mistakes of the file."""
    from pydantic import ValidationError

    from kapelle.patterns.registry import find_shipped

    entry = find_shipped(pattern)
    assert entry is not None, "only built-in patterns take a file"
    try:
        spec = entry.spec.model_validate(values)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False):
            # A variable without a value was noted already.
            if file.mistakes and "${" in str(error["input"]):
                continue
            path: ValuePath = tuple(part for part in error["loc"] if part != "[key]")
            words, hint = _describe_error(error, path, pattern)
            if path and path[0] in overrides:
                file.mistakes.append((1, f"{words} (it was given on the command line)", hint))
            else:
                file.note(path, words, hint)
    file.require_no_mistakes()
    return spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def _describe_error(error: Any, path: ValuePath, pattern: str) -> tuple[str, str]:
    """Return an error of pydantic as a sentence about the file, and what to do."""
    if error["type"] == "extra_forbidden":
        *outer, key = path
        words = _describe_path(tuple(outer))
        prefix = f"{words}: " if words else ""
        keys = _known_keys(schemas()[pattern], outer)
        similar = did_you_mean(str(key).lower(), keys)
        return f"{prefix}there is no key {key!r}{similar}", f"Known are {', '.join(keys)}."
    name = _describe_path(path) or f"the {pattern}"
    value = error["input"]
    text = format_value(value) if isinstance(value, str) else name_kind(value)
    return format_problem(error, name, text), ""


def _describe_path(path: ValuePath) -> str:
    """Return a place in words, such as step 2: check 1: command."""
    words: list[str] = []
    for part in path:
        if isinstance(part, str):
            words.append(part if part.isprintable() else ascii(part))
        elif words[-1] in _NUMBERED:
            words[-1] = f"{words[-1].removesuffix('s')} {part + 1}"
        else:
            words[-1] = f"{words[-1]} {part + 1}"
    return ": ".join(words)


def _known_keys(schema: Schema, path: list[str | int]) -> list[str]:
    """Return the keys that a mapping of the file may have."""
    shape = schema
    for part in path:
        inner = shape["items"] if isinstance(part, int) else shape["properties"][part]
        shape = resolve(inner, schema["$defs"])
    keys = {*shape["properties"], "timeout"}
    if not path:
        keys.add("variables")
    return sorted(keys)
