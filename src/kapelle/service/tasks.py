"""Use cases of tasks: submit, look, wait, and change their course."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import Conflict, Forbidden, KapelleError
from kapelle.domain.run import rests
from kapelle.domain.specs import TaskSpec
from kapelle.domain.states import TaskStatus, is_resting
from kapelle.domain.task import Task, TaskFilter
from kapelle.domain.views import SayView
from kapelle.engine.children import (
    as_child,
    end_orphans,
    own_key,
    require_undecided,
    room_for,
    why_stopped,
)
from kapelle.engine.delivery import with_comments
from kapelle.engine.merge import check_again, take_in_base
from kapelle.engine.parts import Parts
from kapelle.engine.tasks import actions
from kapelle.engine.tasks.accounts import candidates
from kapelle.engine.tasks.actions import NewLimits
from kapelle.engine.tasks.attempt import phase
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.engine.tasks.submit import Also, Belonging, submit
from kapelle.runner.process_tree import output_bytes
from kapelle.service.work import below, of_repository, wait
from kapelle.store import children, events, tasks
from kapelle.store.database import Connection


class Tasks:
    def __init__(self, parts: Parts, queue: TaskQueue) -> None:
        self._parts = parts
        self._db = parts.db
        self._queue = queue
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def submit(
        self, spec: TaskSpec, idempotency_key: str | None = None, parent: str | None = None
    ) -> Task:
        """Store a task; once this returned, nothing but a person ends it without a verdict. What
        an attempt asks for is a child of the attempt's task, its parent."""
        if parent is None:
            return self._shown(await submit(self._parts, spec, idempotency_key))
        parts = self._parts
        asked = await as_child(parts, parent, spec.model_dump(mode="json", exclude_unset=True))
        child = TaskSpec.model_validate({**asked, "mcp": parts.secrets.mcp(parent)})
        key, belonging = own_key(parent, idempotency_key), Belonging(parent_task_id=parent)
        return self._shown(await submit(parts, child, key, belonging, room_for(parts, parent)))

    async def get(self, text: str) -> Task:
        return self._shown(await self._db.read(_with_refusal, text))

    async def page(
        self, wanted: TaskFilter, parent: str | None = None
    ) -> tuple[list[Task], str | None]:
        """Some tasks, newest first, and the cursor of the next page, if there is one; to an
        attempt those below its task, the parent."""
        among = await below(self._db, parent, "task")
        found, cursor = await self._db.read(tasks.page, of_repository(wanted), among)
        shown = [self._shown(task) for task in found]
        return [task.as_row() for task in shown] if wanted.light else shown, cursor

    async def wait(self, text: str, timeout_s: float) -> Task:
        """The task as soon as it has ended or waits for a person, or as it is when time is up."""
        task_id: str = (await self._db.glance(_row, text))["id"]
        await wait(self._db, task_id, timeout_s, _is_resting)
        return await self.get(task_id)

    async def cancel(self, text: str, reason: str | None = None, parent: str | None = None) -> Task:
        """End a task and all that it asked for; a running agent is stopped with its processes, and
        settles by itself."""
        why = why_stopped("cancelled", parent, reason)
        task = await self._apply_change(text, actions.cancel, why)
        await end_orphans(self._parts)
        return task

    async def retry(
        self, text: str, limits: NewLimits | None = None, parent: str | None = None
    ) -> Task:
        """A new attempt from a fresh workspace."""
        await self._let_begin(text, parent)
        given = _allowed(limits, parent)
        return await self._apply_change(text, actions.retry, given, parent=parent)

    async def resume(
        self,
        text: str,
        message: str | None = None,
        limits: NewLimits | None = None,
        parent: str | None = None,
        *,
        merge: bool = False,
        comments: bool = False,
    ) -> Task:
        """A new attempt that carries what the last one left, with its base merged in if merge, and
        with the new comments on its pull request."""
        given, heard_at = _allowed(limits, parent), None
        await self._let_begin(text, parent)
        if merge or comments:
            task = await self._db.read(tasks.get, text)
            await self._db.read(actions.require_ended, task.id, "resumed")
            if comments:
                message, heard_at = await with_comments(self._parts, task, message)
            if merge:
                message = await take_in_base(self._parts, task, message)
        args = (message, given, heard_at)
        return await self._apply_change(text, actions.resume, *args, parent=parent)

    async def check(self, text: str) -> Task:
        """Make the checks of an ended task once more; who asks meanwhile waits for the same."""
        task = await self._db.read(_ended, text)
        if (going := self._checks.get(task.id)) is None:
            going = asyncio.create_task(check_again(self._parts, task))
            self._checks[task.id] = going
            going.add_done_callback(lambda _: self._checks.pop(task.id))
        await asyncio.shield(going)
        return await self.get(task.id)

    async def say(self, text: str, message: str) -> SayView:
        """Tell the agent of a task something: at once where that can be done, else next time."""

        def leave(connection: Connection) -> tuple[str, Any]:
            task_id = tasks.resolve(connection, text)
            return task_id, actions.say(connection, task_id, message, self._parts.home.said)

        task_id, attempt = await self._db.write(leave)
        hears = False
        if attempt is not None:
            with suppress(KapelleError):  # it is not configured any more
                settings = self._parts.settings((await self.get(task_id)).directory)
                hears = get_agent(attempt["agent"], settings).hears
        return SayView(id=task_id, told="now" if hears else "next_attempt")

    async def report(self, task_id: str, attempt_id: str, text: str) -> None:
        """Note how far the agent of an attempt is, in its own words."""
        said = await self._parts.without_secrets(task_id, attempt_id, " ".join(text.split()))
        await self._db.write(actions.report, task_id, attempt_id, said)

    async def hand_in(self, task_id: str, attempt_id: str, result: Any, success: bool) -> None:
        """Keep what the agent of an attempt hands in as its result."""
        result = await self._parts.without_secrets(task_id, attempt_id, result)
        await self._db.write(actions.hand_in, task_id, attempt_id, result, success)

    async def requeue(self, text: str) -> Task:
        """From the start, as if newly submitted; a running attempt is stopped first."""
        await self._let_begin(text)
        return await self._apply_change(text, actions.requeue)

    async def depend(self, text: str, depends_on: Sequence[str]) -> Task:
        """Replace what a task that has not started waits for."""
        return await self._apply_change(text, actions.depend, depends_on)

    async def stop_all(self, reason: str) -> None:
        """Cancel every running task and wait until each has settled."""
        for task_id in await self._db.read(tasks.at_work):
            if await self._db.read(tasks.stop_requested, task_id) is not None:
                continue  # it is being stopped already, to go on with its run later
            with suppress(Conflict):  # it ended by itself meanwhile
                await self.cancel(task_id, reason)
        with self._db.watch() as changed:
            while await self._db.read(tasks.at_work):
                await changed.wait(1.0)

    async def _let_begin(self, text: str, parent: str | None = None) -> None:
        """Refuse what would have to wait for trust, or what an attempt, of the parent, may not
        decide; and lift the pauses of what a person wants."""
        task = await self._db.read(_row, text)
        settings = self._parts.work_settings(task["directory"])
        if parent is not None:
            await self._db.read(require_undecided, task["id"])
        elif task["waiting_for"] == "rate_limit":
            paused = [found.account for found in candidates(self._parts, task, settings)]
            await self._db.write(actions.lift_pauses, task["id"], paused)

    async def _apply_change(
        self, text: str, change: Any, *args: Any, parent: str | None = None
    ) -> Task:
        """Apply a change of course; where it wants a running attempt ended, end it."""
        also = room_for(self._parts, parent) if parent else None
        task, stop = await self._db.write(_apply, text, change, args, also)
        if stop is not None:
            self._parts.stop(*stop)
        return self._shown(task)

    def _shown(self, task: Task) -> Task:
        """What holds a queued task, or what a running one is at, is known to the daemon alone."""
        if task.attempts and not task.attempts[-1].ended_at:
            *before, last = task.attempts
            at = task.report or phase(self._parts, last.id)
            reason = task.reason or f"attempt {last.number}: {at}"
            written = output_bytes(self._parts.process_directory(last.id))
            last = last.model_copy(update={"output_bytes": written})
            made = next(iter(self._parts.checking.get(last.id, ())), None)
            found = {"reason": reason, "checking": made, "attempts": [*before, last]}
            return task.model_copy(update=found)
        if task.status is not TaskStatus.QUEUED:
            return task
        now = datetime.now(UTC)
        if task.not_before and task.not_before > now:
            seconds = (task.not_before - now).total_seconds()
            reason = f"starts in {seconds:.0f} s; {task.reason or 'delayed'}"
        else:
            reason = self._queue.held or "about to start"
        return task.model_copy(update={"reason": reason})


