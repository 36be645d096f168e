"""Colours, tables and fields, fitted to the width of the terminal."""

import os
import re
import shutil
import sys
from collections.abc import Container, Iterator, Mapping, Sequence

from kapelle.cli.text import cell_width, clean, cut_title, shorten_ids_on_terminal

_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
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
_GAP = "  "
# The width that the last column of a table needs, or other columns move to a second line.
_LEAST_LAST = 16
_FIELD_NAME_WIDTH = 10
_FIELD_INDENT = 13


def uses_colours() -> bool:
    """Tell whether stdout is a terminal with colours and its user has not declined them."""
    is_declined = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") == "dumb"
    return sys.stdout.isatty() and not is_declined


def paint(text: str, style: str | None) -> str:
    """Return the text in a style if stdout shows colours.

    The text must be clean already: cleaning removes the escape sequences of the style.
    """
    if not style or not text or not uses_colours():
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def terminal_width() -> int | None:
    """Return the columns of the terminal, or None if stdout is none: lines are not cut then."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def format_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None = None,
    indent: int = 0,
    fold: Sequence[int] = (),
    right: Container[int] = (),
) -> list[str]:
    """Return rows in aligned columns; the last column is cut at the edge of the terminal.

    styles has one style per row, for the second column. fold has the numbers of columns that move
    to lines of their own in a narrow terminal; right has the numbers of columns that are aligned
    to the right.
    """
    cells = [header, *([shorten_ids_on_terminal(cell) for cell in row] for row in rows)]
    widths = _column_widths(cells)
    width_before_last = indent + sum(widths) + len(_GAP) * len(widths)
    room = terminal_width()
    if fold and room is not None and width_before_last > room - _LEAST_LAST:
        return _fold_table(header, rows, styles, indent, fold)
    lines = []
    for number, row in enumerate(cells):
        padded = _pad_cells(row, widths, right)
        if room is None:
            last = row[-1]
        else:
            last = cut_title(row[-1], max(room - width_before_last, 8))
        if number == 0:
            line = paint(_GAP.join([*padded, last]).rstrip(), "bold")
        else:
            if styles and len(padded) > 1:
                padded[1] = paint(padded[1], styles[number - 1])
            line = _GAP.join([*padded, last]).rstrip()
        lines.append(" " * indent + line)
    return lines


def _column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of all columns except the last."""
    count = len(rows[0]) - 1
    return [max(cell_width(row[index]) for row in rows) for index in range(count)]


def _pad_cells(row: Sequence[str], widths: Sequence[int], right: Container[int]) -> list[str]:
    """Return the cells of a row, except the last, filled up to the widths of their columns."""
    padded = []
    for index, (cell, width) in enumerate(zip(row, widths, strict=False)):
        filling = " " * (width - cell_width(cell))
        if index in right:
            padded.append(filling + cell)
        else:
            padded.append(cell + filling)
    return padded


def _fold_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None,
    indent: int,
    fold: Sequence[int],
) -> list[str]:
    """Return a table whose rows take two lines: the columns of fold stand on the second."""
    first_numbers = [number for number in range(len(header)) if number not in fold]
    # A table cuts its last column. If that is one of fold, an empty one takes its place.
    end = []
    if len(header) - 1 in fold:
        end = [""]
    first_rows = []
    second_rows = []
    for row in (header, *rows):
        first_rows.append([*(row[number] for number in first_numbers), *end])
        second_rows.append([row[number] for number in fold])
    first_lines = format_table(first_rows[0], first_rows[1:], styles, indent)
    second_lines = format_table(second_rows[0], second_rows[1:], None, indent + 4)
    lines = []
    for pair in zip(first_lines, second_lines, strict=True):
        lines += [line for line in pair if line.strip()]
    return lines


def wrap_line(text: str, indent: int) -> str:
    """Break a line between words at the edge of the terminal; later lines are indented."""
    room = terminal_width()
    if room is None:
        return text
    first, *words = re.split(r"(?<=\S) ", text)
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        # The escape sequences of styles take no room.
        if cell_width(clean(longer)) <= room:
            lines[-1] = longer
        else:
            lines.append(" " * indent + word.lstrip())
    return "\n".join(lines)


def check_mark(is_good: bool) -> str:
    if is_good:
        return paint("✓", "green")
    return paint("✗", "red")


def field_line(name: str, value: str) -> str:
    """Return a line with the name of a field and its value."""
    # The id itself stays whole in its own field.
    if name != "id":
        value = shorten_ids_on_terminal(value)
    line = f"  {paint(name.ljust(_FIELD_NAME_WIDTH), 'dim')} {value}"
    return wrap_line(line.rstrip(), _FIELD_INDENT)


def field_lines(values: Mapping[str, str | None]) -> Iterator[str]:
    """Yield a line for each field with a value."""
    for name, value in values.items():
        if value:
            yield field_line(name, value)


def command_lines(commands: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the commands that may be typed next, each with its purpose beside or below it."""
    yield ""
    commands = [(shorten_ids_on_terminal(command), purpose) for command, purpose in commands]
    width = max(len(command) for command, _ in commands)
    longest_purpose = max(len(purpose) for _, purpose in commands)
    room = terminal_width()
    fits_beside = room is None or width + longest_purpose + 4 <= room
    for command, purpose in commands:
        if fits_beside:
            yield f"  {command.ljust(width)}  {paint(purpose, 'dim')}".rstrip()
        else:
            yield f"  {command}"
            if purpose:
                yield paint(f"      {purpose}", "dim")
