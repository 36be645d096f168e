"""Background loops, and retries while the disk, memory or the database is unavailable."""

import asyncio
import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, NoReturn, ParamSpec, TypeVar

from kapelle.domain.errors import Unavailable
from kapelle.store.database import DatabaseWatch

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("kapelle.background")
_PAUSE_S = 1.0
# Errors that pass once somebody frees space, memory or file descriptors.
TRANSIENT_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
}


async def repeat(
    log: logging.Logger,
    duty: Callable[[], Awaitable[float | None]],
    watch: AbstractContextManager[DatabaseWatch],
    every_s: float,
) -> NoReturn:
    """Run a duty until cancelled.

    The duty runs again after each watched change, and at the latest after the pause that it
    returned or after every_s. A failure is logged, and the duty runs again.
    """
    with watch as changes:
        while True:
            try:
                pause_s = await duty()
                await changes.wait(every_s if pause_s is None else pause_s)
                continue
            except Unavailable as error:
                log.warning("a pass failed for now and will be repeated: %s", error.message)
            except Exception:
                log.exception("a pass failed and will be repeated")
            # Not the watch: the failing duty may itself write what wakes it, and would spin.
            await asyncio.sleep(_PAUSE_S)


def with_retries(
    function: Callable[P, Coroutine[Any, Any, T]],
    before_retry: Callable[[], Awaitable[None]] | None = None,
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Wrap a function so that it is retried while disk, memory or database is unavailable.

    before_retry is awaited before each retry. Other errors are raised at once.
    """

    @functools.wraps(function)
    async def call_until_available(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await function(*args, **kwargs)
            except Unavailable as error:
                _log.warning("%s will be retried: %s", function.__name__, error.message)
            except OSError as error:
                if error.errno not in TRANSIENT_ERRORS:
                    raise
                _log.warning("%s will be retried: %s", function.__name__, error)
            await asyncio.sleep(_PAUSE_S)
            if before_retry is not None:
                await before_retry()

    return call_until_available
