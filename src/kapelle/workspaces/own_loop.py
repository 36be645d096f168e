"""An event loop in a thread of its own, for callers that have none or must not block theirs."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from kapelle.domain.errors import Conflict

T = TypeVar("T")


class OwnLoop:
    """Runs coroutines one by one for whoever calls, from any thread, inside a loop or not."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that ends without closing it must not hang.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result; interrupted, it cancels the work and waits for its end."""
        if self._loop.is_closed():
            work.close()
            raise Conflict("The worktree was left already.", hint="Use it inside the with block.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Not an error of the work itself: somebody pressed Ctrl-C while it went on.
            if future.cancel():
                self._settle()
            raise

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._settle()
        asyncio.run_coroutine_threadsafe(
            self._loop.shutdown_default_executor(), self._loop
        ).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _settle(self) -> None:
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
