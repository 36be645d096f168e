"""What agents at work do right now: told to whoever listens, and kept nowhere."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kapelle.domain.task import Activity

if TYPE_CHECKING:
    from kapelle.engine.tasks.watch import AttemptWatch

# So often it is looked whether there is something to tell.
_TOLD_S = 0.1

Listener = Callable[[Activity], None]


class Activities:
    """The attempts that this daemon watches, closely only while somebody listens."""

    def __init__(self) -> None:
        self._watched: set[AttemptWatch] = set()
        self._listeners: set[Listener] = set()

    @property
    def pause_s(self) -> float:
        """How long an attempt may go on without being looked at."""
        if self._listeners:
            return _TOLD_S
        return math.inf

    @contextmanager
    def showing(self, watched: "AttemptWatch") -> Iterator[None]:
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
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def tell(self, watched: "AttemptWatch") -> None:
        activity = watched.activity()
        for listener in self._listeners:
            listener(activity)
