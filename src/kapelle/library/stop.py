"""Telling an agent that is at work to end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stop:
    """The wish that a piece of work ends, made from any thread; the first reason counts.

    What runs a process listens; what only computes may look at `wanted` or use `wait` to sleep.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._reason = ""
        self._listeners: list[Callable[[], None]] = []

    @property
    def wanted(self) -> bool:
        return self._event.is_set()

    @property
    def reason(self) -> str:
        """Why, once it is wanted."""
        return self._reason

    def ask(self, reason: str) -> None:
        """Want it, and call everybody who listens."""
        with self._lock:
            if self._event.is_set():
                return
            self._reason = reason
            self._event.set()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until it is wanted or the time has passed; whether it is wanted."""
        return self._event.wait(timeout_s)

    @contextmanager
    def calls(self, listener: Callable[[], None]) -> Iterator[None]:
        """Have a function called as soon as it is wanted, which may be now."""
        with self._lock:
            self._listeners.append(listener)
        try:
            if self.wanted:
                listener()
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)
