"""Use cases of tasks: submit, show, wait for, stop and continue them."""

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
from kapelle.service.filters import resolve_repository
from kapelle.service.wait import wait_until
from kapelle.store import children, events, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Conditions


class TaskPage(BaseModel):
    tasks: list[Task]
    next_cursor: str | None
    last_event: int  # a client that follows the events after it misses no change of these tasks


class CancelTask(Spec):
    reason: Annotated[Text | None, Field(max_length=10_000)] = None


class RetryBody(NewLimits):
    """New limits, which apply from now on."""


class ResumeBody(NewLimits):
    """A message for the agent, and new limits, which apply from now on. With merge, the base is
    merged into the branch first, so that the agent resolves the conflicts; with comments, the
    message includes the new comments on the pull request."""

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
            return self._add_live_state(await submit(self._parts, spec, idempotency_key))
        # A task that an attempt submits is a child of the attempt's task.
        parts = self._parts
        fields = await as_child(parts, parent, spec.model_dump(mode="json", exclude_unset=True))
        child_spec = TaskSpec.model_validate({**fields, "mcp": parts.secrets.mcp(parent)})
        key = own_key(parent, idempotency_key)
        belonging = Belonging(parent_task_id=parent)
        task = await submit(parts, child_spec, key, belonging, room_for(parts, parent))
        return self._add_live_state(task)

    async def inherit_directory(self, values: dict[str, Any], parent: str) -> dict[str, Any]:
        """Add the directory of the parent task to the values of a request that names none."""
        spec = values.get("spec")
        if not isinstance(spec, dict) or "directory" in spec:
            return values
        row = await self._db.read(tasks.load_row, parent)
        return {**values, "spec": {**spec, "directory": row["directory"]}}

    async def get(self, task_id: str) -> Task:
        """Get a task by its id, or by any unique beginning or end of the id."""
        return self._add_live_state(await self._db.read(_load_task, task_id))

    async def page(self, query: TaskFilter, caller: Caller) -> TaskPage:
        """List tasks, newest first; next_cursor leads to the next page."""
        last_event = await self._db.read(events.load_last_seq)
        among = await self._callers.list_below(caller, "task")
        page, cursor = await self.list_page(resolve_repository(query), among)
        return TaskPage(tasks=page, next_cursor=cursor, last_event=last_event)

    async def list_page(
        self, query: TaskFilter, among: list[str] | None, conditions: Conditions = ()
    ) -> tuple[list[Task], str | None]:
        """Return a page of tasks and the cursor of the next page.

        `among` limits it to tasks with these ids, `conditions` to those that meet them.
        """
        page, cursor = await self._db.read(tasks.list_page, query, among, conditions)
        page = [self._add_live_state(task) for task in page]
        if query.light:
            page = [task.as_row() for task in page]
        return page, cursor

    async def rows(self, ids: list[str]) -> list[Task]:
        """Return tasks as rows of a list; ids of deleted tasks are skipped."""
        if not ids:
            return []
        existing_tasks = await self._db.read(tasks.list_by_ids, ids)
        return [self._add_live_state(task).as_row() for task in existing_tasks]

    async def wait(self, task_id: str, timeout_s: WaitSeconds = 25) -> Task:
        """Wait until a task has ended or needs input; after timeout_s, call again."""
        task_id = str((await self._db.glance(_row, task_id))["id"])
        await wait_until(self._db, [task_id], timeout_s, partial(_is_resting, task_id=task_id))
        return await self.get(task_id)

    async def cancel(self, task_id: str, caller: Caller, body: CancelTask | None = None) -> Task:
        """Cancel a task; a running one ends within seconds."""
        cause = stop_cause("cancelled", caller.task_id, body.reason if body else None)
        return await self._cancel(task_id, cause)

    async def _cancel(self, task_id: str, cause: StopCause) -> Task:
        task = await self._apply_change(task_id, actions.cancel, cause)
        await end_orphans(self._parts)
        return task

    async def retry(self, task_id: str, caller: Caller, body: RetryBody | None = None) -> Task:
        """Retry a task: start a new attempt in a fresh workspace."""
        await self._prepare_start(task_id, caller.task_id)
        limits = body or RetryBody()
        _require_unchanged_limits(limits, caller.task_id)
        return await self._apply_change(task_id, actions.retry, limits, parent=caller.task_id)

    async def resume(self, task_id: str, caller: Caller, body: ResumeBody | None = None) -> Task:
        """Resume a task: a new attempt continues with the work of the last one, and a message."""
        body = body or ResumeBody()
        parent = caller.task_id
        _require_unchanged_limits(body, parent)
        message = body.message
        comment_ids = None
        await self._prepare_start(task_id, parent)
        if body.comments and parent is not None:
            raise Forbidden("Only a person may send pull request comments to an agent.")
        if body.merge or body.comments:
            task = await self._db.read(tasks.get, task_id)
            await self._db.read(actions.require_ended, task.id, "resumed")
            if body.comments:
                message, comment_ids = await with_comments(self._parts, task, message)
            if body.merge:
                await self._require_base(task)
        args = (message, body, comment_ids, body.merge, parent or "person", body.message)
        return await self._apply_change(task_id, actions.resume, *args, parent=parent)

    async def _require_base(self, task: Task) -> None:
        """Raise Conflict unless the base of a task can be merged into its branch."""
        require_ended(task, "merge", force=True)
        base = task.workspace.base
        if base is None:
            raise Conflict(f"{task.id} has no base branch to merge.")
        await self._parts.workspaces.check_base(Path(task.directory), base)

    async def check(self, task_id: str) -> Task:
        """Repeat the checks of an ended task on its commit; the results are in checked_again."""
        task = await self._db.read(_load_ended_task, task_id)
        # Requests that come while the checks are made wait for the same checks.
        checking = self._checks.get(task.id)
        if checking is None:
            checking = asyncio.create_task(check_again(self._parts, task))
            self._checks[task.id] = checking
            checking.add_done_callback(lambda _: self._checks.pop(task.id))
        await asyncio.shield(checking)
        return await self.get(task.id)

    async def say(self, task_id: str, body: SayBody, caller: Caller) -> SayView:
        """Send a message to the agent of a task.

        A running agent gets it at once if its protocol allows that (told: now), otherwise with the
        next attempt (told: next_attempt).
        """
        author = caller.task_id or "person"

        def store(connection: Connection) -> tuple[str, str, Any]:
            full_id = tasks.resolve(connection, task_id)
            return full_id, *actions.say(connection, full_id, body.message, author)

        full_id, message_id, attempt = await self._db.write(store)
        task = await self.get(full_id)
        is_delivered = False
        if attempt:
            agent = agent_of(self._parts, task, attempt["agent"])
            if agent and agent.hears:
                is_delivered = await asyncio.to_thread(
                    messages.deliver, self._parts, attempt["id"], message_id, body.message
                )
        return SayView(id=task.id, told="now" if is_delivered else "next_attempt")

    async def report(self, body: ReportBody, caller: Caller) -> Noted:
        """Report your progress in one line, as the agent of a task, to the people who watch it."""
        own_ids = caller.require_attempt()
        text = await self._parts.without_secrets(*own_ids, " ".join(body.text.split()))
        await self._db.write(actions.report, *own_ids, text)
        return Noted()

    async def finish(self, body: FinishBody, caller: Caller) -> Noted:
        """Hand in the result of your task, then end your turn. The checks still verify it."""
        own_ids = caller.require_attempt()
        result = await self._parts.without_secrets(*own_ids, body.result)
        await self._db.write(actions.hand_in, *own_ids, result, body.success)
        return Noted()

    async def requeue(self, task_id: str) -> Task:
        """Start a task over, as if it were newly submitted."""
        await self._prepare_start(task_id)
        return await self._apply_change(task_id, actions.requeue)

    async def depend(self, task_id: str, body: DependenciesBody) -> Task:
        """Replace the dependencies of a task that has not started; cycles are refused."""
        return await self._apply_change(task_id, actions.depend, body.depends_on)

    async def stop_all(self, reason: str) -> None:
        """Cancel every running task and wait until each has settled."""
        for task_id in await self._db.read(tasks.list_at_work):
            if (await self._db.read(tasks.load_row, task_id))["stop"] is not None:
                continue  # it is being stopped already, and continues later with its run
            with suppress(Conflict):  # it has just ended
                await self._cancel(task_id, StopCause(Stopper.DAEMON, reason))
        with self._db.watch() as changes:
            while await self._db.read(tasks.list_at_work):
                await changes.wait(1.0)

    async def _prepare_start(self, task_id: str, parent: str | None = None) -> None:
        """Check that a new attempt may start; raises an error if it may not.

        It may not without its directory or its trust, nor by an attempt of `parent` against the
        decision of a person. A person's request ends the pauses of the accounts it waits for.
        """
        task = await self._db.read(_row, task_id)
        require_still_there(task["directory"], task["repository"])
        settings = self._parts.work_settings(task["directory"])
        if parent is not None:
            await self._db.read(require_undecided, task["id"])
        elif task["waiting_for"] == "rate_limit":
            candidates = list_candidates(self._parts, task, settings)
            accounts = [candidate.account for candidate in candidates]
            await self._db.write(actions.lift_pauses, task["id"], accounts)

    async def _apply_change(
        self, task_id: str, change: Any, *args: Any, parent: str | None = None
    ) -> Task:
        """Apply a change to a task; if it stops a running attempt, end the agent."""
        also = None
        if parent:
            also = room_for(self._parts, parent)
        task, stop = await self._db.write(_apply, task_id, change, args, also)
        if stop is not None:
            self._parts.stop(*stop)
        return self._add_live_state(task)

    def _add_live_state(self, task: Task) -> Task:
        """Add what only the daemon knows: the phase of a running task, why a queued one waits."""
        if task.attempts and not task.attempts[-1].ended_at:
            return self._add_phase(task)
        if task.status is not TaskStatus.QUEUED:
            return task
        now = datetime.now(UTC)
        if task.not_before and task.not_before > now:
            seconds = (task.not_before - now).total_seconds()
            reason = f"starts in {seconds:.0f} s; {task.reason or 'delayed'}"
        else:
            reason = self._queue.held or "about to start"
        return task.model_copy(update={"reason": reason})

    def _add_phase(self, task: Task) -> Task:
        """Add the phase of the running attempt, its current check and the size of its output."""
        *earlier_attempts, attempt = task.attempts
        phase = task.report or describe_phase(self._parts, attempt.id)
        output_bytes = count_output_bytes(self._parts.process_directory(attempt.id))
        running_checks = self._parts.checking.get(attempt.id, ())
        attempt = attempt.model_copy(update={"output_bytes": output_bytes})
        live_fields = {
            "reason": task.reason or f"attempt {attempt.number}: {phase}",
            "checking": next(iter(running_checks), None),
            "attempts": [*earlier_attempts, attempt],
        }
        return task.model_copy(update=live_fields)


