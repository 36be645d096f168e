"""Reads one object or list that is almost JSON: with comments, other quotes, or words of Python."""

import json
import re
from dataclasses import dataclass
from typing import Any

DEEPEST = 200
BLANKS = r"[\s\ufeff\u200b]"
CURLY_DOUBLE, CURLY_SINGLE = "\u201c\u201d\u201e", "\u2018\u2019\u201a"

_BLANK = re.compile(rf"(?:{BLANKS}+|//[^\n]*|#[^\n]*)*")
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[-+]?[A-Za-z_$][\w$-]*")
_UNICODE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
_HEX = re.compile(r"\\(?:x[0-9a-fA-F]{2}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})")
# A quotation mark inside a text that was not escaped is told by what does not follow it.
_AFTER_TEXT = re.compile(rf"""{BLANKS}*(?:[,:}}\])#"']|//|\Z)""")
_ANYTHING = re.compile("")
_ORDINARY = {
    '"': re.compile(r'[^"\\]*'),
    "'": re.compile(r"[^'\\]*"),
    **dict.fromkeys(CURLY_DOUBLE, re.compile(rf"[^{CURLY_DOUBLE[:2]}\\]*")),
    **dict.fromkeys(CURLY_SINGLE, re.compile(rf"[^{CURLY_SINGLE[:2]}\\]*")),
}
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("true", "True"), True),
    **dict.fromkeys(("false", "False"), False),
    **dict.fromkeys(("null", "None", "undefined"), None),
    **dict.fromkeys(("NaN", "nan"), float("nan")),
    **dict.fromkeys(("Infinity", "+Infinity", "inf"), float("inf")),
    **dict.fromkeys(("-Infinity", "-inf"), float("-inf")),
}
_ESCAPES = dict(zip("bfnrt\"'/\\", "\b\f\n\r\t\"'/\\", strict=True))
_PLAIN = frozenset(',:{}[]"0123456789')
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


@dataclass(slots=True)
class _Open:
    """An object or list that has not ended; key is the one whose value comes next."""

    value: Any
    closer: str
    key: str | None = None
    full: bool = False

    def put(self, value: Any) -> None:
        if self.key is None:
            self.value.append(value)
        else:
            self.value[self.key] = value
        self.full = True


class Broken(Exception):
    """Reading stopped: where, why, and whether what was read so far is surely meant as JSON."""

    def __init__(self, start: int, at: int, problem: str, inside: list[_Open]) -> None:
        super().__init__(problem)
        self.start, self.at, self.problem, self._inside = start, at, problem, inside
        self.meant = self.cut_off = False

    @property
    def depth(self) -> int:
        """How many brackets are open."""
        return len(self._inside)

    @property
    def path(self) -> str:
        """What was being read, such as steps[2].prompt."""
        path = ""
        for place in self._inside:
            if isinstance(place.value, list):
                path += f"[{len(place.value) - place.full}]"
            elif place.key is not None:
                path += f".{place.key}"
        return path.lstrip(".")


class LenientReader:
    """One reading from a bracket on; it keeps its own stack, so depth costs no recursion."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text, self._start, self._at, self._end = text, start, start, end
        self._stack: list[_Open] = []
        self._meant = False

    def read(self) -> tuple[Any, int]:
        """The value and where it ends; raises Broken."""
        self._open(self._text[self._at])
        outermost = self._stack[0]
        while self._stack:
            here = self._stack[-1]
            mark = self._next()
            if mark == here.closer:
                self._at += 1
                self._stack.pop()
            elif here.full:
                if mark != ",":
                    raise self._broken(f"expected a comma or {here.closer}")
                self._at += 1
                here.full, here.key, self._meant = False, None, True
            else:
                self._member(here, mark)
        return outermost.value, self._at

    def _member(self, here: _Open, mark: str) -> None:
        if here.closer == "}":
            here.key = self._key(mark)
            if self._next() != ":":
                raise self._broken("expected a colon after the key")
            self._at += 1
            self._meant = True
            mark = self._next()
        if mark in _CLOSERS:
            self._open(mark)
        else:
            here.put(self._scalar(mark))

    def _open(self, mark: str) -> None:
        if len(self._stack) == DEEPEST:
            self._meant = True
            raise self._broken(f"it is nested more than {DEEPEST} deep")
        value: Any = {} if mark == "{" else []
        if self._stack:
            self._stack[-1].put(value)
        self._stack.append(_Open(value, _CLOSERS[mark]))
        self._at += 1

    def _next(self) -> str:
        """The next character that is neither blank nor of a comment."""
        if (mark := self._text[self._at : self._at + 1]) in _PLAIN and self._at < self._end:
            return mark
        blank = _BLANK.match(self._text, self._at, self._end)
        self._at = blank.end() if blank else self._at
        if self._at >= self._end:
            raise self._broken("it ends too early", cut_off=True)
        return self._text[self._at]

    def _key(self, mark: str) -> str:
        if mark in _ORDINARY:
            return self._quoted(mark, _ANYTHING)
        word = _WORD.match(self._text, self._at, self._end) or self._number()
        if word is None:
            raise self._broken("expected a key in quotation marks or }")
        self._at = word.end()
        return word.group()

    def _scalar(self, mark: str) -> Any:
        if mark in _ORDINARY:
            return self._quoted(mark, _AFTER_TEXT)
        if number := self._number():
            self._at = number.end()
            return self._counted(number.group())
        word = _WORD.match(self._text, self._at, self._end)
        if word is None or word.group() not in _WORDS:
            raise self._broken("expected a value")
        self._at = word.end()
        return _WORDS[word.group()]

    def _number(self) -> re.Match[str] | None:
        return _NUMBER.match(self._text, self._at, self._end)

    def _counted(self, digits: str) -> int | float:
        try:
            return float(digits) if set(digits) & set(".eE") else int(digits)
        except ValueError:
            raise self._broken("this number cannot be read") from None

    def _quoted(self, mark: str, followed_by: re.Pattern[str]) -> str:
        tripled = mark * 3
        width = 3 if self._text.startswith(tripled, self._at) else 1
        ordinary, parts = _ORDINARY[mark], list[str]()
        at = self._at + width
        while run := ordinary.match(self._text, at, self._end):
            parts.append(run.group())
            at = run.end()
            if at >= self._end:
                self._at = at
                raise self._broken("it ends inside a text", cut_off=True)
            if self._text[at] == "\\":
                part, at = self._escaped(at)
                parts.append(part)
            elif (width == 1 or self._text.startswith(tripled, at)) and followed_by.match(
                self._text, at + width, self._end
            ):
                self._at = at + width
                break
            else:
                parts.append(self._text[at])
                at += 1
        return "".join(parts)

    def _escaped(self, at: int) -> tuple[str, int]:
        """What an escape stands for; one that is none stays as it was written."""
        if units := _UNICODE.match(self._text, at, self._end):
            # Together, since two of them may be one letter.
            return json.loads(f'"{units.group()}"'), units.end()
        if code := _HEX.match(self._text, at, self._end):
            return chr(int(code.group()[2:], 16)), code.end()
        letter = self._text[at + 1 : min(at + 2, self._end)]
        return _ESCAPES.get(letter, "\\" + letter), at + 1 + len(letter)

    def _broken(self, problem: str, *, cut_off: bool = False) -> Broken:
        broken = Broken(self._start, self._at, problem, self._stack)
        broken.meant, broken.cut_off = self._meant, cut_off
        return broken
