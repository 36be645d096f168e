"""Wakes those who wait for something to happen to one task or run, and nobody else."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kapelle.engine.retry import retried
from kapelle.store import events
from kapelle.store.database import Database

_log = logging.getLogger("kapelle.notify")
# Other daemons on the same database write events that do not wake this process.
_LOOK_S = 2.0


class Heard:
    """One who listens."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when the notifier has rung since the last wait, or when time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)
        self._event.clear()


class Notifier:
    """Reads the history once for all who listen, however many they are."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._listeners: dict[str, set[Heard]] = defaultdict(set)
        self._somebody = asyncio.Event()

    async def run(self) -> None:
        """Ring for every event, until cancelled; what fails is logged and begun again."""
        while True:
            await self._somebody.wait()
            try:
                await self._ring_while_heard()
            except Exception:
                _log.exception("the history could not be read and will be read again")
                await asyncio.sleep(_LOOK_S)
            else:
                self._somebody.clear()

    async def _ring_while_heard(self) -> None:
        seq = await retried(self._db.read)(events.last_seq)
        # Whoever began to listen before this moment may have missed something.
        self._ring_all()
        with self._db.watch() as changed:
            while self._listeners:
                await changed.wait(_LOOK_S)
                found = await retried(self._db.glance)(events.subjects_after, seq)
                for number, task_id, run_id in found:
                    seq = number
                    self._ring(task_id)
                    self._ring(run_id)

    @contextmanager
    def listen(self, *keys: str) -> Iterator[Heard]:
        """Hear of events of these tasks and runs, from now on."""
        heard = Heard()
        for key in keys:
            self._listeners[key].add(heard)
        self._somebody.set()
        try:
            yield heard
        finally:
            for key in keys:
                self._listeners[key].discard(heard)
                if not self._listeners[key]:
                    del self._listeners[key]

    def _ring(self, key: str | None) -> None:
        for heard in self._listeners.get(key, ()) if key else ():
            heard.ring()

    def _ring_all(self) -> None:
        for listeners in list(self._listeners.values()):
            for heard in listeners:
                heard.ring()
