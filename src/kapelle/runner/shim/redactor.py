"""Replace secrets in a stream of bytes; standard library only.

Which spellings a secret has is computed by the daemon, in `runner/redaction.py`.
"""

import bisect
import re
from functools import cached_property

_REPLACEMENT = b"[redacted]"
_NEEDLE_BYTES = 32
# A beginning of this length is rare enough in a text to be searched for.
_BEGINNING = 4
_PLAIN = re.compile(rb"[0-9A-Za-z]+")
# Bytes that a terminal or a wrapped line inserts into a secret: line ends and colour codes.
_LINE_ENDS = b"\r\n"
_COLOUR = rb"\x1b\[[0-?]*[ -/]*[@-~]"
# The indentation of a wrapped line inside a secret. It is limited, so that a secret is searched for
# in a bounded part of the text. Where blanks belong to the secret, they count.
_MAX_INDENT = 64
_INDENTED_LINE = rb"[\r\n](?:" + _COLOUR + rb")*[ \t]{1,%d}" % _MAX_INDENT
_INDENT = re.compile(_INDENTED_LINE)
_CUT_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]{0,40}[ -/]{0,4})?\Z")
_COLOURS = re.compile(_COLOUR)
# Separators between hexadecimal bytes: 73:6b, 0x73, \\x73, %73.
_BETWEEN = b" \t:-,;_%\\xXuU{}&#"
_LOWER = bytes.maketrans(b"ABCDEF", b"abcdef")
_DIGITS = re.compile(rb"[0-9a-f]{12,}")
# If a line ends with at most this many characters of a secret, they are passed on at once; when the
# secret continues, only the rest of it is replaced.
_FEW = 6


class Redactor:
    """Replaces every secret, the longest first; holds back only what may become one.

    Patterns are found across colour codes and line ends, also where the next line is indented.
    Patterns of hexadecimal digits alone are also found in upper case and with common separators
    between the digits.
    """

    def __init__(self, patterns: tuple[bytes, ...], *, eager: bool = False) -> None:
        self._patterns = patterns
        self._eager = eager
        # The tail that may become a secret, and how many of its bytes were passed on all the same.
        self._held = b""
        self._passed = 0

    def feed(self, chunk: bytes) -> bytes:
        """Take the next chunk; return the data that can be passed on now."""
        if not self._patterns:
            return chunk
        if self._held:
            data = self._held + chunk
        else:
            data = chunk
        return self._clean(data, self._find_hold(data, 0))

    def flush(self) -> bytes:
        """Return the data held back, at the end of the stream."""
        if self._held:
            return self.whole(self._held)
        return b""

    def whole(self, data: bytes) -> bytes:
        """Return complete data without its secrets."""
        return self._clean(data, len(data))

    # Computed on first use: a process that prints nothing never needs them.
    @cached_property
    def _unbroken_patterns(self) -> set[bytes]:
        return {pattern.translate(None, _LINE_ENDS) for pattern in self._patterns} - {b""}

    @cached_property
    def _needles(self) -> list[bytes]:
        return _choose_needles({_normalize(pattern) for pattern in self._unbroken_patterns})

    @cached_property
    def _digits(self) -> "_Patterns":
        patterns = {pattern for pattern in self._unbroken_patterns if _DIGITS.fullmatch(pattern)}
        return _Patterns(patterns, _LINE_ENDS + _BETWEEN, _LOWER)

    @cached_property
    def _texts(self) -> "_Patterns":
        patterns = {
            pattern for pattern in self._unbroken_patterns if not _DIGITS.fullmatch(pattern)
        }
        return _Patterns(patterns, _LINE_ENDS)

    @cached_property
    def _indented_texts(self) -> "_IndentedPatterns":
        unbroken = self._unbroken_patterns
        patterns = {pattern for pattern in unbroken if not _DIGITS.fullmatch(pattern)}
        return _IndentedPatterns(patterns, _LINE_ENDS)

    @cached_property
    def _tail(self) -> int:
        """Return how far from the end the beginning of an unfinished secret can be."""
        longest = max(map(len, self._unbroken_patterns), default=0)
        return longest + min(7 * longest, 1 << 14)

    def _clean(self, data: bytes, hold: int) -> bytes:
        """Return the data without secrets, up to `hold` or to the end of the last secret."""
        clean = []
        passed_end = position = self._passed
        for begin, end in self._find_secrets(data):
            if begin >= hold:
                break
            if end <= passed_end:
                continue
            clean += [data[position:begin], _REPLACEMENT]
            position = end
            if position > hold:
                hold = self._find_hold(data, position)
        clean.append(data[position:hold])
        self._held = data[hold:]
        self._passed = max(0, passed_end - hold)
        if len(self._held) <= _FEW and (self._eager or self._held.endswith(b"\n")):
            # Pass on a few last bytes, so that no line and no echo of typed input is delayed. They
            # are remembered in case they begin a secret.
            clean.append(self._held[self._passed :])
            self._passed = len(self._held)
        return b"".join(clean)

    def _find_secrets(self, data: bytes) -> list[tuple[int, int]]:
        """Return where secrets are, in order and not overlapping."""
        # Most output holds no secret, and a search for a few needles is fast.
        bare = _normalize(data)
        if not any(needle in bare for needle in self._needles):
            return []
        spans: list[tuple[int, int]] = []
        matches = self._texts.spans(data) + self._digits.spans(data)
        matches += self._indented_texts.spans(data)
        for begin, end in sorted(matches):
            if spans and begin < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((begin, end))
        return spans

    def _find_hold(self, data: bytes, begin: int) -> int:
        """Return where the longest tail begins that may be the beginning of a secret."""
        start = max(begin, len(data) - self._tail)
        tail = data[start:]
        if cut_escape := _CUT_ESCAPE.search(tail[-48:]):
            tail = tail[: -len(cut_escape[0])]
        patterns = (self._texts, self._digits, self._indented_texts)
        return start + min(group.begins(tail) for group in patterns)