def _require_unchanged_limits(limits: NewLimits, parent: str | None) -> None:
    """Raise Forbidden for an attempt, of the parent, that changes limits of an existing task."""
    if parent is not None and limits.changes:
        raise Forbidden("An attempt cannot change the limits of an existing task.")


def _load_task(connection: Connection, task_id: str) -> Task:
    """Return a task with its children, its repeated checks and the refusal of its merge."""
    task = tasks.get(connection, task_id)
    own_children = children.list_children(connection, task.id)
    if own_children:
        task = task.model_copy(update={"children": own_children})
    if task.ended_at is None:
        return task
    fields: dict[str, Any] = {
        "checked_again": events.find_last(connection, task.id, events.CHECKED, CheckedAgain)
    }
    if task.status is TaskStatus.COMPLETED and task.merged_at is None:
        fields["merge_refused"] = events.find_last(
            connection, task.id, "task.merge_refused", MergeRefusal
        )
    return task.model_copy(update=fields)


def _load_ended_task(connection: Connection, task_id: str) -> Task:
    task = tasks.get(connection, task_id)
    actions.require_ended(connection, task.id, "checked once more")
    return task


def _is_resting(connection: Connection, task_id: str) -> bool:
    row = tasks.load_row(connection, task_id)
    # This runs after every write, so the whole task is loaded only near its end.
    if not is_resting(row["status"], row["waiting_for"]):
        return False
    return is_at_rest(tasks.get(connection, task_id))


def _row(connection: Connection, task_id: str) -> Any:
    return tasks.load_row(connection, tasks.resolve(connection, task_id))


def _apply(
    connection: Connection, task_id: str, change: Any, args: tuple[Any, ...], also: Also | None
) -> Any:
    """Apply a change in one transaction; return the task and what the change returned.

    The task is read in the same transaction, because a new attempt may start right after it.
    """
    task_id = tasks.resolve(connection, task_id)
    if also is not None:
        require_undecided(connection, task_id)
    stop = change(connection, task_id, *args)
    if also is not None:
        also(connection, task_id)
    return tasks.get(connection, task_id), stop
