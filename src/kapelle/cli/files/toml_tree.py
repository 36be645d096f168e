"""TOML as a tree with lines: the values from the standard library, the lines from a scan."""

import re
import tomllib
from collections.abc import Iterable
from datetime import date, time
from typing import Any

from kapelle.cli.files.tree import DEEPEST, MOST_NODES, Node, Problem, Unusable

KeyPath = tuple[str | int, ...]

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_BLANK = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_SPACE = re.compile(r"[ \t]*+")
_KEY = re.compile(r"""[A-Za-z0-9_-]++|"(?:[^"\\\n]++|\\.)*+"|'[^'\n]*+'""")
_TEXT = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*+"{3,5}'''
    r"""|'''(?:[^']++|'(?!''))*+'{3,5}"""
    r"""|"(?:[^"\\\n]++|\\.)*+"|'[^'\n]*+'""",
    re.DOTALL,
)
_OTHER = re.compile(r"[^,\]}\n#]++")


def toml_tree(text: str) -> Node:
    """The document of a text; raises Unusable."""
    try:
        # Fractions as they were written: 1.10 may be a version.
        values = tomllib.loads(text, parse_float=str)
        lines = _Scan(text).run()
    except tomllib.TOMLDecodeError as error:
        raise Unusable(_problem(str(error), text)) from None
    except RecursionError:
        raise Unusable(Problem(1, f"this is nested more than {DEEPEST} deep")) from None
    return _node(values, (), lines, (1, text.count("\n") + 1))


def _problem(message: str, text: str) -> Problem:
    place = _PLACE.search(message)
    line = int(place[1]) if place and place[1] else len(text.rstrip().splitlines()) or 1
    words = _PLACE.sub("", message)
    hint = "Texts need quotation marks, and each key one line of its own."
    return Problem(line, f"this is not valid TOML: {words[:1].lower()}{words[1:]}", hint)


def _node(
    value: Any, path: KeyPath, lines: dict[KeyPath, tuple[int, int]], around: tuple[int, int]
) -> Node:
    here = lines.get(path, around)
    if len(path) > DEEPEST:
        raise Unusable(Problem(here[0], f"this is nested more than {DEEPEST} deep"))
    if isinstance(value, dict):
        members = {key: _node(part, (*path, key), lines, here) for key, part in value.items()}
        return Node(*here, members, _size(members.values(), here[0]))
    if isinstance(value, list):
        items = [_node(part, (*path, index), lines, here) for index, part in enumerate(value)]
        return Node(*here, items, _size(items, here[0]))
    return Node(*here, _written(value))


def _size(parts: Iterable[Node], line: int) -> int:
    size = 1 + sum(part.size for part in parts)
    if size > MOST_NODES:
        raise Unusable(Problem(line, f"the file has more than {MOST_NODES:,} values"))
    return size


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date | time) else str(value)


class _Scan:
    """One pass over TOML that is known to be valid, noting the lines of each key and item."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted = 1, 0
        self._lengths: dict[KeyPath, int] = {}
        self._lines: dict[KeyPath, tuple[int, int]] = {}

    def run(self) -> dict[KeyPath, tuple[int, int]]:
        table: KeyPath = ()
        while self._next():
            line = self._here()
            if self._text.startswith("[[", self._at):
                table = self._header(2)
                self._lines.setdefault(table, (line, line))
                count = self._lengths.get(table, 0)
                self._lengths[table] = count + 1
                table = (*table, count)
                self._lines[table] = (line, line)
            elif self._text.startswith("[", self._at):
                table = self._header(1)
                self._lines.setdefault(table, (line, line))
            else:
                self._pair(table)
        return self._lines

    def _next(self) -> str:
        """The next character that is neither blank nor of a comment."""
        self._skip(_BLANK)
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise Unusable(Problem(self._here(), "this cannot be read"))
        self._at = found.end()
        return found.group()

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _header(self, brackets: int) -> KeyPath:
        self._at += brackets
        path = self._resolved(self._dotted())
        self._at += brackets
        return path

    def _resolved(self, keys: list[str]) -> KeyPath:
        """The path of a header, through the last item of each list of tables on its way."""
        path: KeyPath = ()
        for key in keys:
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
            path = (*path, key)
        return path

    def _dotted(self) -> list[str]:
        keys = []
        while True:
            self._skip(_SPACE)
            key = self._skip(_KEY)
            keys.append(next(iter(tomllib.loads(f"{key} = 0"))) if key[0] in "\"'" else key)
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _pair(self, table: KeyPath) -> None:
        line = self._here()
        path = table
        for key in self._dotted():
            path = (*path, key)
            self._lines.setdefault(path, (line, line))
        # Past the equals sign.
        self._at += 1
        self._value(path, line)

    def _value(self, path: KeyPath, line: int) -> None:
        mark = self._next()
        if mark == "[":
            self._at += 1
            index = 0
            while self._next() != "]":
                self._value((*path, index), self._here())
                index += 1
                self._comma()
            self._at += 1
        elif mark == "{":
            self._at += 1
            while self._next() != "}":
                self._pair(path)
                self._comma()
            self._at += 1
        else:
            self._skip(_TEXT if mark in {'"', "'"} else _OTHER)
        self._lines[path] = (line, self._here())

    def _comma(self) -> None:
        if self._next() == ",":
            self._at += 1
