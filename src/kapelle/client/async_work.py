"""Tasks, runs and schedules of a daemon, as a program uses them with asyncio.

The variants of the classes in work.py, method by method; a test compares them.
"""

import builtins
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from kapelle.client.async_http import AsyncDaemonConnection
from kapelle.client.protocol import TRIES
from kapelle.client.values import (
    OUTPUT_PAGE_BYTES,
    TranscriptLine,
    as_json,
    item_path,
    read,
    schedule_body,
    spec_body,
)
from kapelle.client.work import Item, Piece
from kapelle.domain.errors import Conflict
from kapelle.domain.run import Run, Step, is_at_rest
from kapelle.domain.schedule import Firing, Schedule, ScheduleSpec, ScheduleStatus
from kapelle.domain.specs import TaskSpec
from kapelle.domain.states import RUN_FINAL, RunStatus, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.work_views import (
    DiffView,
    MergePreview,
    MergeView,
    PullRequestView,
    SayView,
    UndoView,
)
from kapelle.patterns.spec import PatternSpec

T = TypeVar("T")

AsyncItemStream: TypeAlias = AsyncGenerator[T, None]


class AsyncCollection(Generic[Item]):
    """All items of one kind; an id may be any prefix that only one of them has."""

    def __init__(self, connection: AsyncDaemonConnection, path: str, kind: type[Item]) -> None:
        self._connection = connection
        self._path = path
        self._kind: type[Item] = kind

    async def get(self, id: str) -> Item:
        """Return the item as it is now."""
        return self._read(await self._connection.get(item_path(self._path, id)))

    def _read(self, answer: object) -> Item:
        return read(self._kind, answer, self._path)


class AsyncWorkCollection(AsyncCollection[Piece]):
    """Methods that tasks and runs share."""

    async def wait(self, id: str, timeout_s: float | None = None) -> Piece:
        """Return the item when it has ended and is delivered, or needs a person; or as it is when
        the time is up.

        It goes on waiting when the daemon is restarted.
        """

        def is_over(answer: object) -> bool:
            return is_at_rest(self._read(answer))

        path = item_path(self._path, id, "wait")
        return self._read(await self._connection.wait(path, {}, is_over, timeout_s))

    async def archive(self, id: str) -> Piece:
        """Archive an ended item; its worktrees are removed, the work is kept."""
        return self._read(await self._connection.post(item_path(self._path, id, "archive")))

    async def diff(self, id: str, attempt: int | None = None) -> DiffView:
        """Return what changed in its worktree since it began, or what one attempt changed."""
        path = item_path(self._path, id, "diff")
        return read(DiffView, await self._connection.get(path, {"attempt": attempt}), path)

    async def pull_request(self, id: str) -> PullRequestView:
        """Return its pull request with the comments on it, as they are at the forge now."""
        path = item_path(self._path, id, "pr")
        return read(PullRequestView, await self._connection.get(path), path)

    async def deliver(
        self, id: str, *, draft: bool | None = None, force: bool = False
    ) -> PullRequestView:
        """Push its work and open its pull request, or update it; force pushes also a secret."""
        path = item_path(self._path, id, "pr")
        body = {"draft": draft, "force": force}
        return read(PullRequestView, await self._connection.post(path, body, tries=TRIES), path)

    async def patch(self, id: str) -> bytes:
        """Return the diff alone, byte for byte, as `git apply` takes it."""
        return await self._connection.get_bytes(item_path(self._path, id, "patch"))

    async def merge(
        self,
        id: str,
        into: str | None = None,
        *,
        force: bool = False,
        verify: bool = True,
        style: Literal["merge", "squash", "rebase"] = "merge",
        message: str | None = None,
    ) -> MergeView:
        """Merge the branch of a completed item into its base or another branch, and wait for it.

        With verify the checks run on the result where the base has moved.
        """
        path = item_path(self._path, id, "merge")
        body = {
            "into": into,
            "force": force,
            "verify": verify,
            "style": style,
            "message": message,
        }
        return read(MergeView, await self._connection.merge(path, body), path)

    async def undo_merge(self, id: str, *, message: str | None = None) -> UndoView:
        """Undo the last merge of its branch: the base goes back, or a commit reverts the merge."""
        path = item_path(self._path, id, "merge/undo")
        return read(UndoView, await self._connection.post(path, {"message": message}), path)

    async def preview_merge(self, id: str, into: str | None = None) -> MergePreview:
        """Return how a merge would go, without merging."""
        path = item_path(self._path, id, "merge")
        return read(MergePreview, await self._connection.get(path, {"into": into}), path)


