"""Lists of tasks, runs and schedules, which the daemon gives page by page."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

from kapelle.cli.command import CommandOutput, option
from kapelle.cli.format import one_line, table
from kapelle.cli.output import say
from kapelle.cli.values import choice, listed, not_empty
from kapelle.client.http import DaemonConnection

Items = list[Any]
ItemFormatter = Callable[[Items], Iterable[str]]

_PAGE = 200
LimitOption = Annotated[int, option(None, "How many at most.", min=1)]


RepositoryOption = Annotated[
    str | None, option("NAME|DIR", "Only of this repository, by its name or a directory.", "--repo")
]


def repository_filter(typed: str | None) -> str | None:
    """Return a repository as the API takes it: a path, or a name as it was typed."""
    if typed is None:
        return None
    if not_empty(typed, "--repo").startswith((".", "~", "/")):
        return os.path.abspath(os.path.expanduser(typed))
    return typed


def status_option(nouns: str, known: Sequence[str]) -> Any:
    """The option that picks states, and completes them."""

    def complete(incomplete: str) -> list[str]:
        return [status for status in known if status.startswith(incomplete)]

    return option("STATUS", f"Only {nouns} in this state; repeatable.", autocompletion=complete)


def statuses(typed: list[str] | None, known: Sequence[str]) -> list[str | None] | None:
    """The states asked for, each of which must exist."""
    wanted = listed(typed or [], "--status")
    return [choice("--status", one.lower(), known) for one in wanted] or None


def listing(
    path: str,
    query: dict[str, Any],
    limit: int,
    lines: ItemFormatter,
    nothing: str,
    client: DaemonConnection | None = None,
) -> CommandOutput:
    """The newest of what there is at a path, which the daemon gives page by page."""
    query = {**query, "limit": min(_PAGE, limit + 1)}
    found = [*islice((client or DaemonConnection()).pages(path, query), limit + 1)]
    yield from whole_list(found[:limit], lines, nothing)
    if found[limit:]:
        say(f"{limit} shown; `--limit {limit * 5}` shows more.")


def whole_list(found: Items, lines: ItemFormatter, nothing: str) -> CommandOutput:
    """All that was found, with lines about it or a word that there is nothing."""
    yield found
    if found:
        yield from lines(found)
    else:
        say(nothing)


def columns(
    header: str,
    row: Callable[[dict[str, Any]], Iterable[Any]],
    by_status: Mapping[str, str | None] | None = None,
    **how: Any,
) -> Callable[[Items], list[str]]:
    """Lines that make a table: its header, the cells of one row, the styles of its second column
    by what that begins with, and how else `table` is to show it."""

    def lines(found: Items) -> list[str]:
        rows = [[one_line(str(cell)) for cell in row(one)] for one in found]
        known = by_status or {}
        styles = [known.get(cells[1].partition(",")[0]) for cells in rows]
        return table(header.split(","), rows, **{"styles": styles, **how})

    return lines
