"""Use cases of the history: events from a number on, and new ones as they come."""

from collections.abc import AsyncIterator

from kapelle.domain.task import Event
from kapelle.engine.parts import Stage
from kapelle.store import events

# Other daemons on the same database write events that do not wake this process.
_LOOK_S = 1.0


class History:
    def __init__(self, stage: Stage) -> None:
        self._db = stage.db

    async def last_seq(self) -> int:
        return await self._db.read(events.last_seq)

    async def stream(
        self, after: int, task_id: str | None, follow: bool, run_id: str | None = None
    ) -> AsyncIterator[Event]:
        """Every event behind a number, each exactly once and in order; with follow, for ever."""
        with self._db.watch() as changed:
            while True:
                found = await self._db.read(events.after, after, task_id=task_id, run_id=run_id)
                for event in found:
                    after = event.seq
                    yield event
                if found:
                    continue
                if not follow:
                    return
                await changed.wait(_LOOK_S)