def _normalize(data: bytes) -> bytes:
    """Return data in a form in which many encodings of a secret are the same.

    For example 73, 0x73 and \\u0073.
    """
    return _remove_colours(data).translate(_LOWER, _BETWEEN + b"0" + _LINE_ENDS)


def _remove_colours(data: bytes) -> bytes:
    if b"\x1b" in data:
        return _COLOURS.sub(b"", data)
    return data


class _PatternPositions:
    """Maps positions in data without separators to positions in the original data."""

    def __init__(self, data: bytes, without: bytes) -> None:
        # For each piece between separators: its beginning without and with the separators.
        self._left = [0]
        self._data = [0]
        removed_bytes = 0
        for match in re.finditer(without, data):
            removed_bytes += match.end() - match.start()
            self._left.append(match.end() - removed_bytes)
            self._data.append(match.end())

    def begin(self, at: int) -> int:
        piece = bisect.bisect_right(self._left, at) - 1
        return self._data[piece] + at - self._left[piece]

    def span(self, begin: int, end: int) -> tuple[int, int]:
        return self.begin(begin), self.begin(end - 1) + 1


class _Patterns:
    """Several patterns, searched together in data without separators."""

    def __init__(self, patterns: set[bytes], separators: bytes, table: bytes | None = None) -> None:
        self._separators = separators
        self._table = table
        self._without = rb"(?:" + _COLOUR + rb"|[" + re.escape(separators) + rb"])+"
        self._patterns = sorted(patterns, key=lambda p: (-len(p), p))
        self._beginnings: set[bytes] = set()
        for pattern in patterns:
            for length in range(1, min(_BEGINNING, len(pattern))):
                self._beginnings.add(pattern[:length])
        self._regex: re.Pattern[bytes] | None = None

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return the beginning and end of every match."""
        # Compiled late, because compiling takes longer than starting an agent.
        if self._regex is None:
            self._regex = re.compile(b"|".join(map(re.escape, self._patterns)) or rb"(?!)")
        spans = [match.span() for match in self._regex.finditer(self._remove_separators(data))]
        if not spans:
            return []
        places = _PatternPositions(data, self._without)
        return [places.span(*span) for span in spans]

    def begins(self, data: bytes) -> int:
        """Return where the longest tail begins that is a proper prefix of a pattern, or the end."""
        at = self._find_beginning(self._remove_separators(data))
        if at is None:
            return len(data)
        return _PatternPositions(data, self._without).begin(at)

    def _remove_separators(self, data: bytes) -> bytes:
        return _remove_colours(data).translate(self._table, self._separators)

    def _find_beginning(self, data: bytes) -> int | None:
        end = earliest = len(data)
        for pattern in self._patterns:
            first = pattern[:_BEGINNING]
            at = max(0, end - len(pattern) + 1) - 1
            while (at := data.find(first, at + 1, earliest + _BEGINNING - 1)) != -1:
                if pattern.startswith(data[at:]):
                    earliest = at
                    break
        for at in range(max(0, end - _BEGINNING + 1), earliest):
            if data[at:] in self._beginnings:
                return at
        return earliest if earliest < end else None


class _IndentedPatterns(_Patterns):
    """Patterns across indented wrapped lines; data without such lines costs a single search."""

    def __init__(self, patterns: set[bytes], separators: bytes) -> None:
        super().__init__(patterns, separators)
        one = rb"|".join((_COLOUR, _INDENTED_LINE, rb"[" + re.escape(separators) + rb"]"))
        self._without = rb"(?:" + one + rb")+"
        self._separator_regex = re.compile(self._without)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return the beginning and end of every match; none without an indented line."""
        if _INDENT.search(data) is None:
            return []
        return super().spans(data)

    def begins(self, data: bytes) -> int:
        """Return where an unfinished match begins; the end without an indented line."""
        if _INDENT.search(data) is None:
            return len(data)
        return super().begins(data)

    def _remove_separators(self, data: bytes) -> bytes:
        return self._separator_regex.sub(b"", data)


def _choose_needles(patterns: set[bytes]) -> list[bytes]:
    """Return a few short strings, one of which is in every pattern."""
    needles: list[bytes] = []
    for pattern in sorted(patterns, key=len):
        if not any(needle in pattern for needle in needles):
            # The encodings of one secret have its runs of letters and digits in common.
            plain = max(_PLAIN.findall(pattern), key=len, default=b"")
            needles.append((plain if len(plain) >= 8 else pattern)[:_NEEDLE_BYTES])
    return needles
