"""Use cases of terminals: attach any number of viewers to the terminal of an interactive task."""

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
from kapelle.service.output import select_attempt
from kapelle.store import attempts, tasks

# A viewer that attaches gets this much of the earlier output.
_SCROLLBACK = 1 << 20
_CHUNK = 1 << 16
_SHORTEST_S = 0.005
_LONGEST_S = 0.1
_FULL_S = 0.02
_ATTACHED = "attached"
# Requests of a program to its terminal: what it is, where the cursor is, which colours it has.
_QUERIES = re.compile(
    rb"\x1b\[[>=?]?[\d;]*[cn]|\x1b\[\?[\d;]*\$p|\x1b\[(?:>[\d;]*q|\?u|1[1-9]t)"
    rb"|\x1b\](?:1[0-2]|4;\d+);\?(?:\x07|\x1b\\)|\x1bP[+$]q[^\x1b]*\x1b\\"
)

TerminalMessage = bytes | dict[str, Any]


class TerminalService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # By attempt, the viewer whose terminal answers the requests of the program: the last one
        # that attached. Two answers to one request would confuse the program.
        self._answering: dict[str, TerminalViewer] = {}

    async def attach(
        self, task_id: str, which: str | None, offset: int | None, size: tuple[int, int]
    ) -> "TerminalViewer":
        """Return a new viewer of a task's terminal.

        `which` selects an attempt. Without an offset, the viewer begins with the recent output.
        Raises Conflict for a task without a terminal.
        """
        task = await self._parts.db.read(tasks.get, task_id)
        if not task.interactive:
            raise Conflict(
                f"{task.id} has no terminal: it was not started with `kapelle run -i`.",
                hint=f"`kapelle logs -f {task.id}` shows its output, "
                f'`kapelle say {task.id} "…"` sends a message to its agent.',
            )
        if which is not None:
            select_attempt(task, which)
        return TerminalViewer(self._parts, self._answering, task, which, offset, size)


@dataclass(eq=False)
class TerminalViewer:
    """One viewer of a terminal, with its own size and position in the output."""

    _parts: Parts
    _answering: dict[str, "TerminalViewer"]
    _task: Task
    _which: str | None
    _offset: int | None
    _size: tuple[int, int]
    _attempt: Attempt | None = None
    _secret: bytes = b""
    _has_typed: asyncio.Event = field(default_factory=asyncio.Event)

    async def type(self, data: bytes) -> None:
        """Send keys to the program."""
        for kind, part in terminal.make_input_messages(data):
            await self._send(kind, part)

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal to that of this viewer."""
        self._size = (rows, columns)
        await self._send(*terminal.make_resize_message(rows, columns))

    async def _send(self, kind: bytes, data: bytes) -> None:
        if self._attempt is None:
            return  # the terminal has not begun
        process_dir = self._parts.process_directory(self._attempt.id)
        while not terminal.send(process_dir, self._secret, kind, data):  # noqa: ASYNC110
            await asyncio.sleep(_FULL_S)
        self._has_typed.set()

    async def read(self) -> AsyncIterator[TerminalMessage]:
        """Yield why the terminal has not begun, its beginning, its bytes, and its end."""
        async for message in self._wait_for_terminal():
            yield message
        attempt = self._attempt
        if attempt is not None:
            path = self._parts.process_directory(attempt.id) / files.OUT
            with open_file(path) or io.BytesIO() as log:
                async for message in self._read_bytes(attempt, log):
                    yield message
        task = await self._parts.db.read(tasks.get, self._task.id)
        yield {"kind": "ended", "status": task.status, "reason": task.reason}

    async def _wait_for_terminal(self) -> AsyncIterator[TerminalMessage]:
        """Wait until the terminal of an attempt has begun, or the task needs none.

        Yields the status of the task whenever it changes meanwhile.
        """
        last_status = None
        while True:
            task = await self._parts.db.read(tasks.get, self._task.id)
            if task.attempts:
                attempt = select_attempt(task, self._which)
                process_dir = self._parts.process_directory(attempt.id)
                if terminal.has_begun(process_dir) or attempt.ended_at is not None:
                    row = await self._parts.db.glance(attempts.load_row, attempt.id)
                    self._attempt = attempt
                    self._secret = bytes.fromhex(row["secret"])
                    return
            if is_resting(task.status, task.waiting_for):
                return
            status = (task.status, task.reason)
            if status != last_status:
                last_status = status
                yield {"kind": "waiting", "status": task.status, "reason": task.reason}
            await asyncio.sleep(_LONGEST_S)

    async def _read_bytes(self, attempt: Attempt, log: BinaryIO) -> AsyncIterator[TerminalMessage]:
        process_dir = self._parts.process_directory(attempt.id)
        size = log.seek(0, os.SEEK_END)
        if self._offset is None:
            begin = max(0, size - _SCROLLBACK)
        else:
            begin = min(self._offset, size)
        # An earlier viewer answered the requests of the program in the earlier output. The first
        # viewer answers them late, because the program may still wait for the answers.
        end_of_answers = 0
        if self._offset is None and not self._is_first(attempt):
            end_of_answers = size
        log.seek(begin)
        yield {"kind": "opened", "attempt": attempt.id, "number": attempt.number, "offset": begin}
        self._answering[attempt.id] = self
        try:
            await self.resize(*self._size)
            pause_s = _SHORTEST_S
            is_closed = False
            while True:
                offset = log.tell()
                data = log.read(_CHUNK)
                if data:
                    is_answering = self._answering.get(attempt.id) is self
                    if offset < end_of_answers or not is_answering:
                        data = _QUERIES.sub(_blank, data)
                    yield data
                    pause_s = _SHORTEST_S
                elif is_closed:
                    return
                else:
                    is_closed = not terminal.is_open(process_dir)
                    pause_s = await self._pause(pause_s)
        finally:
            if self._answering.get(attempt.id) is self:
                del self._answering[attempt.id]

    async def _pause(self, pause_s: float) -> float:
        """Wait for new output and return the next pause, which is short after keys were typed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._has_typed.wait()
        if self._has_typed.is_set():
            self._has_typed.clear()
            return _SHORTEST_S
        return min(2 * pause_s, _LONGEST_S)

    def _is_first(self, attempt: Attempt) -> bool:
        """Return whether this is the first viewer of the terminal."""
        try:
            path = self._parts.process_directory(attempt.id) / _ATTACHED
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except OSError:
            return False
        return True


def _blank(request: re.Match[bytes]) -> bytes:
    """Return as many NUL bytes, which no terminal shows or answers; offsets stay the same."""
    return bytes(len(request[0]))