class AsyncTasks(AsyncWorkCollection[Task]):
    """Every task of a daemon."""

    def __init__(self, connection: AsyncDaemonConnection) -> None:
        super().__init__(connection, "/tasks", Task)

    async def run(
        self, /, prompt: str | TaskSpec, *, idempotency_key: str | None = None, **fields: Any
    ) -> Task:
        """Submit a task and return at once; it is stored and will be run.

        Every field of TaskSpec is a keyword. The default directory is the current one.
        """
        body = spec_body("prompt", prompt, fields)
        return self._read(await self._connection.create("/tasks", body, idempotency_key))

    async def list(
        self,
        *,
        status: TaskStatus | str | Sequence[TaskStatus | str] | None = None,
        tag: str | None = None,
        project: str | None = None,
        archived: bool = False,
    ) -> AsyncItemStream[Task]:
        """Yield tasks, newest first; pages are requested as they are needed."""
        query = {"status": status, "tag": tag, "project": project, "archived": archived}
        async for task in self._connection.pages("/tasks", as_json(query)):
            yield self._read(task)

    async def cancel(self, id: str, reason: str | None = None) -> Task:
        """Cancel a task; a running one ends within seconds."""
        path = item_path("/tasks", id, "cancel")
        return self._read(await self._connection.post(path, {"reason": reason}))

    async def retry(
        self, id: str, *, budget_usd: float | None = None, max_turns: int | None = None
    ) -> Task:
        """Start a new attempt from a fresh workspace; given limits hold from now on."""
        path = item_path("/tasks", id, "retry")
        body = {"budget_usd": budget_usd, "max_turns": max_turns}
        return self._read(await self._connection.post(path, body))

    async def resume(
        self,
        id: str,
        message: str | None = None,
        *,
        budget_usd: float | None = None,
        max_turns: int | None = None,
        merge: bool = False,
        comments: bool = False,
    ) -> Task:
        """Start a new attempt that goes on where the last one ended, with a message for the agent.

        With merge the agent resolves the conflicts between its branch and the base, with comments
        it gets the new comments on its pull request.
        """
        path = item_path("/tasks", id, "resume")
        body = {
            "message": message,
            "budget_usd": budget_usd,
            "max_turns": max_turns,
            "merge": merge,
            "comments": comments,
        }
        return self._read(await self._connection.post(path, body))

    async def say(self, id: str, message: str) -> SayView:
        """Send a message to a running agent, which gets it now or at its next attempt."""
        path = item_path("/tasks", id, "say")
        return read(SayView, await self._connection.post(path, {"message": message}), path)

    async def requeue(self, id: str) -> Task:
        """Start a task from the beginning, as if newly submitted; a running attempt ends first."""
        return self._read(await self._connection.post(item_path("/tasks", id, "requeue")))

    async def depend(self, id: str, depends_on: Sequence[str]) -> Task:
        """Replace the dependencies of a task that has not started."""
        path = item_path("/tasks", id, "dependencies")
        return self._read(await self._connection.put(path, as_json({"depends_on": depends_on})))

    async def output(
        self, id: str, *, attempt: int | None = None, stream: Literal["out", "err"] = "out"
    ) -> str:
        """Return all that an attempt has written so far, by default the latest one."""
        if attempt is None:
            # Named, so that a new attempt cannot begin between two pages.
            attempts = (await self.get(id)).attempts
            if not attempts:
                return ""
            attempt = attempts[-1].number
        query = {"attempt": attempt, "stream": stream, "limit": OUTPUT_PAGE_BYTES}
        path = item_path("/tasks", id, "output")
        written = bytearray()
        while True:
            block = await self._connection.get_bytes(path, {**query, "offset": len(written)})
            if not block:
                return written.decode("utf-8", "replace")
            written += block

    async def transcript(
        self, id: str, *, attempt: int | None = None, tail: int | None = None, follow: bool = False
    ) -> AsyncItemStream[TranscriptLine]:
        """Yield what the agent said and did; with follow, as it comes and until the task ends."""
        query = {"attempt": attempt, "tail": tail, "follow": follow}
        path = item_path("/tasks", id, "transcript")
        async with aclosing(self._connection.stream(path, query, endless=follow)) as events:
            async for event in events:
                if event.kind != "end":
                    text = str(event.data.get("text") or "")
                    yield TranscriptLine(event.kind, text, event.data)


