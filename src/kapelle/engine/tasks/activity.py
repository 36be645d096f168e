"""The current activity of running agents, published to listeners and stored nowhere."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kapelle.domain.task import Activity

if TYPE_CHECKING:
    from kapelle.engine.tasks.watch import AttemptWatch

# Interval of the look for new output while somebody listens.
_LOOK_S = 0.1

Listener = Callable[[Activity], None]


class Activities:
    """The attempts that this daemon watches; closely only while somebody listens."""

    def __init__(self) -> None:
        self._watches: set[AttemptWatch] = set()
        self._listeners: set[Listener] = set()

    @property
    def pause_s(self) -> float:
        """Return how long an attempt may go on without a look at it."""
        if self._listeners:
            return _LOOK_S
        return math.inf

    @contextmanager
    def register(self, watch: "AttemptWatch") -> Iterator[None]:
        """Register an attempt for live activity."""
        self._watches.add(watch)
        try:
            yield
        finally:
            self._watches.discard(watch)

    @contextmanager
    def listen(self, listener: Listener) -> Iterator[None]:
        """Send the present activities to a listener, then every new one."""
        self._listeners.add(listener)
        for watch in self._watches:
            listener(watch.activity())
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def publish(self, watch: "AttemptWatch") -> None:
        """Send the activity of an attempt to all listeners."""
        activity = watch.activity()
        for listener in self._listeners:
            listener(activity)
