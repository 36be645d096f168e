"""Use cases of output: the bytes of an attempt by offset, and the transcript as people read it."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from kapelle.agents.events import AgentEvent
from kapelle.domain.errors import NotFound
from kapelle.domain.ids import SHORT
from kapelle.domain.states import FINAL, is_resting
from kapelle.domain.task import Attempt, Record, RunningCheck, Task
from kapelle.domain.text import cut
from kapelle.domain.work_views import AttemptFile, OutputHits, PersonMessage
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.attempt import AGENT, agent_of
from kapelle.engine.tasks.browser import LARGEST, read_picture
from kapelle.runner.output import FARTHEST, LogReader, find_tail_offset, find_text, read
from kapelle.runner.pack import pack_path
from kapelle.store import attempts, person_messages, tasks
from kapelle.store.database import Connection

_PLACE = "[0-9]{1,9}(:[0-9]{1,13}){2}(:[0-9]{1,9}){1,3}"
StreamName = Literal["out", "err"]
Which = Annotated[
    str | None,
    Field(
        pattern=r"^([1-9][0-9]{0,5}|(attempt_)?[0-9a-z]{5,26})$", description="A number or an id"
    ),
]
Offset = Annotated[int, Field(ge=0, le=FARTHEST)]

_LOOK_S = 0.1
# An outline leaves out what is used and what tools answer, and cuts the rest to so much.
_OUTLINE = {
    "attempt", "person", "text", "tool_call", "plan", "result", "error", "notice", "question",
    "check", "end",
}  # fmt: skip
_SHORT = 200
_DELETED = "output was deleted, for it ended long ago."


@dataclass(frozen=True)
class Bytes:
    """What is answered as it is, and no JSON."""

    data: bytes
    media_type: str
    headers: dict[str, str]


@dataclass(frozen=True)
class TranscriptEvent:
    """One event of a transcript; position is where to go on after it."""

    kind: str
    body: dict[str, Any]
    position: str


class TranscriptQuery(Record):
    """Which part of a transcript is told, and how much of it."""

    attempt: Which = None
    follow: bool = False
    tail: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    before: Annotated[
        str | None, Field(pattern=f"^{_PLACE}$", description="An id of this stream")
    ] = None
    limit: Annotated[int, Field(ge=1, le=5000, description="Lines of output before it")] = 200
    outline: bool = False


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
        """Bytes exactly as they were written; X-Next-Offset is where the next ones begin."""
        task = await self._parts.db.read(tasks.get, task_id)
        if not task.attempts and attempt is None:
            data = b""
            offset = 0
            complete = task.status in FINAL
        else:
            found = attempt_of(task, attempt)
            data = await asyncio.to_thread(read, self._log(found, stream), offset, limit)
            complete = found.ended_at is not None and len(data) < limit
        headers = {"X-Next-Offset": str(offset + len(data)), "X-Complete": str(complete).lower()}
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
        """Where a text stands in an attempt's output, from offset on; ASCII in capitals or not."""
        found = attempt_of(await self._parts.db.read(tasks.get, task_id), attempt)
        path = self._log(found, stream)
        offsets, on = await asyncio.to_thread(find_text, path, query, offset, limit)
        return OutputHits(attempt=found.number, offsets=offsets, next_offset=on)

    def _log(self, attempt: Attempt, stream: StreamName) -> Path:
        if self._is_deleted(attempt):
            raise NotFound(f"The {_DELETED}", hint="upkeep.output_days says how long it is kept.")
        return self._parts.process_directory(attempt.id) / f"{stream}.log"

    async def messages(self, task_id: str) -> list[PersonMessage]:
        """All that people said to a task, the oldest first: hints, answers to its questions, and
        messages to its agent at work, each with its state."""
        task = await self._parts.db.read(tasks.get, task_id)
        return await self._messages(task.id)

    async def _messages(self, task_id: str) -> list[PersonMessage]:
        return await self._parts.db.read(person_messages.list_of_task, task_id)

    async def files(self, task_id: str) -> list[AttemptFile]:
        """The pictures that its agents took of what they saw, in the order of their attempts."""
        task = await self._parts.db.read(tasks.get, task_id)

        def find() -> list[AttemptFile]:
            places = [(one.number, self._parts.home.files / one.id) for one in task.attempts]
            return [
                AttemptFile(attempt=number, name=path.name, bytes=path.stat().st_size)
                for number, place in places
                for path in sorted(place.glob("*"))
                if read_picture(path)
            ]

        return await asyncio.to_thread(find)

    async def picture(
        self,
        task_id: str,
        name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}$")],
        attempt: Which = None,
    ) -> Bytes:
        """One of these pictures, of the last attempt unless another is named."""
        task = await self._parts.db.read(tasks.get, task_id)
        place = self._parts.home.files / attempt_of(task, attempt).id
        found = await asyncio.to_thread(read_picture, place / Path(name).name, LARGEST)
        if found is None:
            raise NotFound(f"{task.id} has no picture {name!r}.")
        headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
        return Bytes(found[1], found[0], headers)

    async def transcript(
        self, task_id: str, wanted: TranscriptQuery, after: str | None
    ) -> AsyncIterator[TranscriptEvent]:
        """What the agent said and did; a line's position is the place behind it."""
        task = await self._parts.db.read(tasks.get, task_id)
        if wanted.attempt is None:
            number = None
        else:
            number = attempt_of(task, wanted.attempt).number
        if wanted.before is not None:
            lines = self._earlier(task, _TranscriptPosition.parse(wanted.before), wanted.limit)
        else:
            place = _TranscriptPosition.parse(after)
            lines = self._lines(task, number, wanted.follow, wanted.tail, place)
        if wanted.outline:
            return _outline(lines)
        return lines

    async def _lines(
        self,
        task: Task,
        number: int | None,
        follow: bool,
        tail: int | None,
        place: "_TranscriptPosition",
    ) -> AsyncIterator[TranscriptEvent]:
        """Over all attempts or one; with follow, to the end of the task."""
        while True:
            if number is not None:
                shown = [a for a in task.attempts if a.number == number]
            elif place.number == 0 and tail is not None:
                shown = task.attempts[-1:]
            else:
                shown = [a for a in task.attempts if a.number >= place.number]
            for attempt in shown:
                if attempt.number != place.number:
                    place = _TranscriptPosition(attempt.number)
                    if tail is not None:
                        await asyncio.to_thread(self._skip, task, attempt, place, tail)
                    yield place.line("attempt", _about(task, attempt))
                async for line in self._attempt_lines(task, attempt, place, follow):
                    yield line
            task = await self._parts.db.read(tasks.get, task.id)
            more = number is None and any(a.number > place.number for a in task.attempts)
            over = is_resting(task.status, task.waiting_for)
            if not follow or (number is not None and shown) or (over and not more):
                yield place.line("end", {"status": task.status, "reason": task.reason})
                return
            if not more:
                with self._parts.db.watch() as changed:
                    await changed.wait(1.0)

    async def _earlier(
        self, task: Task, end: "_TranscriptPosition", limit: int
    ) -> AsyncIterator[TranscriptEvent]:
        """What comes right before a place, of one attempt and at most so many lines of its output;
        the first is the attempt, with the place at which they begin."""
        whole = not end.out and not end.err
        wanted = [a for a in task.attempts if a.number <= end.number - whole][-1:]
        for attempt in wanted:
            if whole:
                until = _TranscriptPosition(attempt.number, FARTHEST, FARTHEST)
            else:
                until = end
            place = _TranscriptPosition(attempt.number)
            await asyncio.to_thread(self._skip, task, attempt, place, limit, until)
            yield place.line("attempt", _about(task, attempt))
            async for line in self._attempt_lines(task, attempt, place, follow=False, until=until):
                yield line
        yield end.line("end", {"status": task.status, "reason": task.reason})

    def _skip(
        self,
        task: Task,
        attempt: Attempt,
        place: "_TranscriptPosition",
        tail: int,
        until: "_TranscriptPosition | None" = None,
    ) -> None:
        """Go to the last lines of both streams; before a place, to those of one after the other,
        for what it complained of is told first."""
        process_dir = self._parts.process_directory(attempt.id)
        out, err = (until.out, until.err) if until else (None, None)
        agent = agent_of(self._parts, task, attempt.agent)
        first = agent.begins_with if agent else b""
        place.out = find_tail_offset(process_dir / "out.log", tail, out, first)
        if until is None or place.out == 0:
            errors = tail
        else:
            errors = 0
        place.err = find_tail_offset(process_dir / "err.log", errors, err)

    async def _attempt_lines(
        self,
        task: Task,
        attempt: Attempt,
        place: "_TranscriptPosition",
        follow: bool,
        until: "_TranscriptPosition | None" = None,
    ) -> AsyncIterator[TranscriptEvent]:
        until = until or _TranscriptPosition(attempt.number, FARTHEST, FARTHEST)
        agent = agent_of(self._parts, task, attempt.agent)
        process_dir = self._parts.process_directory(attempt.id)
        out_log = LogReader(process_dir / "out.log", place.out, until=until.out)
        err_log = LogReader(process_dir / "err.log", place.err, until=until.err)
        ended = attempt.ended_at is not None
        told = list[RunningCheck]()
        heard = 0
        for line in await self._first_lines(task, attempt, place):
            yield line
        while True:
            # First what it complained of: the answer is what one looks for at the end.
            err = await asyncio.to_thread(err_log.lines, is_complete=ended)
            for text, place.err in err:
                yield place.event(AgentEvent("stderr", text))
            out = await asyncio.to_thread(out_log.lines, is_complete=ended)
            for text, end in out:
                if agent:
                    said = agent.parse(text)
                else:
                    said = [AgentEvent("text", text)]
                for line in _unsent(said, place, end):
                    yield line
            if out or err:
                continue
            if until.out == FARTHEST:
                count = await self._parts.db.glance(person_messages.count_at_work, attempt.id)
                if count > heard:
                    lines = await self._person_lines(task, place, at_work=True)
                else:
                    lines = []
                lines += await self._check_lines(attempt, place, told)
                heard = count
                for line in lines:
                    yield line
            if ended or not follow:
                return
            await asyncio.sleep(_LOOK_S)
            row = await self._parts.db.glance(attempts.load_row, attempt.id)
            ended = row["ended_at"] is not None

    async def _first_lines(
        self, task: Task, attempt: Attempt, place: "_TranscriptPosition"
    ) -> list[TranscriptEvent]:
        """What comes before an attempt's output, or instead of it."""
        lines = await self._person_lines(task, place, at_work=False)
        if self._is_deleted(attempt):
            lines.append(place.event(AgentEvent("notice", f"Its {_DELETED}")))
        return lines

    async def _person_lines(
        self, task: Task, place: "_TranscriptPosition", at_work: bool
    ) -> list[TranscriptEvent]:
        """What people said for an attempt before it began, and with at_work what they said to its
        agent since the last time."""
        of_task = await self._messages(task.id)
        of_attempt = [one for one in of_task if one.attempt == place.number]
        before = [one for one in of_attempt if not one.at_work]
        said = before + [one for one in of_attempt if one.at_work and at_work]
        lines = []
        for message in said[place.said :]:
            place.said += 1
            body = message.model_dump(mode="json")
            lines.append(place.line("person", {"message": body.pop("kind"), **body}))
        return lines

    async def _check_lines(
        self, attempt: Attempt, place: "_TranscriptPosition", told: list[RunningCheck]
    ) -> list[TranscriptEvent]:
        """What came of its checks since the last time, and the one that is being made, if new."""
        lines: list[TranscriptEvent] = []
        if AGENT in self._parts.live.get(attempt.id, {}).values():
            return lines
        for made in (await self._parts.db.glance(_made, attempt.id))[place.checks :]:
            place.checks += 1
            lines.append(place.line("check", made))
        for check in self._parts.checking.get(attempt.id, ()):
            if check not in told:
                told.append(check)
                lines.append(place.line("checking", check.model_dump(mode="json")))
        return lines

    def _is_deleted(self, attempt: Attempt) -> bool:
        process_dir = self._parts.process_directory(attempt.id)
        printed = attempt.ended_at is not None and attempt.output_bytes > 0
        return printed and not process_dir.exists() and not pack_path(process_dir).exists()


