"""Tasks, as a program uses them."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Literal, Unpack

from kapelle.client.answers import Page, TranscriptLine, transcript_line
from kapelle.client.asynchronous.connection import AsyncConnection
from kapelle.client.asynchronous.reading import pages, rested
from kapelle.client.flavours import AsyncStream
from kapelle.client.options import TaskOptions
from kapelle.client.requests import path_of, read_as
from kapelle.client.wishes import wish
from kapelle.domain.specs import TaskSpec
from kapelle.domain.states import FINAL, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.views import DiffView, MergeView

OUTPUT_PAGE_BYTES = 8_000_000


class AsyncTasks:
    """Every task of a daemon. An id may be any prefix that only one task has."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def run(self, prompt: str | TaskSpec, **options: Unpack[TaskOptions]) -> Task:
        """Submit a task and return at once; it is stored and will be run.

        Every field of TaskSpec is a keyword. The directory is the current one if none is given.
        """
        key = options.get("idempotency_key")
        answer = await self._connection.create("/tasks", wish("prompt", prompt, options), key)
        return read_as(Task, answer)

    async def get(self, task_id: str) -> Task:
        """The task as it is now."""
        return read_as(Task, await self._connection.get(path_of("tasks", task_id)))

    def list(
        self,
        *,
        status: TaskStatus | str | Sequence[TaskStatus | str] | None = None,
        tag: str | None = None,
        project: str | None = None,
        archived: bool = False,
    ) -> AsyncStream[Task]:
        """Tasks, newest first; pages are asked for as they are needed."""
        query = {"status": status, "tag": tag, "project": project, "archived": archived}
        return pages(self._connection, "/tasks", Page[Task], query)

    async def wait(self, task_id: str, timeout_s: float | None = None) -> Task:
        """The task when it has ended or waits for a person, or as it is when the time is up.

        It goes on waiting when the daemon is restarted.
        """
        path = path_of("tasks", task_id, "wait")
        return await rested(self._connection, path, Task, _rests, timeout_s)

    async def cancel(self, task_id: str, reason: str | None = None) -> Task:
        """End a task; a running one settles within seconds."""
        return await self._turn(task_id, "cancel", reason=reason)

    async def retry(
        self, task_id: str, *, budget_usd: float | None = None, max_turns: int | None = None
    ) -> Task:
        """A new attempt from a fresh workspace; limits that are given hold from now on."""
        return await self._turn(task_id, "retry", budget_usd=budget_usd, max_turns=max_turns)

    async def resume(
        self,
        task_id: str,
        message: str | None = None,
        *,
        budget_usd: float | None = None,
        max_turns: int | None = None,
    ) -> Task:
        """A new attempt that carries what the last one left, with a message for the agent."""
        return await self._turn(
            task_id, "resume", message=message, budget_usd=budget_usd, max_turns=max_turns
        )

    async def requeue(self, task_id: str) -> Task:
        """From the start, as if newly submitted; a running attempt is ended first."""
        return await self._turn(task_id, "requeue")

    async def archive(self, task_id: str) -> Task:
        """Put an ended task away; its worktree is removed, its work kept."""
        return await self._turn(task_id, "archive")

    async def depend(self, task_id: str, depends_on: Sequence[str]) -> Task:
        """Replace what a task that has not started waits for."""
        body = {"depends_on": [*depends_on]}
        return read_as(
            Task, await self._connection.put(path_of("tasks", task_id, "dependencies"), body)
        )

    async def diff(self, task_id: str) -> DiffView:
        """What changed in the task's worktree since it began."""
        return read_as(DiffView, await self._connection.get(path_of("tasks", task_id, "diff")))

    async def patch(self, task_id: str) -> bytes:
        """The diff alone, byte for byte, as `git apply` takes it."""
        return (await self._connection.get(path_of("tasks", task_id, "patch"))).content

    async def merge(
        self, task_id: str, into: str | None = None, *, force: bool = False
    ) -> MergeView:
        """Merge the branch of a completed task into its base or another branch."""
        body = {"into": into, "force": force}
        path = path_of("tasks", task_id, "merge")
        return read_as(MergeView, await self._connection.post(path, body))

    async def output(
        self, task_id: str, *, attempt: int | None = None, stream: Literal["out", "err"] = "out"
    ) -> str:
        """All that an attempt has written so far, by default the latest one."""
        if attempt is None:
            # Named, so that a new attempt cannot begin between two pages.
            attempts = (await self.get(task_id)).attempts
            if not attempts:
                return ""
            attempt = attempts[-1].number
        query = {"attempt": attempt, "stream": stream, "limit": OUTPUT_PAGE_BYTES}
        path = path_of("tasks", task_id, "output")
        written = bytearray()
        while True:
            answer = await self._connection.get(path, {**query, "offset": len(written)})
            if not answer.content:
                return written.decode("utf-8", "replace")
            written += answer.content

    async def transcript(
        self,
        task_id: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncStream[TranscriptLine]:
        """What the agent said and did; with follow, as it comes and until the task has ended."""
        query = {"attempt": attempt, "tail": tail, "follow": follow}
        path = path_of("tasks", task_id, "transcript")
        async with aclosing(self._connection.stream(path, query, endless=follow)) as events:
            async for event in events:
                if event.event == "end":
                    return
                yield transcript_line(event)

    async def _turn(self, task_id: str, action: str, **body: str | float | None) -> Task:
        return read_as(Task, await self._connection.post(path_of("tasks", task_id, action), body))


def _rests(task: Task) -> bool:
    return task.status in FINAL or task.waiting_for == "input"
