"""The use case of transcripts: the output of attempts as events that people can read."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import astuple, dataclass
from typing import Annotated, Any

from pydantic import Field

from kapelle.agents.events import AgentEvent
from kapelle.domain.states import is_resting
from kapelle.domain.task import Attempt, Record, RunningCheck, Task
from kapelle.domain.text import cut
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.attempt import AGENT, agent_of
from kapelle.runner.output import FARTHEST, LogReader, find_tail_offset
from kapelle.service.output import Which, has_deleted_output, select_attempt
from kapelle.store import attempts, person_messages, tasks
from kapelle.store.database import Connection

_POSITION = "[0-9]{1,9}(:[0-9]{1,13}){2}(:[0-9]{1,9}){1,3}"

_LOOK_S = 0.1
# An outline has only these events, without usage and the results of tools, and cuts their texts.
_OUTLINE_KINDS = {
    "attempt", "person", "text", "tool_call", "plan", "result", "error", "notice", "question",
    "check", "end",
}  # fmt: skip
_OUTLINE_LENGTH = 200


@dataclass(frozen=True)
class TranscriptEvent:
    """One event of a transcript; a reader continues after it from its position."""

    kind: str
    body: dict[str, Any]
    position: str


class TranscriptQuery(Record):
    """The part of a transcript to read."""

    attempt: Which = None
    follow: bool = False
    tail: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    before: Annotated[
        str | None, Field(pattern=f"^{_POSITION}$", description="An id of this stream")
    ] = None
    limit: Annotated[int, Field(ge=1, le=5000, description="Lines of output before it")] = 200
    outline: bool = False


@dataclass
class TranscriptPosition:
    """A position in a transcript, which advances with each event.

    `out` and `err` are offsets in the logs. A line of `out` may be several events: `events` counts
    those sent of the line at `out`. `checks` and `messages` count what was sent of these.
    """

    number: int = 0  # of the attempt
    out: int = 0
    err: int = 0
    events: int = 0
    checks: int = 0
    messages: int = 0

    def make_event(self, kind: str, body: dict[str, Any]) -> TranscriptEvent:
        return TranscriptEvent(kind, body, ":".join(str(part) for part in astuple(self)))

    def make_agent_event(self, event: AgentEvent) -> TranscriptEvent:
        body = event.to_json()
        return self.make_event(body.pop("kind"), body)

    @classmethod
    def parse(cls, text: str | None) -> "TranscriptPosition":
        """Return the position that a text stands for, the beginning for any other text."""
        if text is None or not re.fullmatch(_POSITION, text):
            return cls()
        return cls(*map(int, text.split(":")))


class TranscriptService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def read(
        self, task_id: str, query: TranscriptQuery, after: str | None
    ) -> AsyncIterator[TranscriptEvent]:
        """Return the events of a task's transcript that a query selects."""
        task = await self._parts.db.read(tasks.get, task_id)
        number = None
        if query.attempt is not None:
            number = select_attempt(task, query.attempt).number
        if query.before is not None:
            before = TranscriptPosition.parse(query.before)
            events = self._read_before(task, before, query.limit)
        else:
            position = TranscriptPosition.parse(after)
            events = self._read_after(task, number, query.follow, query.tail, position)
        if query.outline:
            return _outline(events)
        return events

    async def _read_after(
        self,
        task: Task,
        number: int | None,
        follow: bool,
        tail: int | None,
        position: TranscriptPosition,
    ) -> AsyncIterator[TranscriptEvent]:
        """Yield the events after a position, of one attempt or of all.

        With follow it also yields later ones, until the task has ended or needs a person.
        """
        while True:
            selected_attempts = _select_after(task, number, tail, position)
            for attempt in selected_attempts:
                if attempt.number != position.number:
                    position = TranscriptPosition(attempt.number)
                    if tail is not None:
                        await asyncio.to_thread(self._skip, task, attempt, position, tail)
                    yield position.make_event("attempt", _describe_attempt(task, attempt))
                reader = _AttemptReader(self._parts, task, attempt, position)
                async for event in reader.read(follow):
                    yield event
            task = await self._parts.db.read(tasks.get, task.id)
            has_more = number is None and any(a.number > position.number for a in task.attempts)
            is_over = is_resting(task.status, task.waiting_for) and not has_more
            if not follow or is_over or (number is not None and selected_attempts):
                yield position.make_event("end", {"status": task.status, "reason": task.reason})
                return
            if not has_more:
                with self._parts.db.watch() as changes:
                    await changes.wait(1.0)

    async def _read_before(
        self, task: Task, end: TranscriptPosition, limit: int
    ) -> AsyncIterator[TranscriptEvent]:
        """Yield the events right before a position, of one attempt and at most `limit` lines.

        The first event is the attempt, with the position at which these lines begin.
        """
        last_number = end.number
        until = end
        if end.out == 0 and end.err == 0:
            # The position is the beginning of an attempt: read the one before it to its end.
            last_number -= 1
            until = TranscriptPosition(last_number, FARTHEST, FARTHEST)
        for attempt in [a for a in task.attempts if a.number <= last_number][-1:]:
            position = TranscriptPosition(attempt.number)
            await asyncio.to_thread(self._skip, task, attempt, position, limit, until)
            yield position.make_event("attempt", _describe_attempt(task, attempt))
            reader = _AttemptReader(self._parts, task, attempt, position, until)
            async for event in reader.read(follow=False):
                yield event
        yield end.make_event("end", {"status": task.status, "reason": task.reason})

    def _skip(
        self,
        task: Task,
        attempt: Attempt,
        position: TranscriptPosition,
        tail: int,
        until: TranscriptPosition | None = None,
    ) -> None:
        """Move a position to the last lines of both streams, or to those before `until`.

        The lines of err come before those of out. So the last lines before `until` are those of
        out, and lines of err only if out has none before.
        """
        process_dir = self._parts.process_directory(attempt.id)
        end_of_out = until.out if until else None
        end_of_err = until.err if until else None
        agent = agent_of(self._parts, task, attempt.agent)
        first_bytes = agent.begins_with if agent else b""
        position.out = find_tail_offset(process_dir / "out.log", tail, end_of_out, first_bytes)
        lines_of_err = tail
        if until is not None and position.out > 0:
            lines_of_err = 0
        position.err = find_tail_offset(process_dir / "err.log", lines_of_err, end_of_err)


