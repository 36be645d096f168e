"""Lists of tasks, runs and schedules, which the daemon sends page by page."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from kapelle.cli.layout import format_table
from kapelle.cli.parser import Decorator, complete_choice, option
from kapelle.cli.result import Result
from kapelle.cli.text import one_line
from kapelle.cli.types import Number
from kapelle.cli.values import choice, listed, not_empty
from kapelle.client.http import DaemonConnection

Items = list[Any]
ListItem = TypeVar("ListItem")
ItemFormatter = Callable[[Items], Iterable[str]]

_PAGE = 200

repository_option = option(
    "--repo",
    "repository",
    metavar="NAME|DIR",
    help="Name or directory of the only repository to consider.",
)


def limit_option(default: int, maximum: int | None = None) -> Decorator[Any]:
    """Return the option for the maximum number of items of a list."""
    limits = Number(1, maximum)
    return option(
        "--limit", type=limits, metavar="NUMBER", default=default, help="Maximum number of items."
    )


def repository_filter(typed: str | None) -> str | None:
    """Return a repository as the API takes it: a path, or a name as it was typed."""
    if typed is None:
        return None
    if not_empty(typed, "--repo").startswith((".", "~", "/")):
        return os.path.abspath(os.path.expanduser(typed))
    return typed


def status_option(nouns: str, choices: Sequence[str]) -> Decorator[Any]:
    """Return the option that selects items by their status."""
    return option(
        "--status",
        metavar="STATUS",
        multiple=True,
        help=f"Status of the {nouns} to list.",
        shell_complete=complete_choice(choices),
    )


def statuses(typed: Sequence[str], choices: Sequence[str]) -> list[str | None] | None:
    """Return the typed statuses, each of which must exist; None without any."""
    names = listed(typed, "--status")
    return [choice("--status", name.lower(), choices) for name in names] or None


def listing(
    path: str,
    query: dict[str, Any],
    limit: int,
    lines: ItemFormatter,
    nothing: str,
    client: DaemonConnection | None = None,
) -> Result:
    """Return the newest items at a path; a remark tells if there are more than the limit."""
    query = {**query, "limit": min(_PAGE, limit + 1)}
    items = list(islice((client or DaemonConnection()).pages(path, query), limit + 1))
    remarks = []
    if len(items) > limit:
        remarks.append(f"{limit} shown; `--limit {limit * 5}` shows more.")
    return whole_list(items[:limit], lines, nothing, remarks)


def whole_list(
    items: Items, lines: ItemFormatter, nothing: str, remarks: Sequence[str] = ()
) -> Result:
    """Return all items with their lines, or with a remark if there are none."""
    if not items:
        return Result(items, remarks=[nothing])
    return Result(items, lines(items), remarks)


def columns(
    header: str,
    row: Callable[[ListItem], Iterable[object]],
    style_by_status: Mapping[str, str | None] | None = None,
    **settings: Any,
) -> Callable[[Sequence[ListItem]], list[str]]:
    """Return a function that makes a table of items.

    The header is separated by commas, row returns the cells of an item. A line is styled by the
    beginning of its second cell. The other settings are those of `format_table`.
    """

    def lines(items: Sequence[ListItem]) -> list[str]:
        rows = [[one_line(str(cell)) for cell in row(item)] for item in items]
        styles_by_word = style_by_status or {}
        styles = [styles_by_word.get(cells[1].partition(",")[0]) for cells in rows]
        return format_table(header.split(","), rows, **{"styles": styles, **settings})

    return lines
