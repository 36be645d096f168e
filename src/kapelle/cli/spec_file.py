"""The spec of a pattern from a YAML or TOML file, or every mistake in the file."""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from kapelle.cli.command import meant
from kapelle.cli.output import say
from kapelle.cli.spec_options import Schema, absolute_directory, resolved, schemas
from kapelle.cli.values import duration_s, not_empty, read_bytes
from kapelle.domain.errors import InvalidInput, format_problem
from kapelle.domain.text import format_value

MAX_BYTES = 1_000_000
MAX_VALUES = 10_000
_COUNTED = frozenset({"steps", "checks"})
_USE = re.compile(r"\$\$\{|\$\{([^}\n]*)\}|\$\{")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# How other tools write a variable; ${{ … }} is an expression of GitHub Actions.
_BRACES = re.compile(r"(?<!\$)\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_YAML = "tag:yaml.org,2002:"

ValuePath = tuple[str | int, ...]


def read_spec_file(
    pattern: str, path: Path, variables: dict[str, str], overrides: dict[str, Any]
) -> dict[str, Any]:
    """The spec of a built-in pattern from a file or from standard input (-).

    Variables are those of the command line, which count more than the file's own; overrides are
    fields that replace those of the file. Raises InvalidInput, whose message begins with the file
    (in YAML also the line) and names every mistake, one a line.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    source = _Source(path)
    values = source.values()
    schema = schemas()[pattern]
    if not isinstance(values, dict):
        needed = [name for name in schema["required"] if name != "directory"]
        words = f"a {pattern} is a mapping with {' and '.join(needed)}, not {_kind(values)}"
        raise source.refusal(source.line(()) or 1, words, f"Begin a line with `{needed[0]}:`.")
    spec = _filled(source, values, variables)
    if "directory" in given or spec.get("directory") is None:
        # On the command line a directory is meant from where one stands.
        given["directory"] = absolute_directory(Path(given.get("directory") or "."))
    return _validated(source, pattern, {**spec, **given}, given)


class _Source:
    """One file: its text, the lines of its values as far as they are known, its mistakes."""

    def __init__(self, path: Path) -> None:
        self.stdin = str(path) == "-"
        if self.stdin:
            self.name = "<stdin>"
        else:
            self.name = str(path)
        if self.stdin:
            self.directory = Path()
        else:
            self.directory = path.parent
        self.lines: dict[ValuePath, int] = {}
        self.mistakes: list[tuple[int, str, str]] = []
        if self.stdin:
            self._kind = ".yaml"
        else:
            self._kind = path.suffix.lower()
        self._text = self._read(path)
        self._newlines = [found.start() for found in re.finditer("\n", self._text)]
        self._count = 0

    def values(self) -> Any:
        """What the file holds."""
        readers = {".yaml": self._yaml, ".yml": self._yaml, ".toml": self._toml}
        if self._kind not in readers:
            hint = "Name it .yaml, .yml or .toml, or give YAML on standard input with -."
            raise self.refusal(1, "its name does not tell what kind of file it is", hint)
        try:
            return readers[self._kind]()
        except RecursionError:
            # Also what an alias that stands inside itself comes to.
            raise self.refusal(0, "this is nested too deep", "Write it flatter.") from None

    def line(self, place: ValuePath, text: str = "") -> int:
        """The line of a value or of what is around it, or of a text in it; 0 if unknown."""
        around = (place[:length] for length in range(len(place), -1, -1))
        line = next((self.lines[part] for part in around if part in self.lines), 0)
        if not line or not text:
            return line
        use = re.compile(r"(?<!\$)" + re.escape(text))
        lines = enumerate(self._text.split("\n")[line - 1 :], line)
        return next((number for number, found in lines if use.search(found)), line)

    def sentence(self, line: int, words: str) -> str:
        if line:
            return f"{self.name}:{line}: {words}"
        return f"{self.name}: {words}"

    def refusal(self, line: int, words: str, hint: str = "") -> InvalidInput:
        return InvalidInput(self.sentence(line, words), hint=hint or "Correct it and try again.")

    def note(self, place: ValuePath, words: str, hint: str = "", *, text: str = "") -> None:
        self.mistakes.append((self.line(place, text), words.rstrip("."), hint))

    def require_no_mistakes(self) -> None:
        if self.mistakes:
            ordered = sorted(dict.fromkeys(self.mistakes), key=lambda mistake: mistake[0])
            sentences = [self.sentence(line, words) for line, words, _ in ordered]
            hint = ordered[0][2] or "Correct it and try again."
            raise InvalidInput("\n".join(sentences), hint=hint)

    def _read(self, path: Path) -> str:
        raw = read_bytes(None if self.stdin else path, self.name, MAX_BYTES)
        if len(raw) > MAX_BYTES:
            hint = "Put material into files of the repository and name those in the prompts."
            raise self.refusal(1, "this is larger than 1 MB", hint)
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            hint = "Convert it first, for example with `iconv -t utf-8`."
            raise self.refusal(line, "this is not UTF-8 text", hint) from None

    def _toml(self) -> Any:
        import tomllib

        try:
            return tomllib.loads(self._text, parse_float=str)
        except tomllib.TOMLDecodeError as error:
            raise self.refusal(0, f"this is not valid TOML: {error}") from None

    def _yaml(self) -> Any:
        import yaml

        class Texts(yaml.SafeLoader):
            """Makes a text of every scalar but nothing itself: what it means, the spec decides."""

        as_text: Any = Texts.construct_yaml_str
        for kind in ("int", "float", "bool", "timestamp", "value"):
            Texts.add_constructor(_YAML + kind, as_text)
        try:
            loader = Texts(self._text)
            root = loader.get_single_node()
            if root is None:
                return None
            self._note_lines(root, ())
            return loader.construct_document(root)
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            raise self.refusal(line, f"a character is not allowed: {error.character!r}") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            words = f"this is not valid YAML: {(error.problem or '').removeprefix('but ')}"
            hint = "Check indentation, colons and quotation marks here and in the line before."
            raise self.refusal(self._line_of(mark), words, hint) from None

    def _line_of(self, mark: Any) -> int:
        # YAML also counts letters that end a line; editors do not.
        if mark:
            return bisect_left(self._newlines, mark.index) + 1
        return 1

    def _note_lines(self, node: Any, place: ValuePath, line: int | None = None) -> None:
        """Note where each value stands, and refuse what grows too large or stands twice."""
        line = self.lines[place] = line or self._line_of(node.start_mark)
        self._count += 1
        if self._count > MAX_VALUES:
            words = f"the file grows to more than {MAX_VALUES:,} values"
            raise self.refusal(line, words, "Repeat less by aliases, or write less.")
        if node.tag.removeprefix(_YAML) in {"binary", "set", "omap", "pairs"}:
            raise self.refusal(line, f"{node.tag.replace(_YAML, '!!')} is not understood here")
        if node.id == "sequence":
            for number, part in enumerate(node.value):
                self._note_lines(part, (*place, number))
        for key, value in node.value if node.id == "mapping" else ():
            at = self._line_of(key.start_mark)
            here = (*place, key.value)
            if not isinstance(key.value, str) or key.tag == _YAML + "null":
                raise self.refusal(at, f"a key must be text, not {_kind(key.value or None)}")
            if here in self.lines:
                words = f"the key {key.value!r} stands on line {self.lines[here]} already"
                raise self.refusal(at, words, "Leave one of them out.")
            self._note_lines(value, here, at)


def _filled(source: _Source, values: dict[str, Any], given: dict[str, str]) -> dict[str, Any]:
    """The values without the section of variables, with these put in, in the units of a spec."""
    declared = _declared(source, values.pop("variables", None), given)
    known = {name: _text(value) for name, value in declared.items() if value is not None} | given
    used: set[str] = set()

    def replacement(use: re.Match[str], place: ValuePath) -> str:
        written = use.group()
        name = use.group(1)
        if written == "$${":
            return "${"
        if name is None or not _VARIABLE.fullmatch(name):
            hint = "For ${ itself write $${."
            source.note(place, f"{written} is no variable", hint, text=written)
            return written
        used.add(name)
        if name not in known and name not in declared:
            words = f"the variable {name} is not defined{meant(name.lower(), known)}"
            hint = f"Add --var {name}=VALUE, or write $${{{name}}} if it is none."
            source.note(place, words, hint, text=written)
        return known.get(name, written)

    def fill(text: str, place: ValuePath) -> str:
        for other in _BRACES.finditer(text):
            name = other[1]
            right = f"Variables are written ${{{name}}} and declared under `variables`."
            if name in given:
                source.note(place, f"{other[0]} is no variable", right, text=other[0])
            else:
                line = source.line(place, other[0])
                words = f"{other[0]} goes to the agent as it is. {right}"
                say(f"warning: {source.sentence(line, words)}")
        # What is put in is not looked at again, so no value can ask for another.
        return _USE.sub(lambda use: replacement(use, place), text)

    result: dict[str, Any] = _made(source, values, (), fill)
    names = sorted({*declared, *used})
    for name in sorted(set(given) - set(names)):
        words = f"--var {name}: there is no such variable in the file{meant(name.lower(), names)}"
        hint = f"It has {', '.join(names)}."
        if not names:
            hint = f"It has no variables: write ${{{name}}} where the value belongs."
        source.note(("variables",), words, hint)
    return result


def _text(value: Any) -> str:
    """A value of TOML as text; whether it is a number, the spec decides."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _declared(source: _Source, section: Any, given: dict[str, str]) -> dict[str, Any]:
    if not isinstance(section, dict | None):
        words = f"variables must be a mapping of names to texts, not {_kind(section)}"
        source.note(("variables",), words, "Write `variables: {version: 1.0}`.")
        return {}
    for name, text in (section or {}).items():
        place = ("variables", name)
        if not _VARIABLE.fullmatch(name):
            hint = "Use letters, digits and _, no digit first."
            source.note(place, f"{name!r} cannot be the name of a variable", hint)
        elif isinstance(text, list | dict):
            source.note(place, f"the variable {name} must be text, not {_kind(text)}")
        elif text is None and name not in given:
            source.note(place, f"the variable {name} has no value", f"Add --var {name}=VALUE.")
    return section or {}


def _made(
    source: _Source, value: Any, place: ValuePath, fill: Callable[[str, ValuePath], str]
) -> Any:
    """A value with its variables, seconds for durations such as 20m, and whole directories."""
    if isinstance(value, list):
        return [_made(source, part, (*place, n), fill) for n, part in enumerate(value)]
    if not isinstance(value, dict):
        if value is None:
            return None
        return fill(_text(value), place)
    found: dict[str, Any] = {}
    for written, part in value.items():
        key = _field(written, place)
        here = (*place, written)
        if key in found or (key != written and key in value):
            source.note(here, f"{written} and {key} mean the same", "Leave one of them out.")
            continue
        source.lines[(*place, key)] = source.line(here)
        made = _made(source, part, here, fill)
        try:
            if isinstance(made, str) and place != ("env",):
                made = _in_units(source, key, written, made)
            found[key] = made
        except InvalidInput as error:
            source.note(here, error.message, error.hint or "")
    return found


def _in_units(source: _Source, key: str, written: str, text: str) -> Any:
    if key.endswith(("_s", "_seconds")):
        return duration_s(text, written)
    if key == "directory":
        return _directory(source, text)
    return text


def _field(written: str, place: ValuePath) -> str:
    """The field that is meant: a file may call seconds by what they are for."""
    if written not in {"timeout", "task_timeout"} or place == ("env",):
        return written
    if place or written == "task_timeout":
        return f"{written}_s"
    return "task_timeout_s"


def _directory(source: _Source, given: str) -> str:
    not_empty(given, "directory")
    try:
        return absolute_directory(source.directory / given)
    except InvalidInput:
        hint = "A relative path begins at the directory of the file."
        raise InvalidInput(f"{format_value(given)} is not a directory", hint=hint) from None


def _validated(
    source: _Source, pattern: str, values: dict[str, Any], overridden: Collection[str]
) -> dict[str, Any]:
    from pydantic import ValidationError

    from kapelle.patterns.registry import find_shipped

    found = find_shipped(pattern)
    assert found is not None, "only what is built in takes a file"
    try:
        spec = found.spec.model_validate(values)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False):
            # A variable without a value was complained of already.
            if source.mistakes and "${" in str(error["input"]):
                continue
            place: ValuePath = tuple(part for part in error["loc"] if part != "[key]")
            words, hint = _words(error, place, pattern)
            if place and place[0] in overridden:
                source.mistakes.append((1, f"{words} (it was given on the command line)", hint))
            else:
                source.note(place, words, hint)
    source.require_no_mistakes()
    return spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def _words(error: Any, place: ValuePath, pattern: str) -> tuple[str, str]:
    """One error of pydantic as a sentence about the file, and what to do."""
    if error["type"] == "extra_forbidden":
        *around, key = place
        if around:
            prefix = f"{_place_words(tuple(around))}: "
        else:
            prefix = ""
        known = _known_keys(schemas()[pattern], around)
        words = f"{prefix}there is no key {key!r}{meant(str(key).lower(), known)}"
        return words, f"Known are {', '.join(known)}."
    name = _place_words(place) or f"the {pattern}"
    value = error["input"]
    return format_problem(
        error, name, format_value(value) if isinstance(value, str) else _kind(value)
    ), ""


def _place_words(place: ValuePath) -> str:
    """A place in words, such as step 2: check 1: command."""
    words: list[str] = []
    for part in place:
        if isinstance(part, int):
            if words[-1] in _COUNTED:
                singular = words[-1].removesuffix("s")
            else:
                singular = words[-1]
            words[-1] = f"{singular} {part + 1}"
        else:
            words.append(part if part.isprintable() else ascii(part))
    return ": ".join(words)


def _known_keys(schema: Schema, around: list[str | int]) -> list[str]:
    shape = schema
    for part in around:
        if isinstance(part, int):
            inner = shape["items"]
        else:
            inner = shape["properties"][part]
        shape = resolved(inner, schema["$defs"])
    return sorted({*shape["properties"], "timeout", *([] if around else ["variables"])})


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return names.get(type(value), "text")
