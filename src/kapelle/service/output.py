"""Use cases of output: the bytes of an attempt, its pictures, and the messages of people."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kapelle.domain.errors import NotFound
from kapelle.domain.ids import SHORT
from kapelle.domain.states import FINAL
from kapelle.domain.task import Attempt, Task
from kapelle.domain.text import format_count
from kapelle.domain.work_views import AttemptFile, OutputHits, PersonMessage
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.browser import LARGEST, read_picture
from kapelle.runner.output import FARTHEST, find_text, read
from kapelle.runner.pack import pack_path
from kapelle.store import person_messages, tasks

StreamName = Literal["out", "err"]
Which = Annotated[
    str | None,
    Field(
        pattern=r"^([1-9][0-9]{0,5}|(attempt_)?[0-9a-z]{5,26})$", description="A number or an id"
    ),
]
Offset = Annotated[int, Field(ge=0, le=FARTHEST)]


@dataclass(frozen=True)
class Bytes:
    """A response that is not JSON."""

    data: bytes
    media_type: str
    headers: dict[str, str]


class OutputService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def output(
        self,
        task_id: str,
        attempt: Which = None,
        stream: StreamName = "out",
        offset: Offset = 0,
        limit: Annotated[int, Field(ge=1, le=16_000_000)] = 1_000_000,
    ) -> Bytes:
        """Get the bytes of an output exactly as written; X-Next-Offset is where the rest begins."""
        task = await self._parts.db.read(tasks.get, task_id)
        if not task.attempts and attempt is None:
            data = b""
            offset = 0
            is_complete = task.status in FINAL
        else:
            selected_attempt = select_attempt(task, attempt)
            log = self._find_log(selected_attempt, stream)
            data = await asyncio.to_thread(read, log, offset, limit)
            is_complete = selected_attempt.ended_at is not None and len(data) < limit
        headers = {"X-Next-Offset": str(offset + len(data)), "X-Complete": str(is_complete).lower()}
        return Bytes(data, "application/octet-stream", headers)

    async def find(
        self,
        task_id: str,
        query: Annotated[str, Field(min_length=1, max_length=200)],
        attempt: Which = None,
        stream: StreamName = "out",
        offset: Offset = 0,
        limit: Annotated[int, Field(ge=1, le=1000)] = 100,
    ) -> OutputHits:
        """Find a text in the output of an attempt, from offset on; ignores the case of ASCII."""
        task = await self._parts.db.read(tasks.get, task_id)
        selected_attempt = select_attempt(task, attempt)
        log = self._find_log(selected_attempt, stream)
        offsets, next_offset = await asyncio.to_thread(find_text, log, query, offset, limit)
        return OutputHits(attempt=selected_attempt.number, offsets=offsets, next_offset=next_offset)

    def _find_log(self, attempt: Attempt, stream: StreamName) -> Path:
        """Return the path of a log, which may be packed; raises NotFound if it was deleted."""
        if has_deleted_output(self._parts, attempt):
            raise NotFound(
                "The output of this attempt was deleted, because the attempt ended long ago.",
                hint="The setting upkeep.output_days is the number of days that output is kept.",
            )
        return self._parts.process_directory(attempt.id) / f"{stream}.log"

    async def messages(self, task_id: str) -> list[PersonMessage]:
        """List the messages of people to a task, oldest first, each with its state.

        These are hints, answers to its questions, and messages to its running agent.
        """
        task = await self._parts.db.read(tasks.get, task_id)
        return await self._parts.db.read(person_messages.list_of_task, task.id)

    async def files(self, task_id: str) -> list[AttemptFile]:
        """List the screenshots that its agents took, in the order of their attempts."""
        task = await self._parts.db.read(tasks.get, task_id)
        return await asyncio.to_thread(self._list_pictures, task)

    def _list_pictures(self, task: Task) -> list[AttemptFile]:
        files = []
        for attempt in task.attempts:
            for path in sorted((self._parts.home.files / attempt.id).glob("*")):
                if read_picture(path):
                    size = path.stat().st_size
                    files.append(AttemptFile(attempt=attempt.number, name=path.name, bytes=size))
        return files

    async def picture(
        self,
        task_id: str,
        name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}$")],
        attempt: Which = None,
    ) -> Bytes:
        """Get one of these screenshots, by default of the last attempt."""
        task = await self._parts.db.read(tasks.get, task_id)
        directory = self._parts.home.files / select_attempt(task, attempt).id
        picture = await asyncio.to_thread(read_picture, directory / Path(name).name, LARGEST)
        if picture is None:
            raise NotFound(f"{task.id} has no picture {name!r}.")
        media_type, data = picture
        # An agent made the file, so a browser must not execute anything in it.
        headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
        return Bytes(data, media_type, headers)


def select_attempt(task: Task, which: str | None) -> Attempt:
    """Return the attempt with a number or an id, or the end of an id; by default the last one.

    Raises NotFound.
    """
    if not task.attempts:
        raise NotFound(f"{task.id} has not been started yet.")
    if which is None:
        return task.attempts[-1]
    for attempt in task.attempts:
        if which == str(attempt.number) or (len(which) >= SHORT and attempt.id.endswith(which)):
            return attempt
    raise NotFound(
        f"{task.id} has no attempt {which}.",
        hint=f"It has {format_count(len(task.attempts), 'attempt')}.",
    )


def has_deleted_output(parts: Parts, attempt: Attempt) -> bool:
    """Return whether an attempt had output that upkeep has deleted."""
    if attempt.ended_at is None or attempt.output_bytes == 0:
        return False
    process_dir = parts.process_directory(attempt.id)
    return not process_dir.exists() and not pack_path(process_dir).exists()