class AsyncRuns(AsyncWorkCollection[Run]):
    """Every run of a daemon."""

    def __init__(self, connection: AsyncDaemonConnection) -> None:
        super().__init__(connection, "/runs", Run)

    async def start(
        self,
        pattern: str,
        spec: PatternSpec | Mapping[str, Any] | None = None,
        /,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Run:
        """Start any pattern by name and return at once, with a spec or its fields as keywords."""
        body = {"pattern": pattern, "spec": spec_body("", spec, fields)}
        return self._read(await self._connection.create("/runs", body, idempotency_key))

    async def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        pattern: str | None = None,
        project: str | None = None,
        parent_id: str | None = None,
        archived: bool = False,
    ) -> AsyncItemStream[Run]:
        """Yield runs, newest first; pages are requested as they are needed."""
        query = {
            "status": status,
            "pattern": pattern,
            "project": project,
            "parent_id": parent_id,
            "archived": archived,
        }
        async for run in self._connection.pages("/runs", as_json(query)):
            yield self._read(run)

    async def follow_up(
        self,
        id: str,
        message: str | None = None,
        *,
        comments: bool = False,
        idempotency_key: str | None = None,
    ) -> Task:
        """Start a task on the branch of an ended run; with comments it gets the new comments on
        the run's pull request."""
        path = item_path("/runs", id, "follow_up")
        body = {"message": message, "comments": comments}
        return read(Task, await self._connection.create(path, body, idempotency_key), path)

    async def result(self, id: str) -> dict[str, Any] | Any:
        """Return the result of an ended run; its shape is the pattern's own."""
        run = await self.get(id)
        if run.status not in RUN_FINAL:
            raise Conflict(f"{run.id} is {run.status} and has no result yet.", hint="Wait for it.")
        return run.result

    async def steps(self, id: str) -> builtins.list[Step]:
        """Return the steps of the run, in order."""
        path = item_path("/runs", id, "steps")
        return read(builtins.list[Step], await self._connection.get(path), path)

    async def pause(self, id: str, *, now: bool = False) -> Run:
        """Start nothing more; running tasks end first, or with now go back to the queue."""
        return self._read(
            await self._connection.post(item_path("/runs", id, "pause"), {"now": now})
        )

    async def resume(self, id: str, *, cycles: int | None = None) -> Run:
        """Resume a paused run, or with more cycles a workflow that ended at its limit."""
        path = item_path("/runs", id, "resume")
        return self._read(await self._connection.post(path, {"cycles": cycles}))

    async def cancel(self, id: str, reason: str | None = None, *, with_tasks: bool = True) -> Run:
        """Cancel a run with all that it started, or let its tasks go on."""
        path = item_path("/runs", id, "cancel")
        body = {"reason": reason, "with_tasks": with_tasks}
        return self._read(await self._connection.post(path, body))

    async def answer(self, id: str, answer: str, *, token: str | None = None) -> Run:
        """Answer a question of a waiting run; the token names one of several."""
        path = item_path("/runs", id, "answer")
        return self._read(await self._connection.post(path, {"answer": answer, "token": token}))


class AsyncSchedules(AsyncCollection[Schedule]):
    """Every schedule of a daemon."""

    def __init__(self, connection: AsyncDaemonConnection) -> None:
        super().__init__(connection, "/schedules", Schedule)

    async def create(
        self,
        /,
        kind: str | ScheduleSpec,
        spec: TaskSpec | PatternSpec | Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Schedule:
        """Schedule a task (kind "task") or a run of a pattern (its name).

        spec is what each firing starts, as a spec or its fields; its default directory is the
        current one. One of cron, at, every_s and after says when.
        """
        body = schedule_body(kind, spec, fields)
        return self._read(await self._connection.create("/schedules", body, idempotency_key))

    async def list(
        self,
        *,
        status: ScheduleStatus | str | Sequence[ScheduleStatus | str] | None = None,
        project: str | None = None,
    ) -> AsyncItemStream[Schedule]:
        """Yield schedules, newest first; pages are requested as they are needed."""
        query = {"status": status, "project": project}
        async for schedule in self._connection.pages("/schedules", as_json(query)):
            yield self._read(schedule)

    async def firings(self, id: str) -> AsyncItemStream[Firing]:
        """Yield the firings of a schedule, newest first."""
        path = item_path("/schedules", id, "firings")
        async for firing in self._connection.pages(path, {}):
            yield read(Firing, firing, path)

    async def pause(self, id: str) -> Schedule:
        """Start nothing until the schedule is resumed; what it started goes on."""
        return self._read(await self._connection.post(item_path("/schedules", id, "pause")))

    async def resume(self, id: str) -> Schedule:
        """Go on with the next slot; those that passed meanwhile are not made up for."""
        return self._read(await self._connection.post(item_path("/schedules", id, "resume")))

    async def cancel(self, id: str, *, with_work: bool = False) -> Schedule:
        """Cancel a schedule; with_work also cancels what it started and what still runs."""
        path = item_path("/schedules", id, "cancel")
        return self._read(await self._connection.post(path, {"with_work": with_work}))

    async def run(self, id: str) -> Firing:
        """Start at once what the schedule starts, besides its slots."""
        path = item_path("/schedules", id, "run")
        return read(Firing, await self._connection.post(path), path)
