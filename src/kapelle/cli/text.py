"""Text from agents, git and people: made harmless for a terminal, and cut to size."""

import re
import sys
import unicodedata

from kapelle.domain import ids

_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor movement
    # OSC and similar. An escape character ends one as well: without that, a line that is made
    # of the beginnings of such sequences takes quadratic time.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # short sequences, and the beginning of unfinished ones
)
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DECEPTIVE = re.compile(r"[\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# npm prints these lines below the output of every script that fails.
_NPM_NOISE = ("npm error", "npm ERR!")
REASON_TAIL = 20


def clean(text: str) -> str:
    """Remove everything that could control a terminal; make bidirectional controls visible."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    text = _ESCAPE_SEQUENCE.sub("", text)
    # A progress bar returns the carriage: without line breaks its states would run together.
    text = text.replace("\r", "\n")
    text = _CONTROL.sub("", text)
    return _DECEPTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clean_except_colours(line: str) -> str:
    """Remove everything that could control a terminal, except sequences that set colours."""
    pieces = []
    for piece in _COLOUR.split(line):
        if _COLOUR.fullmatch(piece):
            pieces.append(piece)
        else:
            pieces.append(clean(piece))
    return "".join(pieces)


def shorten_ids_on_terminal(text: str) -> str:
    """Return the text with short ids if stdout is a terminal; programs get whole ids."""
    if sys.stdout.isatty():
        return ids.shorten_ids(text)
    return text


def one_line(text: str, width: int | None = None) -> str:
    """Return the cleaned text on a single line, cut to a number of characters."""
    line = " ".join(clean(text).split())
    if width is not None and len(line) > width:
        return line[: max(width - 1, 0)] + "…"
    return line


def last_lines(text: str, count: int) -> list[str]:
    """Return the last lines of the cleaned text."""
    return clean(text).rstrip("\n").split("\n")[-count:]


def last_output_lines(output: str, count: int) -> list[str]:
    """Return the last lines of a program's output, without the lines that npm always adds."""
    lines = clean(output).rstrip("\n").split("\n")
    informative = [line for line in lines if not line.startswith(_NPM_NOISE)]
    return (informative or lines)[-count:]


def reason_lines(reason: str) -> list[str]:
    """Return the first line of a reason, then the last lines of the output that it quotes."""
    first, *output = clean(reason).strip().split("\n")
    return [one_line(first), *output[-REASON_TAIL:]]


def cell_width(text: str) -> int:
    """Return the number of terminal cells that a text takes."""
    if text.isascii():
        return len(text)
    width = len(text)
    for letter in text:
        if unicodedata.east_asian_width(letter) in "WF":
            width += 1
        if unicodedata.combining(letter):
            width -= 1
    return width


def cut_text(text: str, width: int) -> str:
    """Return the text, cut to a number of terminal cells."""
    if cell_width(text) <= width:
        return text
    while text and cell_width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def cut_title(title: str, width: int) -> str:
    """Return a title on one line, cut in front of the brackets at its end.

    The brackets tell apart titles that begin alike, such as those of the parts of a run.
    """
    line = one_line(title)
    start, bracket, distinction = line.rpartition(" (")
    is_too_long = cell_width(distinction) > width * 2 // 3
    if cell_width(line) <= width or not bracket or is_too_long:
        return cut_text(line, width)
    return f"{cut_text(start, width - cell_width(distinction) - 2)} ({distinction}"
