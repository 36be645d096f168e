"""Lists of tasks, runs and schedules, which the daemon gives page by page."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kapelle.cli.command import option
from kapelle.cli.output import document, say, write
from kapelle.cli.values import listed
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput

Items = list[dict[str, Any]]
Lines = Callable[[Items], Iterable[str]]

_PAGE = 200


def status_option(nouns: str, known: Sequence[str]) -> Any:
    """The option that picks states, and completes them."""

    def complete(incomplete: str) -> list[str]:
        return [status for status in known if status.startswith(incomplete)]

    return option("STATUS", f"Only {nouns} in this state; repeatable.", autocompletion=complete)


def statuses(typed: list[str] | None, noun: str, known: Sequence[str]) -> list[str] | None:
    """The states asked for, each of which must exist."""
    wanted = [status.lower() for status in listed(typed or [], "--status")]
    for status in wanted:
        if status not in known:
            raise InvalidInput(
                f"{status!r} is not a state of a {noun}.", hint=f"Use one of {', '.join(known)}."
            )
    return wanted or None


def show_list(
    client: Connection,
    path: str,
    query: dict[str, Any],
    limit: int,
    *,
    as_json: bool,
    lines: Lines,
    nothing: str,
) -> None:
    """Show the newest of what there is at a path, or say that there is nothing."""
    found, more = _fetch(client, path, query, limit)
    if as_json:
        document(found)
        return
    if not found:
        say(nothing)
        return
    write(lines(found))
    if more:
        say(f"There are more; `--limit {limit * 5}` shows further ones.")


def _fetch(client: Connection, path: str, query: dict[str, Any], limit: int) -> tuple[Items, bool]:
    """At most so many, and whether there are more."""
    found: Items = []
    cursor = None
    while len(found) < limit:
        size = min(_PAGE, limit - len(found))
        page = client.get(path, {**query, "limit": size, "cursor": cursor})
        found += page[path.rpartition("/")[2]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    return found, bool(cursor)