async def _outline(lines: AsyncIterator[TranscriptEvent]) -> AsyncIterator[TranscriptEvent]:
    """What one would go to: what is said in a row, called, asked or checked, in short."""
    before = ""
    async for line in lines:
        if line.kind in _OUTLINE and not line.kind == before == "text":
            yield TranscriptEvent(line.kind, cut(line.body, _SHORT), line.position)
            before = line.kind


def attempt_of(task: Task, which: str | None) -> Attempt:
    """A task's attempt by number, id or the end of that, or its last one."""
    if not task.attempts:
        raise NotFound(f"{task.id} has not been started yet.")
    if which is None:
        return task.attempts[-1]
    for attempt in task.attempts:
        if which == str(attempt.number) or (len(which) >= SHORT and attempt.id.endswith(which)):
            return attempt
    raise NotFound(f"{task.id} has no attempt {which}.", hint=f"It has {len(task.attempts)}.")


@dataclass
class _TranscriptPosition:
    """Where in a transcript a reader is: sent counts the events of the first line from out on that
    says something, checks those that were told, said the messages of people that were."""

    number: int = 0
    out: int = 0
    err: int = 0
    sent: int = 0
    checks: int = 0
    said: int = 0

    def line(self, kind: str, body: dict[str, Any]) -> TranscriptEvent:
        return TranscriptEvent(kind, body, ":".join(str(part) for part in astuple(self)))

    def event(self, event: AgentEvent) -> TranscriptEvent:
        body = event.to_json()
        return self.line(body.pop("kind"), body)

    @classmethod
    def parse(cls, text: str | None) -> "_TranscriptPosition":
        known = text is not None and re.fullmatch(_PLACE, text)
        if text and known:
            return cls(*map(int, text.split(":")))
        return cls()


def _about(task: Task, attempt: Attempt) -> dict[str, Any]:
    """What is told of an attempt before its output: of a further one, why there is one."""
    before = [other for other in task.attempts if other.number < attempt.number][-1:]
    if before and before[0].reason:
        after = {"after": before[0].reason}
    else:
        after = {}
    return {"number": attempt.number, "agent": attempt.agent, **after}


def _made(connection: Connection, attempt_id: str) -> list[dict[str, Any]]:
    """What came of an attempt's checks, in the order in which they are made."""
    made = sorted(attempts.load_checks(connection, attempt_id).items())
    made.sort(key=lambda item: item[1].command is not None)
    return [result.model_dump(mode="json") for _, result in made]


def _unsent(
    found: list[AgentEvent], place: "_TranscriptPosition", end: int
) -> Iterator[TranscriptEvent]:
    """The events of one line that were not sent yet, each with the place behind it."""
    for index in range(place.sent, len(found)):
        is_last = index + 1 == len(found)
        place.out, place.sent = (end, 0) if is_last else (place.out, index + 1)
        yield place.event(found[index])
    if found:
        place.out = end
        place.sent = 0
