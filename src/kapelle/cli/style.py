"""Colours and columns for a terminal, without the cost of importing rich."""

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence

_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
# So much of the last column is to be seen of a table whose rows stand on one line each.
_LEAST_LAST = 16
STATUS_STYLE = {
    "completed": "green",
    "failed": "red",
    "lost": "red",
    "cancelled": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "blocked": "yellow",
    "paused": "yellow",
}


def colourful() -> bool:
    """Whether stdout shows colours and its reader wants them."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") != "dumb"
    )


def paint(text: str, style: str | None) -> str:
    """The text in a style; callers clean it first, because the codes are escape sequences."""
    if not style or not text or not colourful():
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def terminal_width() -> int | None:
    """Columns of the terminal, or None in a pipe, where lines are never cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def columns_of(text: str) -> int:
    """How many terminal cells a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None = None,
    indent: int = 0,
    fold: Sequence[int] = (),
) -> list[str]:
    """Rows in aligned columns; the last column is cut at the terminal's edge.

    styles holds one style per row, for its second column. In a terminal that is too narrow the
    columns of fold, by their numbers, stand on lines of their own.
    """
    everything = [header, *rows]
    widths = [max(columns_of(row[index]) for row in everything) for index in range(len(header) - 1)]
    room = terminal_width()
    if fold and room is not None and indent + sum(widths) + 2 * len(widths) > room - _LEAST_LAST:
        return _folded(header, rows, styles, indent, fold)
    lines = []
    for number, row in enumerate(everything):
        cells = [
            cell + " " * (width - columns_of(cell))
            for cell, width in zip(row, widths, strict=False)
        ]
        used = sum(columns_of(cell) + 2 for cell in cells)
        last = row[-1] if room is None else fit(row[-1], max(room - used - indent, 8))
        if number == 0:
            lines.append(paint("  ".join([*cells, last]).rstrip(), "bold"))
            continue
        if styles and len(cells) > 1:
            cells[1] = paint(cells[1], styles[number - 1])
        lines.append("  ".join([*cells, last]).rstrip())
    return [" " * indent + line for line in lines]


def _folded(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None,
    indent: int,
    fold: Sequence[int],
) -> list[str]:
    # The last column is the only one that is cut, so none of the others may be in its place.
    stay = [number for number in range(len(header)) if number not in fold]
    end = [""] if len(header) - 1 in fold else []
    above = [[*(row[number] for number in stay), *end] for row in (header, *rows)]
    below = [[row[number] for number in fold] for row in (header, *rows)]
    pairs = zip(
        table(above[0], above[1:], styles, indent),
        table(below[0], below[1:], None, indent + 4),
        strict=True,
    )
    return [line for pair in pairs for line in pair if line.strip()]


def fit(text: str, room: int) -> str:
    """The text cut to so many terminal cells."""
    if columns_of(text) <= room:
        return text
    while text and columns_of(text) > room - 1:
        text = text[:-1]
    return text + "…"
