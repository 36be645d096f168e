"""Files that contain the specification of a pattern: YAML, TOML or JSON.

This is the only reader of such files. Errors name the file and, where it is known, the line.
"""

import json
import re
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kapelle.cli.values import read_bytes
from kapelle.domain.errors import InvalidInput

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1_000_000
MAX_VALUES = 10_000
_YAML_TAG = "tag:yaml.org,2002:"
_YAML_SUFFIXES = (".yaml", ".yml")
_UNSUPPORTED_TAGS = frozenset({"binary", "set", "omap", "pairs"})
_DEFAULT_HINT = "Correct it and try again."

ValuePath = tuple[str | int, ...]


def read_typed_file(path: Path) -> dict[str, Any]:
    """Return the fields of a file as they are typed there: numbers are numbers.

    This is for patterns whose specification only the daemon knows.
    """
    file = SpecFile(path)
    fields = file.read(as_texts=False)
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        hint = "Give every field a name, such as prompt or agent."
        raise file.refusal(0, "the file has no fields", hint)
    return fields


def name_kind(value: Any) -> str:
    """Return the kind of a value in words."""
    names = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return names.get(type(value), "text")


class SpecFile:
    """A file: its text, the lines of its values as far as they are known, and its mistakes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_stdin = str(path) == "-"
        self.name = str(path)
        self.directory = path.parent
        self._suffix = path.suffix.lower()
        if self.is_stdin:
            self.name = "<stdin>"
            self.directory = Path()
            self._suffix = ".yaml"
        self.line_by_path: dict[ValuePath, int] = {}
        self.mistakes: list[tuple[int, str, str]] = []
        self._text = self._read_text()
        self._newlines = [match.start() for match in re.finditer("\n", self._text)]
        self._count = 0

    def read(self, *, as_texts: bool) -> Any:
        """Return the content of the file.

        With as_texts, scalars of YAML stay as they are written: the specification decides whether
        `1.10` is a number.
        """
        try:
            if self._suffix in _YAML_SUFFIXES or (self._suffix == ".json" and as_texts):
                return self._read_yaml(as_texts=as_texts)
            if self._suffix == ".json":
                return self._read_json()
            if self._suffix == ".toml":
                return self._read_toml(as_texts=as_texts)
        except RecursionError:
            # Also for an alias inside the value that it stands for.
            raise self.refusal(0, "this is nested too deep", "Write it flatter.") from None
        hint = "Name it .yaml, .yml, .toml or .json, or give YAML on standard input with -."
        raise self.refusal(1, "the end of its name is no known type of file", hint)

    def line(self, path: ValuePath, text: str = "") -> int:
        """Return the line of a value, or of the value around it; 0 if unknown.

        With a text, return the line of its first use in the value.
        """
        line = 0
        for length in range(len(path), -1, -1):
            if path[:length] in self.line_by_path:
                line = self.line_by_path[path[:length]]
                break
        if not line or not text:
            return line
        use = re.compile(r"(?<!\$)" + re.escape(text))
        for number, content in enumerate(self._text.split("\n")[line - 1 :], line):
            if use.search(content):
                return number
        return line

    def sentence(self, line: int, words: str) -> str:
        """Return a sentence about a line, or about the file if the line is 0."""
        if line:
            return f"{self.name}:{line}: {words}"
        return f"{self.name}: {words}"

    def refusal(self, line: int, words: str, hint: str = _DEFAULT_HINT) -> InvalidInput:
        """Return an error about a line."""
        return InvalidInput(self.sentence(line, words), hint=hint)

    def note(self, path: ValuePath, words: str, hint: str = "", *, text: str = "") -> None:
        """Note a mistake, to be reported with the others."""
        self.mistakes.append((self.line(path, text), words.rstrip("."), hint))

    def require_no_mistakes(self) -> None:
        """Raise InvalidInput with all mistakes, one a line."""
        if not self.mistakes:
            return
        mistakes = sorted(dict.fromkeys(self.mistakes), key=lambda mistake: mistake[0])
        sentences = [self.sentence(line, words) for line, words, _ in mistakes]
        raise InvalidInput("\n".join(sentences), hint=mistakes[0][2] or _DEFAULT_HINT)

    def _read_text(self) -> str:
        content = read_bytes(None if self.is_stdin else self.path, self.name, MAX_BYTES)
        if len(content) > MAX_BYTES:
            hint = "Put material into files of the repository and name those in the prompts."
            raise self.refusal(1, "this is larger than 1 MB", hint)
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            hint = "Convert it first, for example with `iconv -t utf-8`."
            raise self.refusal(line, "this is not UTF-8 text", hint) from None

    def _read_toml(self, *, as_texts: bool) -> Any:
        import tomllib

        try:
            return tomllib.loads(self._text, parse_float=str if as_texts else float)
        except tomllib.TOMLDecodeError as error:
            raise self.refusal(0, f"this is not valid TOML: {error}") from None

    def _read_json(self) -> Any:
        try:
            return json.loads(self._text)
        except json.JSONDecodeError as error:
            raise self.refusal(error.lineno, f"this is not valid JSON: {error.msg}") from None

    def _read_yaml(self, *, as_texts: bool) -> Any:
        import yaml

        try:
            loader = _text_loader(self._text) if as_texts else yaml.SafeLoader(self._text)
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
        except ValueError as error:  # such as a date that does not exist
            raise self.refusal(0, f"this is not valid YAML: {error}") from None

    def _line_of(self, mark: "yaml.Mark | None") -> int:
        # YAML counts more characters than editors do as the end of a line.
        if mark is None:
            return 1
        return bisect_left(self._newlines, mark.index) + 1

    def _note_lines(self, node: Any, path: ValuePath, line: int | None = None) -> None:
        """Note the line of each value.

        Raises InvalidInput for too many values, for a repeated key and for an unsupported tag.
        """
        line = line or self._line_of(node.start_mark)
        self.line_by_path[path] = line
        self._count += 1
        if self._count > MAX_VALUES:
            words = f"the file grows to more than {MAX_VALUES:,} values"
            raise self.refusal(line, words, "Repeat less by aliases, or write less.")
        if node.tag.removeprefix(_YAML_TAG) in _UNSUPPORTED_TAGS:
            tag = node.tag.replace(_YAML_TAG, "!!")
            raise self.refusal(line, f"{tag} is not supported")
        if node.id == "sequence":
            for number, part in enumerate(node.value):
                self._note_lines(part, (*path, number))
        elif node.id == "mapping":
            for key, value in node.value:
                self._note_key(path, key, value)

    def _note_key(self, path: ValuePath, key: Any, value: Any) -> None:
        line = self._line_of(key.start_mark)
        if not isinstance(key.value, str) or key.tag == _YAML_TAG + "null":
            raise self.refusal(line, f"a key must be text, not {name_kind(key.value or None)}")
        value_path = (*path, key.value)
        if value_path in self.line_by_path:
            earlier = self.line_by_path[value_path]
            words = f"the key {key.value!r} stands on line {earlier} already"
            raise self.refusal(line, words, "Leave one of them out.")
        self._note_lines(value, value_path, line)


def _text_loader(text: str) -> "yaml.SafeLoader":
    """Return a YAML loader that makes a text of every scalar except null."""
    import yaml

    class TextLoader(yaml.SafeLoader):
        """Leaves the meaning of scalars to the specification."""

    as_text: Any = TextLoader.construct_yaml_str
    for kind in ("int", "float", "bool", "timestamp", "value"):
        TextLoader.add_constructor(_YAML_TAG + kind, as_text)
    return TextLoader(text)