def _select_after(
    task: Task, number: int | None, tail: int | None, position: TranscriptPosition
) -> list[Attempt]:
    """Return the attempts to read after a position; with a tail only the last one."""
    if number is not None:
        return [attempt for attempt in task.attempts if attempt.number == number]
    if position.number == 0 and tail is not None:
        return task.attempts[-1:]
    return [attempt for attempt in task.attempts if attempt.number >= position.number]


def _describe_attempt(task: Task, attempt: Attempt) -> dict[str, Any]:
    """Return the body of the event that begins an attempt, with the reason why it was needed."""
    body: dict[str, Any] = {"number": attempt.number, "agent": attempt.agent}
    earlier_attempts = [other for other in task.attempts if other.number < attempt.number]
    if earlier_attempts and earlier_attempts[-1].reason:
        body["after"] = earlier_attempts[-1].reason
    return body


class _AttemptReader:
    """Reads the events of one attempt from a position on; the position advances with them."""

    def __init__(
        self,
        parts: Parts,
        task: Task,
        attempt: Attempt,
        position: TranscriptPosition,
        until: TranscriptPosition | None = None,
    ) -> None:
        until = until or TranscriptPosition(attempt.number, FARTHEST, FARTHEST)
        process_dir = parts.process_directory(attempt.id)
        self._parts = parts
        self._task = task
        self._attempt = attempt
        self._position = position
        self._agent = agent_of(parts, task, attempt.agent)
        self._out = LogReader(process_dir / "out.log", position.out, until=until.out)
        self._err = LogReader(process_dir / "err.log", position.err, until=until.err)
        # Messages and checks come after the whole output.
        self._reads_to_end = until.out == FARTHEST
        self._message_count = 0
        self._running_checks: list[RunningCheck] = []

    async def read(self, follow: bool) -> AsyncIterator[TranscriptEvent]:
        """Yield the events; with follow, until the attempt has ended."""
        position = self._position
        for event in await self._list_first_events():
            yield event
        has_ended = self._attempt.ended_at is not None
        while True:
            # Errors first: the answer, which people look for, is at the end.
            err_lines = await asyncio.to_thread(self._err.lines, is_complete=has_ended)
            for text, end in err_lines:
                position.err = end
                yield position.make_agent_event(AgentEvent("stderr", text))
            out_lines = await asyncio.to_thread(self._out.lines, is_complete=has_ended)
            for text, end in out_lines:
                for event in list_unsent_events(self._parse(text), position, end):
                    yield event
            if out_lines or err_lines:
                continue
            if self._reads_to_end:
                for event in await self._list_news():
                    yield event
            if has_ended or not follow:
                return
            await asyncio.sleep(_LOOK_S)
            row = await self._parts.db.glance(attempts.load_row, self._attempt.id)
            has_ended = row["ended_at"] is not None

    def _parse(self, line: str) -> list[AgentEvent]:
        if self._agent is None:
            return [AgentEvent("text", line)]
        return self._agent.parse(line)

    async def _list_first_events(self) -> list[TranscriptEvent]:
        """Return the events that come before the output of the attempt, or instead of it."""
        events = await self._list_messages(at_work=False)
        if has_deleted_output(self._parts, self._attempt):
            text = "The output was deleted, because the attempt ended long ago."
            events.append(self._position.make_agent_event(AgentEvent("notice", text)))
        return events

    async def _list_news(self) -> list[TranscriptEvent]:
        """Return the messages to the running agent and the checks since the last time."""
        events: list[TranscriptEvent] = []
        count = await self._parts.db.glance(person_messages.count_at_work, self._attempt.id)
        if count > self._message_count:
            events += await self._list_messages(at_work=True)
        self._message_count = count
        events += await self._list_checks()
        return events

    async def _list_messages(self, at_work: bool) -> list[TranscriptEvent]:
        """Return the unsent messages of people.

        Without at_work, these are the messages from before the attempt; with it also those to the
        running agent.
        """
        position = self._position
        messages = await self._parts.db.read(person_messages.list_of_task, self._task.id)
        before = []
        during = []
        for message in messages:
            if message.attempt != position.number:
                continue
            if not message.at_work:
                before.append(message)
            elif at_work:
                during.append(message)
        events = []
        for message in [*before, *during][position.messages :]:
            position.messages += 1
            body = message.model_dump(mode="json")
            events.append(position.make_event("person", {"message": body.pop("kind"), **body}))
        return events

    async def _list_checks(self) -> list[TranscriptEvent]:
        """Return the unsent results of checks, and the running check if it is new."""
        position = self._position
        events: list[TranscriptEvent] = []
        if AGENT in self._parts.live.get(self._attempt.id, {}).values():
            return events
        results = await self._parts.db.glance(_load_check_results, self._attempt.id)
        for result in results[position.checks :]:
            position.checks += 1
            events.append(position.make_event("check", result))
        for check in self._parts.checking.get(self._attempt.id, ()):
            if check not in self._running_checks:
                self._running_checks.append(check)
                events.append(position.make_event("checking", check.model_dump(mode="json")))
        return events


