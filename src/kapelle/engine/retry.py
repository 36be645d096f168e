"""Repeats what fails because disk, memory or database are not to be had for a while, and what is
never done."""

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

_log = logging.getLogger("kapelle.retry")
_PAUSE_S = 1.0
PASSING = {
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
}  # fmt: skip


async def repeat(
    log: logging.Logger,
    duty: Callable[[], Awaitable[float | None]],
    watch: AbstractContextManager[DatabaseWatch],
    every_s: float,
) -> NoReturn:
    """Do a duty until cancelled: at every change that is watched, and after the time that it names
    or every_s; one that fails is logged and done again."""
    with watch as changed:
        while True:
            try:
                pause_s = await duty()
                await changed.wait(every_s if pause_s is None else pause_s)
                continue
            except Unavailable as error:
                log.warning("a pass waits: %s", error.message)
            except Exception:
                log.exception("a pass failed and will be made again")
            # However much is written meanwhile, which may be its own doing.
            await asyncio.sleep(_PAUSE_S)


def retried(
    function: Callable[P, Coroutine[Any, Any, T]],
    again: Callable[[], Awaitable[None]] | None = None,
) -> Callable[P, Coroutine[Any, Any, T]]:
    """The function, repeated as long as the disk, memory or database are not to be had; before it
    is called again, that is."""

    @functools.wraps(function)
    async def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await function(*args, **kwargs)
            except Unavailable as error:
                _log.warning("%s waits: %s", function.__name__, error.message)
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                _log.warning("%s waits: %s", function.__name__, error)
            await asyncio.sleep(_PAUSE_S)
            if again is not None:
                await again()

    return repeated
