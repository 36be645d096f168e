"""Use cases of terminals: being in that of an interactive task, from any number of places."""

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from kapelle.domain.errors import Conflict
from kapelle.domain.states import is_resting
from kapelle.domain.task import Attempt, Task
from kapelle.engine.parts import Parts
from kapelle.runner import terminal
from kapelle.runner.pack import open_file
from kapelle.runner.shim import files
from kapelle.service.output import attempt_of
from kapelle.store import attempts, tasks

# How much of what was shown before is shown to whoever attaches.
_SCROLLBACK = 1 << 20
_CHUNK = 1 << 16
_SHORTEST_S = 0.005
_LONGEST_S = 0.1
_FULL_S = 0.02
_ATTACHED = "attached"
# What a program asks its terminal: what it is, where the cursor stands, which colours it has.
_QUERIES = re.compile(
    rb"\x1b\[[>=?]?[\d;]*[cn]|\x1b\[\?[\d;]*\$p|\x1b\[(?:>[\d;]*q|\?u|1[1-9]t)"
    rb"|\x1b\](?:1[0-2]|4;\d+);\?(?:\x07|\x1b\\)|\x1bP[+$]q[^\x1b]*\x1b\\"
)

TerminalMessage = bytes | dict[str, Any]


class TerminalService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # Of several who are in the same terminal, only the last one answers what programs ask.
        self._answering: dict[str, TerminalViewer] = {}

    async def attach(
        self, task_id: str, which: str | None, offset: int | None, size: tuple[int, int]
    ) -> "TerminalViewer":
        """Be in the terminal of a task; without an offset, behind what was shown of late."""
        task = await self._parts.db.read(tasks.get, task_id)
        if not task.interactive:
            raise Conflict(
                f"{task.id} has no terminal: it was not started with `kapelle run -i`.",
                hint=f"`kapelle logs -f {task.id}` shows what it does, "
                f'`kapelle say {task.id} "…"` tells it something.',
            )
        if which is not None:
            attempt_of(task, which)
        return TerminalViewer(self._parts, self._answering, task, which, offset, size)


@dataclass(eq=False)
class TerminalViewer:
    """One place from which somebody is in a terminal."""

    _parts: Parts
    _answering: dict[str, "TerminalViewer"]
    _task: Task
    _which: str | None
    _offset: int | None
    _size: tuple[int, int]
    _attempt: Attempt | None = None
    _secret: bytes = b""
    _touched: asyncio.Event = field(default_factory=asyncio.Event)

    async def type(self, data: bytes) -> None:
        for kind, part in terminal.make_input_messages(data):
            await self._send(kind, part)

    async def resize(self, rows: int, columns: int) -> None:
        self._size = (rows, columns)
        await self._send(*terminal.make_resize_message(rows, columns))

    async def _send(self, kind: bytes, data: bytes) -> None:
        if self._attempt is None:
            return  # there is nothing to type into yet
        process_dir = self._parts.process_directory(self._attempt.id)
        while not terminal.send(process_dir, self._secret, kind, data):  # noqa: ASYNC110
            await asyncio.sleep(_FULL_S)
        self._touched.set()

    async def shown(self) -> AsyncIterator[TerminalMessage]:
        """Why there is no terminal yet, where it begins, its bytes, and its end."""
        async for waiting in self._begun():
            yield waiting
        if (attempt := self._attempt) is not None:
            path = self._parts.process_directory(attempt.id) / files.OUT
            with open_file(path) or io.BytesIO() as log:
                async for message in self._bytes(attempt, log):
                    yield message
        task = await self._parts.db.read(tasks.get, self._task.id)
        yield {"kind": "ended", "status": task.status, "reason": task.reason}

    async def _begun(self) -> AsyncIterator[TerminalMessage]:
        """Wait for the attempt and its terminal."""
        told = None
        while True:
            task = await self._parts.db.read(tasks.get, self._task.id)
            if task.attempts:
                attempt = attempt_of(task, self._which)
                process_dir = self._parts.process_directory(attempt.id)
                if terminal.has_begun(process_dir) or attempt.ended_at is not None:
                    row = await self._parts.db.glance(attempts.load_row, attempt.id)
                    self._attempt, self._secret = attempt, bytes.fromhex(row["secret"])
                    return
            if is_resting(task.status, task.waiting_for):
                return
            if (task.status, task.reason) != told:
                told = (task.status, task.reason)
                yield {"kind": "waiting", "status": task.status, "reason": task.reason}
            await asyncio.sleep(_LONGEST_S)

    async def _bytes(self, attempt: Attempt, log: BinaryIO) -> AsyncIterator[TerminalMessage]:
        process_dir = self._parts.process_directory(attempt.id)
        before = log.seek(0, os.SEEK_END)
        if self._offset is None:
            begin = max(0, before - _SCROLLBACK)
        else:
            begin = min(self._offset, before)
        # Questions of long ago are answered; those that nobody has heard yet wait for an answer.
        if self._offset is None and not self._is_first(attempt):
            past = before
        else:
            past = 0
        log.seek(begin)
        yield {"kind": "opened", "attempt": attempt.id, "number": attempt.number, "offset": begin}
        self._answering[attempt.id] = self
        try:
            await self.resize(*self._size)
            pause = _SHORTEST_S
            ended = False
            while True:
                at = log.tell()
                if data := log.read(_CHUNK):
                    quiet = at < past or self._answering.get(attempt.id) is not self
                    yield _QUERIES.sub(_silence, data) if quiet else data
                    pause = _SHORTEST_S
                elif ended:
                    return
                else:
                    ended = not terminal.is_open(process_dir)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._touched.wait()
                    if self._touched.is_set():
                        pause = _SHORTEST_S
                    else:
                        pause = min(2 * pause, _LONGEST_S)
                    self._touched.clear()
        finally:
            if self._answering.get(attempt.id) is self:
                del self._answering[attempt.id]

    def _is_first(self, attempt: Attempt) -> bool:
        """Whether nobody was in this terminal before."""
        try:
            path = self._parts.process_directory(attempt.id) / _ATTACHED
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except OSError:
            return False
        return True


def _silence(query: re.Match[bytes]) -> bytes:
    """As many bytes that no terminal shows or answers, so that offsets stay what they are."""
    return bytes(len(query[0]))
