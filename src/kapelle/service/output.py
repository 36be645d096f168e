"""Use cases of output: raw bytes by offset, and the transcript that people read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kapelle.agents.base import AgentEvent
from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import KapelleError, NotFound
from kapelle.domain.states import FINAL
from kapelle.domain.task import Attempt, Task
from kapelle.engine.stage import Stage
from kapelle.runner.output import read, tail_offset
from kapelle.store import tasks

Stream = Literal["out", "err"]
Parse = Callable[[str], list[AgentEvent]]

_BLOCK = 1 << 16
_LONGEST_LINE = 8 << 20
_LOOK_S = 0.1


@dataclass(frozen=True)
class Chunk:
    """Some bytes of a stream, where the next ones begin, and whether these were the last."""

    data: bytes
    next_offset: int
    complete: bool


@dataclass(frozen=True)
class Line:
    """One event of a transcript; position is where to go on after it."""

    kind: str
    body: dict[str, Any]
    position: str


class Output:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def chunk(
        self, text: str, number: int | None, stream: Stream, offset: int, limit: int
    ) -> Chunk:
        task = await self._stage.db.read(tasks.get, text)
        if not task.attempts and number is None:
            return Chunk(b"", 0, task.status in FINAL)
        attempt = _attempt(task, number)
        path = self._stage.run_directory(attempt.id) / f"{stream}.log"
        data = await asyncio.to_thread(read, path, offset, limit)
        ended = attempt.ended_at is not None
        return Chunk(data, offset + len(data), ended and len(data) < limit)

    async def task_with(self, text: str, number: int | None) -> Task:
        """The task, which must have the attempt of this number if one is named."""
        task = await self._stage.db.read(tasks.get, text)
        if number is not None:
            _attempt(task, number)
        return task

    async def transcript(
        self, task: Task, number: int | None, follow: bool, tail: int | None, after: str | None
    ) -> AsyncIterator[Line]:
        """What the agent said and did, over all attempts or one; with follow, to the task's end."""
        place = _Place.parse(after)
        while True:
            shown = [a for a in task.attempts if _wanted(a, number, place, follow, tail, task)]
            for attempt in shown:
                if attempt.number != place.number:
                    place = _Place(attempt.number)
                    yield Line("attempt", {"number": attempt.number}, place.text())
                    if tail is not None:
                        self._skip(attempt, place, tail)
                async for line in self._attempt_lines(task, attempt, place, follow):
                    yield line
            seen = place.number
            task = await self._stage.db.read(tasks.get, task.id)
            more = any(attempt.number > seen for attempt in task.attempts) and number is None
            over = task.status in FINAL or task.waiting_for == "input"
            if not follow or (number is not None and shown) or (over and not more):
                yield Line("end", {"status": task.status, "reason": task.reason}, place.text())
                return
            if not more:
                with self._stage.db.watch() as changed:
                    await changed.wait(1.0)

    def _skip(self, attempt: Attempt, place: "_Place", tail: int) -> None:
        run_dir = self._stage.run_directory(attempt.id)
        place.out = tail_offset(run_dir / "out.log", tail)
        place.err = tail_offset(run_dir / "err.log", tail)

    async def _attempt_lines(
        self, task: Task, attempt: Attempt, place: "_Place", follow: bool
    ) -> AsyncIterator[Line]:
        parse = self._parser(task)
        run_dir = self._stage.run_directory(attempt.id)
        ended = attempt.ended_at is not None
        while True:
            out, place.out = await asyncio.to_thread(_lines, run_dir / "out.log", place.out, ended)
            err, place.err = await asyncio.to_thread(_lines, run_dir / "err.log", place.err, ended)
            found = [event for line in out for event in parse(line)]
            found += [AgentEvent("stderr", line) for line in err]
            for event in found:
                body = event.to_json()
                yield Line(body.pop("kind"), body, place.text())
            if out or err:
                continue
            if ended or not follow:
                return
            await asyncio.sleep(_LOOK_S)
            latest = await self._stage.db.read(tasks.get, task.id)
            ended = _attempt(latest, attempt.number).ended_at is not None

    def _parser(self, task: Task) -> Parse:
        try:
            return get_agent(task.agent, self._stage.settings(task.directory)).parse
        except KapelleError:
            return _as_text  # the agent is not configured any more


@dataclass
class _Place:
    """Where in a transcript somebody is."""

    number: int = 0
    out: int = field(default=0)
    err: int = field(default=0)

    def text(self) -> str:
        return f"{self.number}:{self.out}:{self.err}"

    @classmethod
    def parse(cls, text: str | None) -> "_Place":
        parts = (text or "").split(":")
        if len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts):
            return cls(*(int(part[:18]) for part in parts))
        return cls()


def _as_text(line: str) -> list[AgentEvent]:
    return [AgentEvent("text", line)]


def _wanted(
    attempt: Attempt, number: int | None, place: _Place, follow: bool, tail: int | None, task: Task
) -> bool:
    if number is not None:
        return attempt.number == number
    if place.number == 0 and tail is not None:
        return attempt.number == task.attempts[-1].number
    return attempt.number >= place.number


def _attempt(task: Task, number: int | None) -> Attempt:
    if not task.attempts:
        raise NotFound(f"{task.id} has not been started yet.")
    if number is None:
        return task.attempts[-1]
    for attempt in task.attempts:
        if attempt.number == number:
            return attempt
    raise NotFound(f"{task.id} has no attempt {number}.", hint=f"It has {len(task.attempts)}.")


def _lines(path: Path, offset: int, ended: bool) -> tuple[list[str], int]:
    """The whole lines from an offset on, and the offset behind them."""
    size = _BLOCK
    while True:
        block = read(path, offset, size)
        border = block.rfind(b"\n") + 1
        if border:
            lines = block[: border - 1].split(b"\n")
            return [line.decode("utf-8", "replace") for line in lines], offset + border
        if len(block) < size:
            whole = [block.decode("utf-8", "replace")] if ended and block else []
            return whole, offset + (len(block) if whole else 0)
        if size >= _LONGEST_LINE:
            return [block.decode("utf-8", "replace")], offset + len(block)
        size *= 4
