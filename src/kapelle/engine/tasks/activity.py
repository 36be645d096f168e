"""What agents at work do right now: told to whoever listens, and kept nowhere."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kapelle.domain.task import Activity

if TYPE_CHECKING:
    from kapelle.engine.tasks.watch import Watch

# How soon a new line is noticed; a look costs one question to the file system.
_LOOK_S = 0.05

Listener = Callable[[Activity], None]


class Activities:
    """The attempts that this daemon watches, closely only while somebody listens."""

    def __init__(self) -> None:
        self._watched: set[Watch] = set()
        self._listeners: set[Listener] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def showing(self, watched: "Watch") -> Iterator[None]:
        """While an attempt can be looked at."""
        self._watched.add(watched)
        try:
            yield
        finally:
            self._watched.discard(watched)

    @contextmanager
    def telling(self, listener: Listener) -> Iterator[None]:
        """While somebody listens, who is told first how things stand."""
        self._listeners.add(listener)
        for watched in self._watched:
            listener(watched.activity())
        self._looking = self._looking or asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def tell(self, watched: "Watch") -> None:
        if self._listeners:
            activity = watched.activity()
            for listener in self._listeners:
                listener(activity)

    async def _look(self) -> None:
        while self._listeners:
            for watched in self._watched:
                watched.glance()
            await asyncio.sleep(_LOOK_S)
        self._looking = None
