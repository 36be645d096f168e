"""Use cases of raw output: the bytes of an attempt, by offset."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from kapelle.domain.errors import NotFound
from kapelle.domain.states import FINAL
from kapelle.domain.task import Attempt, Task
from kapelle.engine.parts import Stage
from kapelle.runner.output import read
from kapelle.store import tasks

Stream = Literal["out", "err"]


@dataclass(frozen=True)
class Chunk:
    """Some bytes of a stream, where the next ones begin, and whether these were the last."""

    data: bytes
    next_offset: int
    complete: bool


class Output:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def chunk(
        self, text: str, which: str | None, stream: Stream, offset: int, limit: int
    ) -> Chunk:
        task = await self._stage.db.read(tasks.get, text)
        if not task.attempts and which is None:
            return Chunk(b"", 0, task.status in FINAL)
        attempt = attempt_of(task, which)
        path = self._stage.process_directory(attempt.id) / f"{stream}.log"
        data = await asyncio.to_thread(read, path, offset, limit)
        ended = attempt.ended_at is not None
        return Chunk(data, offset + len(data), ended and len(data) < limit)


def attempt_of(task: Task, which: str | None) -> Attempt:
    """A task's attempt by number or id, or its last one."""
    if not task.attempts:
        raise NotFound(f"{task.id} has not been started yet.")
    if which is None:
        return task.attempts[-1]
    for attempt in task.attempts:
        if which in {str(attempt.number), attempt.id}:
            return attempt
    raise NotFound(f"{task.id} has no attempt {which}.", hint=f"It has {len(task.attempts)}.")
