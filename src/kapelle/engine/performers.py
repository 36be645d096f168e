"""The asyncio tasks that perform attempts and runs in this daemon, by their ids.

The rows in the database decide what runs. A performer may die at any moment; it is started again
and begins from the top.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

_log = logging.getLogger("kapelle.performers")
# Number of endings without a verdict after which the performer is given up.
MAX_PERFORMANCES = 5
# Pause after an internal error. After a crash, performers start at once.
_PAUSE_S = 5.0
_CLOSE_S = 3.0

Perform = Callable[[str], Coroutine[Any, Any, None]]
GiveUp = Callable[[str], Awaitable[None]]


class Performers:
    """Performs attempts or runs, each in at most one task, on one event loop."""

    def __init__(self, perform: Perform, give_up: GiveUp) -> None:
        self._perform = perform
        self._give_up = give_up
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Number and moment (monotonic) of endings here, while the row is still "running".
        self._ended: dict[str, tuple[int, float]] = {}

    def start(self, subject: str) -> None:
        """Start performing, unless that is happening already."""
        if subject not in self._tasks:
            self._tasks[subject] = asyncio.create_task(self._perform_guarded(subject), name=subject)

    async def restart(self, running: Collection[str]) -> None:
        """Start the running attempts or runs that nobody performs here."""
        # Forget those whose rows have moved on.
        self._ended = {key: self._ended[key] for key in running if key in self._ended}
        for subject in running:
            if subject in self._tasks:
                continue
            times, at = self._ended.get(subject, (0, 0.0))
            if times >= MAX_PERFORMANCES:
                await self._give_up(subject)
            elif not times or time.monotonic() - at > _PAUSE_S:
                _log.info("%s is started again from the top", subject)
                self.start(subject)

    async def close(self) -> None:
        """Stop performing; the next daemon continues, as after a crash."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)

    async def _perform_guarded(self, subject: str) -> None:
        try:
            await self._perform(subject)
        # SystemExit and KeyboardInterrupt from an asyncio task would end the daemon.
        except (Exception, SystemExit, KeyboardInterrupt):
            _log.exception("%s ended inside the engine without a verdict", subject)
        finally:
            times, _ = self._ended.get(subject, (0, 0.0))
            self._ended[subject] = (times + 1, time.monotonic())
            del self._tasks[subject]
