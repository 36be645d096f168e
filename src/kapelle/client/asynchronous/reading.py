"""Lists page by page, and waiting in polls that a restart of the daemon does not end."""

import time
from collections.abc import Callable
from typing import TypeVar

from kapelle.client.answers import Page
from kapelle.client.asynchronous.connection import AsyncConnection, Query
from kapelle.client.flavours import AsyncStream
from kapelle.client.requests import read_as

T = TypeVar("T")

LONG_POLL_S = 25.0


async def pages(
    connection: AsyncConnection, path: str, kind: type[Page[T]], query: Query
) -> AsyncStream[T]:
    """Every item of a list; a page is asked for when the one before it is used up."""
    cursor: str | None = None
    while True:
        page = read_as(kind, await connection.get(path, {**query, "cursor": cursor}))
        for item in page.items:
            yield item
        cursor = page.next_cursor
        if cursor is None:
            return


async def rested(
    connection: AsyncConnection,
    path: str,
    kind: type[T],
    rests: Callable[[T], bool],
    timeout_s: float | None,
) -> T:
    """What is at path once it rests, or as it is when the time is up."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = LONG_POLL_S if deadline is None else max(deadline - time.monotonic(), 0)
        poll_s = round(min(left, LONG_POLL_S), 3)
        answer = await connection.get(path, {"timeout_s": poll_s}, poll_s + 30)
        found = read_as(kind, answer)
        if rests(found) or (deadline is not None and time.monotonic() >= deadline):
            return found
