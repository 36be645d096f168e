"""Waiting for something in the database, as the requests with `timeout_s` do."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from kapelle.store.database import Connection, Database

T = TypeVar("T")

# Writes of another daemon on the same database do not wake this one; so it looks this often.
_LOOK_S = 5.0


async def wait_until(
    db: Database, keys: Iterable[str], timeout_s: float, condition: Callable[[Connection], T]
) -> T:
    """Wait until a condition holds, for at most timeout_s; return its last value.

    The condition is evaluated at once and after every write about one of the keys. A key is the id
    of a task or a run, or the name of anything else, such as `note KEY of SCOPE`.

    Errors of the condition are raised: NotFound, for example, if the task is deleted meanwhile.

    A truthy value ends the wait. After timeout_s the value may be falsy; the client then calls
    again. So no HTTP request stays open for hours, and none is lost when the daemon restarts.
    """
    deadline = time.monotonic() + timeout_s
    with db.watch(*keys) as changes:
        while True:
            value = await db.glance(condition)
            remaining_s = deadline - time.monotonic()
            if value or remaining_s <= 0:
                return value
            await changes.wait(min(remaining_s, _LOOK_S))
