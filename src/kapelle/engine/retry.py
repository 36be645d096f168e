"""Repeats what fails because disk, memory or database are not to be had for a while."""

import asyncio
import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from kapelle.domain.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("kapelle.retry")
_PAUSE_S = 1.0
PASSING = {
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
}  # fmt: skip


def retried(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The function, repeated as long as the disk, memory or database are not to be had."""

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

    return repeated
