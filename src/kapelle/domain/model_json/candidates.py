"""Where JSON may stand in a text: every object and list, and what a fence says of them."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kapelle.domain.model_json.lenient import (
    BLANKS,
    CURLY_DOUBLE,
    CURLY_SINGLE,
    Broken,
    LenientReader,
)

# So many characters may be read again behind brackets that led to nothing; then the rest of their
# line is passed over. It keeps the time for any text in proportion to its length.
_READ_AGAIN = 200_000
_COST_OF_A_START = 4
_LONGEST_EXTENT = 20_000
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)
_QUOTES = f"\"'{CURLY_DOUBLE}{CURLY_SINGLE}"
_START = re.compile(
    rf"""\{{(?={BLANKS}*(?:[{_QUOTES}}}#\d-]|//|[A-Za-z_$][\w$-]{{0,200}}\s*:))"""
    rf"""|\[(?={BLANKS}*(?:[{_QUOTES}\[\]{{(#\d.+-]|//|[tfniuTFNI]))"""
)
_FENCE = re.compile(
    r"(?P<indent>^[ \t>]*)?(?P<mark>`{3,}|~{3,})[ \t]*(?P<label>[\w.+-]*)(?P<rest>[ \t]*\r?$)?",
    re.MULTILINE,
)
_JSON_LABELS = re.compile(r"json\w*|ndjson", re.IGNORECASE)
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


class Fence(NamedTuple):
    """A fenced block: where its content begins and ends, and what it says it is."""

    start: int
    end: int
    label: str


class Candidate(NamedTuple):
    """A value and where it stands; loose is one inside something that could not be read."""

    value: Any
    start: int
    label: str | None
    loose: bool


@dataclass
class Findings:
    """All that was found, in the order of the text, and the last thing that was broken."""

    candidates: list[Candidate] = field(default_factory=list)
    trouble: Broken | None = None

    def best_first(self) -> list[Candidate]:
        """The last before the first, but what is empty or in another language behind the rest."""
        labelled = any(found.label and _is_json(found.label) for found in self.candidates)

        def rank(found: Candidate) -> tuple[bool, bool, bool, int]:
            foreign = found.label is not None and not _is_json(found.label)
            if found.label == "":
                foreign = labelled
            empty = found.value == {} or found.value == []
            return found.loose, empty, foreign, -found.start

        return sorted(self.candidates, key=rank)


def findings(text: str) -> Findings:
    """Every candidate of a text, in time proportional to its length."""
    return _Search(text).run()


class _Search:
    """One pass over a text, from bracket to bracket."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fences = list(_fences(text))
        self._starts = [fence.start for fence in self._fences]
        self._allowance = _READ_AGAIN
        self._broken_until = 0
        self._found = Findings()

    def run(self) -> Findings:
        whole = Fence(0, len(self._text), "")
        alone = dict(_scalars(self._text, [whole]) or _scalars(self._text, self._fences))
        for place, value in alone.items():
            self._found.candidates.append(Candidate(value, place.start, place.label, False))
        position = len(self._text) if whole in alone else 0
        while start := _START.search(self._text, position):
            fence = self._fence_around(start.start())
            position = fence.end if fence in alone else self._read(start.start(), fence)
        return self._found

    def _read(self, at: int, fence: Fence | None) -> int:
        """Read what begins here, and say where to go on."""
        within = fence.end if fence else len(self._text)
        end = len(self._text) if self._allowance > 0 else within
        try:
            value, end = LenientReader(self._text, at, end).read()
        except Broken as broken:
            self._allowance -= broken.at - at + _COST_OF_A_START
            self._note(broken if broken.at <= within else self._again(broken, within))
            return at + 1 if self._allowance > 0 else _next_line(self._text, broken.at)
        loose = at < self._broken_until
        self._found.candidates.append(Candidate(value, at, fence.label if fence else None, loose))
        return end

    def _fence_around(self, at: int) -> Fence | None:
        index = bisect_right(self._starts, at) - 1
        return self._fences[index] if index >= 0 and at < self._fences[index].end else None

    def _again(self, broken: Broken, end: int) -> Broken:
        """How it breaks within its fence: what is wrong there is not to be found behind it."""
        try:
            LenientReader(self._text, broken.start, end).read()
        except Broken as nearer:
            return nearer
        return broken

    def _note(self, broken: Broken) -> None:
        if broken.meant and broken.start >= self._broken_until:
            self._found.trouble = broken
        if broken.meant:
            self._broken_until = max(self._broken_until, self._extent(broken))

    def _extent(self, broken: Broken) -> int:
        """Where something broken ends, as far as its brackets tell."""
        if self._allowance <= 0 or broken.cut_off:
            return broken.at
        depth, last = broken.depth, broken.at
        for bracket in _BRACKETS.finditer(self._text, last, last + _LONGEST_EXTENT):
            last = bracket.end()
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(bracket.group(), 0)
            if not depth:
                break
        # Counting brackets is quicker than reading.
        self._allowance -= (last - broken.at) // 4
        return broken.at + 1 if depth else last


def _next_line(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline


def _is_json(label: str) -> bool:
    return _JSON_LABELS.fullmatch(label) is not None


def _fences(text: str) -> Iterator[Fence]:
    """Fenced blocks; one with a label ends the block before it, since models forget to."""
    mark, start, label = "", 0, ""
    for found in _FENCE.finditer(text):
        begins = found["indent"] is not None
        bare = not found["label"] and found["rest"] is not None
        if mark and bare and found["mark"].startswith(mark):
            yield Fence(start, found.start(), label)
            mark = ""
        elif begins and (not mark or found["label"]):
            if mark:
                yield Fence(start, found.start(), label)
            mark, start, label = found["mark"], found.end(), found["label"]
    if mark:
        yield Fence(start, len(text), label)


def _scalars(text: str, places: list[Fence]) -> list[tuple[Fence, Any]]:
    """Texts, numbers and words that are all there is in a place, with that place."""
    found: list[tuple[Fence, Any]] = []
    for place in places:
        words = text[place.start : place.end].strip().strip("\ufeff").strip()
        if words in _PYTHON_WORDS:
            found.append((place, _PYTHON_WORDS[words]))
        elif words and words[0] not in "[{":
            with suppress(ValueError):
                found.append((place, _DECODER.decode(words)))
    return found