async def _outline(events: AsyncIterator[TranscriptEvent]) -> AsyncIterator[TranscriptEvent]:
    """Yield the events that a reader would jump to, with short texts; texts in a row count once."""
    last_kind = ""
    async for event in events:
        is_more_text = event.kind == "text" and last_kind == "text"
        if event.kind in _OUTLINE_KINDS and not is_more_text:
            yield TranscriptEvent(event.kind, cut(event.body, _OUTLINE_LENGTH), event.position)
            last_kind = event.kind


def _load_check_results(connection: Connection, attempt_id: str) -> list[dict[str, Any]]:
    """Return the results of an attempt's checks, in the order in which they are made."""
    results = [result for _, result in sorted(attempts.load_checks(connection, attempt_id).items())]
    # Checks without a command, such as that of the report, come first.
    results.sort(key=lambda result: result.command is not None)
    return [result.model_dump(mode="json") for result in results]


def list_unsent_events(
    events: list[AgentEvent], position: TranscriptPosition, end: int
) -> Iterator[TranscriptEvent]:
    """Yield the events of one line that were not sent yet, each with the position after it.

    `end` is the offset at which the line ends.
    """
    for index in range(position.events, len(events)):
        if index + 1 == len(events):
            position.out = end
            position.events = 0
        else:
            position.events = index + 1
        yield position.make_agent_event(events[index])
    if events:
        position.out = end
        position.events = 0