def _allowed(limits: NewLimits | None, parent: str | None) -> NewLimits:
    if parent is not None and limits is not None and limits.given:
        raise Forbidden("An attempt cannot change the limits of a task that is there already.")
    return limits or NewLimits()


def _with_refusal(connection: Connection, text: str) -> Task:
    task = tasks.get(connection, text)
    if asked := children.of_task(connection, task.id):
        task = task.model_copy(update={"children": asked})
    if task.ended_at is None:
        return task
    found: dict[str, Any] = {"checked_again": events.checked_again(connection, task.id)}
    if task.status is TaskStatus.COMPLETED and task.merged_at is None:
        found["merge_refused"] = events.merge_refusal(connection, task.id)
    return task.model_copy(update=found)


def _ended(connection: Connection, text: str) -> Task:
    task = tasks.get(connection, text)
    actions.require_ended(connection, task.id, "checked once more")
    return task


def _is_resting(connection: Connection, task_id: str) -> bool:
    task = tasks.row(connection, task_id)
    # Most are not near their end: the whole task is looked at when it is.
    return is_resting(task["status"], task["waiting_for"]) and rests(tasks.get(connection, task_id))


def _row(connection: Connection, text: str) -> Any:
    return tasks.row(connection, tasks.resolve(connection, text))


def _apply(
    connection: Connection, text: str, change: Any, args: tuple[Any, ...], also: Also | None
) -> Any:
    """What the change returned, and the task without what follows: an attempt may begin at once."""
    task_id = tasks.resolve(connection, text)
    if also is not None:
        require_undecided(connection, task_id)
    stop = change(connection, task_id, *args)
    if also is not None:
        also(connection, task_id)
    return tasks.get(connection, task_id), stop
