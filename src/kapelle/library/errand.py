"""Blocking work in a thread of its own, which can be told to end and, at worst, be left behind."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from kapelle.library.stop import Stop

T = TypeVar("T")


class LeftBehind(Exception):
    """The work did not end in time; its thread goes on, and what comes of it is not used."""


class Errand(Generic[T]):
    """One call of a function that does not know of asyncio."""

    def __init__(self, function: Callable[[], T], stop: Stop, ends_within_s: float) -> None:
        self._function = function
        self._stop = stop
        self._ends_within_s = ends_within_s

    async def run(self, limit_s: float | None) -> T:
        """What the function returns or raises; after the limit, and when cancelled, it is ended.

        Raises LeftBehind when it would not end.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result = context.run(self._function)
            except BaseException as error:
                _report(loop, done, None, error)
            else:
                _report(loop, done, result, None)

        # A daemon: what cannot be ended must not keep the whole program from ending.
        threading.Thread(target=work, name="kapelle-agent", daemon=True).start()
        try:
            await asyncio.wait([done], timeout=limit_s)
            if not done.done():
                await self._end(done, f"{limit_s:g} s have passed")
        except asyncio.CancelledError:
            with suppress(LeftBehind):
                await self._end(done, "the run was interrupted")
            raise
        return done.result()

    async def _end(self, done: "asyncio.Future[T]", reason: str) -> None:
        self._stop.ask(reason)
        await asyncio.wait([done], timeout=self._ends_within_s)
        if not done.done():
            raise LeftBehind(reason)


def _report(
    loop: asyncio.AbstractEventLoop,
    done: "asyncio.Future[T]",
    result: T | None,
    error: BaseException | None,
) -> None:
    def settle() -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            # asyncio passes no other kinds of exceptions on, and this is the edge of a thread.
            done.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            done.exception()

    with suppress(RuntimeError):  # nobody waits any more
        loop.call_soon_threadsafe(settle)
