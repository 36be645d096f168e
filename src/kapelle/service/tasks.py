"""Use cases of tasks: submit, look, wait, and change their course."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from kapelle.domain.errors import Conflict, Forbidden
from kapelle.domain.run import is_at_rest
from kapelle.domain.specs import MAX_PROMPT_BYTES, Spec, TaskSpec, Text, WaitSeconds
from kapelle.domain.states import StopCause, Stopper, TaskStatus, is_resting
from kapelle.domain.task import CheckedAgain, MergeRefusal, Task, TaskFilter
from kapelle.domain.work_views import SayView
from kapelle.engine import messages
from kapelle.engine.children import (
    as_child,
    end_orphans,
    own_key,
    require_undecided,
    room_for,
    stop_cause,
)
from kapelle.engine.delivery import with_comments
from kapelle.engine.merge import check_again, require_ended
from kapelle.engine.parts import Parts
from kapelle.engine.tasks import actions
from kapelle.engine.tasks.accounts import list_candidates
from kapelle.engine.tasks.actions import NewLimits
from kapelle.engine.tasks.attempt import agent_of, describe_phase
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.engine.tasks.submit import Also, Belonging, require_still_there, submit
from kapelle.runner.process_tree import count_output_bytes
from kapelle.service.caller import Caller, Callers
from kapelle.service.work import of_repository, until
from kapelle.store import children, events, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Conditions


class TaskPage(BaseModel):
    tasks: list[Task]
    next_cursor: str | None
    last_event: int  # whoever follows the events behind it misses no change of these


class CancelTask(Spec):
    reason: Annotated[Text | None, Field(max_length=10_000)] = None


class RetryBody(NewLimits):
    """Limits that are to hold from now on."""


class ResumeBody(NewLimits):
    """A message for the agent, limits that are to hold from now on, whether the base is to be
    merged into its branch first, so that it resolves what conflicts, and whether it is told the
    comments on its pull request that are new."""

    merge: bool = False
    comments: bool = False
    message: Annotated[Text | None, Field(max_length=MAX_PROMPT_BYTES)] = None


class DependenciesBody(Spec):
    depends_on: Annotated[list[Text], Field(max_length=1000)]


class SayBody(Spec):
    message: Annotated[Text, Field(min_length=1, max_length=MAX_PROMPT_BYTES, pattern=r"\S")]


class Noted(BaseModel):
    noted: bool = True


class ReportBody(Spec):
    text: Annotated[Text, Field(min_length=1, max_length=500, description="one line")]


class FinishBody(Spec):
    result: Annotated[Any, Field(description="a text, or an object if one was asked for")]
    success: Annotated[bool, Field(description="false if you could not do it")] = True

    @field_validator("result")
    @classmethod
    def _is_short(cls, value: Any) -> Any:
        if len(json.dumps(value, ensure_ascii=False)) > MAX_PROMPT_BYTES:
            raise ValueError(f"it may have at most {MAX_PROMPT_BYTES:,} characters")
        return value


class TaskService:
    def __init__(self, parts: Parts, queue: TaskQueue) -> None:
        self._parts = parts
        self._db = parts.db
        self._callers = Callers(parts.db)
        self._queue = queue
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def submit(
        self, spec: TaskSpec, caller: Caller, idempotency_key: str | None = None
    ) -> Task:
        """Submit a task; it is stored when this returns."""
        parent = caller.task_id
        if parent is None:
            return self._shown(await submit(self._parts, spec, idempotency_key))
        # What an attempt asks for is a child of the attempt's task.
        parts = self._parts
        asked = await as_child(parts, parent, spec.model_dump(mode="json", exclude_unset=True))
        child = TaskSpec.model_validate({**asked, "mcp": parts.secrets.mcp(parent)})
        key = own_key(parent, idempotency_key)
        belonging = Belonging(parent_task_id=parent)
        return self._shown(await submit(parts, child, key, belonging, room_for(parts, parent)))

    async def inherit_directory(self, asked: dict[str, Any], parent: str) -> dict[str, Any]:
        """Add the directory of the task whose attempt asks for another one without naming any."""
        spec = asked.get("spec")
        if not isinstance(spec, dict) or "directory" in spec:
            return asked
        row = await self._db.read(tasks.load_row, parent)
        return {**asked, "spec": {**spec, "directory": row["directory"]}}

    async def get(self, task_id: str) -> Task:
        """One task, by its id or any unique end or beginning of it."""
        return self._shown(await self._db.read(_with_refusal, task_id))

    async def page(self, wanted: TaskFilter, caller: Caller) -> TaskPage:
        """Tasks, newest first; next_cursor leads to the next page."""
        last = await self._db.read(events.load_last_seq)
        among = await self._callers.list_below(caller, "task")
        listed, cursor = await self.listed(of_repository(wanted), among)
        return TaskPage(tasks=listed, next_cursor=cursor, last_event=last)

    async def listed(
        self, wanted: TaskFilter, among: list[str] | None, own: Conditions = ()
    ) -> tuple[list[Task], str | None]:
        """A page of tasks for which own conditions hold too, and the next cursor."""
        found, cursor = await self._db.read(tasks.list_page, wanted, among, own)
        shown = [self._shown(task) for task in found]
        return [task.as_row() for task in shown] if wanted.light else shown, cursor

    async def rows(self, ids: list[str]) -> list[Task]:
        """Some tasks as the rows of a list, as far as they exist."""
        if ids:
            found = await self._db.read(tasks.list_by_ids, ids)
        else:
            found = []
        return [self._shown(task).as_row() for task in found]

    async def wait(self, task_id: str, timeout_s: WaitSeconds = 25) -> Task:
        """The task once it has ended or waits for input; after timeout_s as it is: then call
        again."""
        task_id = str((await self._db.glance(_row, task_id))["id"])
        await until(self._db, [task_id], timeout_s, partial(_is_resting, task_id=task_id))
        return await self.get(task_id)

    async def cancel(self, task_id: str, caller: Caller, body: CancelTask | None = None) -> Task:
        """End a task; a running one settles within seconds."""
        cause = stop_cause("cancelled", caller.task_id, body.reason if body else None)
        return await self._cancel(task_id, cause)

    async def _cancel(self, task_id: str, cause: StopCause) -> Task:
        task = await self._apply_change(task_id, actions.cancel, cause)
        await end_orphans(self._parts)
        return task

    async def retry(self, task_id: str, caller: Caller, body: RetryBody | None = None) -> Task:
        """A new attempt from a fresh workspace."""
        await self._let_begin(task_id, caller.task_id)
        limits = _allowed(body or RetryBody(), caller.task_id)
        return await self._apply_change(task_id, actions.retry, limits, parent=caller.task_id)

    async def resume(self, task_id: str, caller: Caller, body: ResumeBody | None = None) -> Task:
        """A new attempt that carries what the last one left, with a message for it."""
        body = body or ResumeBody()
        parent = caller.task_id
        limits = _allowed(body, parent)
        message = body.message
        heard = None
        await self._let_begin(task_id, parent)
        if body.comments and parent is not None:
            raise Forbidden("Only a person has an agent told the comments on a pull request.")
        if body.merge or body.comments:
            task = await self._db.read(tasks.get, task_id)
            await self._db.read(actions.require_ended, task.id, "resumed")
            if body.comments:
                message, heard = await with_comments(self._parts, task, message)
            if body.merge:
                require_ended(task, "merge", force=True)
                if (base := task.workspace.base) is None:
                    raise Conflict(f"{task.id} began at no branch that could be merged into its.")
                await self._parts.workspaces.check_base(Path(task.directory), base)
        args = (message, limits, heard, body.merge, parent or "person", body.message)
        return await self._apply_change(task_id, actions.resume, *args, parent=parent)

    async def check(self, task_id: str) -> Task:
        """Make the checks of an ended task once more, on what it committed; answers when they are
        made, with what they said in checked_again."""
        # Who asks meanwhile waits for the same.
        task = await self._db.read(_ended, task_id)
        if (going := self._checks.get(task.id)) is None:
            going = asyncio.create_task(check_again(self._parts, task))
            self._checks[task.id] = going
            going.add_done_callback(lambda _: self._checks.pop(task.id))
        await asyncio.shield(going)
        return await self.get(task.id)

    async def say(self, task_id: str, body: SayBody, caller: Caller) -> SayView:
        """Tell the agent of a task something: at once (told: now) where its protocol allows that,
        else when its present attempt has ended (told: next_attempt)."""

        def store(connection: Connection) -> tuple[str, str, Any]:
            resolved = tasks.resolve(connection, task_id)
            author = caller.task_id or "person"
            return resolved, *actions.say(connection, resolved, body.message, author)

        resolved, message_id, attempt = await self._db.write(store)
        task = await self.get(resolved)
        if attempt:
            agent = agent_of(self._parts, task, attempt["agent"])
        else:
            agent = None
        is_delivered = False
        if attempt and agent and agent.hears:
            one = (self._parts, attempt["id"], message_id, body.message)
            is_delivered = await asyncio.to_thread(messages.deliver, *one)
        return SayView(id=task.id, told="now" if is_delivered else "next_attempt")

    async def report(self, body: ReportBody, caller: Caller) -> Noted:
        """Say in one line how far you are, as the agent of a task; people see it beside the
        task."""
        own = caller.require_attempt()
        said = await self._parts.without_secrets(*own, " ".join(body.text.split()))
        await self._db.write(actions.report, *own, said)
        return Noted()

    async def finish(self, body: FinishBody, caller: Caller) -> Noted:
        """Hand in the result of your task, then end your turn. Its checks are made all the same."""
        own = caller.require_attempt()
        result = await self._parts.without_secrets(*own, body.result)
        await self._db.write(actions.hand_in, *own, result, body.success)
        return Noted()

    async def requeue(self, task_id: str) -> Task:
        """From the start, as if newly submitted."""
        await self._let_begin(task_id)
        return await self._apply_change(task_id, actions.requeue)

    async def depend(self, task_id: str, body: DependenciesBody) -> Task:
        """Replace what a task waits for, as long as it has not started; circles are refused."""
        return await self._apply_change(task_id, actions.depend, body.depends_on)

    async def stop_all(self, reason: str) -> None:
        """Cancel every running task and wait until each has settled."""
        for task_id in await self._db.read(tasks.list_at_work):
            if (await self._db.read(tasks.load_row, task_id))["stop"] is not None:
                continue  # it is being stopped already, to go on with its run later
            with suppress(Conflict):  # it ended by itself meanwhile
                await self._cancel(task_id, StopCause(Stopper.DAEMON, reason))
        with self._db.watch() as changed:
            while await self._db.read(tasks.list_at_work):
                await changed.wait(1.0)

    async def _let_begin(self, task_id: str, parent: str | None = None) -> None:
        """Refuse what would have to wait for trust, or what an attempt, of the parent, may not
        decide; and lift the pauses of what a person wants."""
        task = await self._db.read(_row, task_id)
        require_still_there(task["directory"], task["repository"])
        settings = self._parts.work_settings(task["directory"])
        if parent is not None:
            await self._db.read(require_undecided, task["id"])
        elif task["waiting_for"] == "rate_limit":
            paused = [found.account for found in list_candidates(self._parts, task, settings)]
            await self._db.write(actions.lift_pauses, task["id"], paused)

    async def _apply_change(
        self, task_id: str, change: Any, *args: Any, parent: str | None = None
    ) -> Task:
        """Apply a change of course; where it wants a running attempt ended, end it."""
        if parent:
            also = room_for(self._parts, parent)
        else:
            also = None
        task, stop = await self._db.write(_apply, task_id, change, args, also)
        if stop is not None:
            self._parts.stop(*stop)
        return self._shown(task)

    def _shown(self, task: Task) -> Task:
        """What holds a queued task, or what a running one is at, is known to the daemon alone."""
        if task.attempts and not task.attempts[-1].ended_at:
            *before, last = task.attempts
            at = task.report or describe_phase(self._parts, last.id)
            reason = task.reason or f"attempt {last.number}: {at}"
            written = count_output_bytes(self._parts.process_directory(last.id))
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


def _allowed(limits: NewLimits, parent: str | None) -> NewLimits:
    if parent is not None and limits.changes:
        raise Forbidden("An attempt cannot change the limits of a task that is there already.")
    return limits


def _with_refusal(connection: Connection, task_id: str) -> Task:
    task = tasks.get(connection, task_id)
    if asked := children.list_children(connection, task.id):
        task = task.model_copy(update={"children": asked})
    if task.ended_at is None:
        return task
    checked = events.find_last(connection, task.id, events.CHECKED, CheckedAgain)
    found: dict[str, Any] = {"checked_again": checked}
    if task.status is TaskStatus.COMPLETED and task.merged_at is None:
        refused = events.find_last(connection, task.id, "task.merge_refused", MergeRefusal)
        found["merge_refused"] = refused
    return task.model_copy(update=found)


def _ended(connection: Connection, task_id: str) -> Task:
    task = tasks.get(connection, task_id)
    actions.require_ended(connection, task.id, "checked once more")
    return task


def _is_resting(connection: Connection, task_id: str) -> bool:
    task = tasks.load_row(connection, task_id)
    # Most are not near their end: the whole task is looked at when it is.
    return is_resting(task["status"], task["waiting_for"]) and is_at_rest(
        tasks.get(connection, task_id)
    )


def _row(connection: Connection, task_id: str) -> Any:
    return tasks.load_row(connection, tasks.resolve(connection, task_id))


def _apply(
    connection: Connection, task_id: str, change: Any, args: tuple[Any, ...], also: Also | None
) -> Any:
    """What the change returned, and the task without what follows: an attempt may begin at once."""
    task_id = tasks.resolve(connection, task_id)
    if also is not None:
        require_undecided(connection, task_id)
    stop = change(connection, task_id, *args)
    if also is not None:
        also(connection, task_id)
    return tasks.get(connection, task_id), stop
