"""Use cases of runs: start, show, wait for, pause, resume, cancel and follow up on them."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from kapelle.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, invalid_spec
from kapelle.domain.run import Run, RunFilter, Step, is_at_rest
from kapelle.domain.specs import (
    MAX_PROMPT_BYTES,
    Name,
    Shell,
    Spec,
    TaskSpec,
    Text,
    WaitSeconds,
    field,
)
from kapelle.domain.states import RUN_FINAL, RunStatus, StopCause, Stopper, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.text import suggest_name
from kapelle.domain.views import PatternView
from kapelle.engine.children import as_child, own_key, require_undecided, room_for, stop_cause
from kapelle.engine.delivery import with_comments
from kapelle.engine.merge import require_ended
from kapelle.engine.parts import Parts
from kapelle.engine.questions import answer
from kapelle.engine.runs import control
from kapelle.engine.runs.patterns import list_patterns
from kapelle.engine.runs.start import start, validated
from kapelle.engine.tasks.submit import Belonging, require_directory, require_still_there, submit
from kapelle.service.batches import with_list
from kapelle.service.caller import Caller, Callers
from kapelle.service.filters import resolve_repository
from kapelle.service.wait import wait_until
from kapelle.store import deliveries, events, runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Conditions, Row

_LONGEST_TITLE = 200
# The fields of a run's specification that a follow-up task takes over.
_FOLLOW_UP_FIELDS = (
    "directory", "agent", "model", "project", "system_prompt", "fallback_agents", "budget_usd",
)  # fmt: skip

PatternDirectory = Annotated[str | None, Field(max_length=4000, pattern=r"^/[^\x00]*$")]


class RunPage(BaseModel):
    runs: list[Run]
    next_cursor: str | None
    last_event: int  # a client that follows the events after it misses no change of these runs


class StartBody(Spec):
    """The name of a pattern and its specification; GET /patterns returns the schema."""

    pattern: Name
    spec: dict[str, Any]


class PauseBody(Spec):
    now: bool = False


class ResumeRun(Spec):
    """The new maximum number of cycles, for a workflow that ended at its limit."""

    cycles: Annotated[int | None, Field(ge=1, le=50)] = None


class CancelRun(Spec):
    reason: Annotated[Text | None, Field(max_length=10_000)] = None
    with_tasks: bool = True


class AnswerBody(Spec):
    answer: Annotated[Text, Field(max_length=MAX_PROMPT_BYTES)]
    token: Annotated[Text | None, Field(max_length=300)] = None


class FollowUpBody(Spec):
    """The task that follows up on a run: a message, the new comments on the pull request of the
    run, or both."""

    comments: bool = False
    message: Annotated[Text | None, Field(max_length=MAX_PROMPT_BYTES)] = None
    shell: Shell | None = field(
        None,
        "environment of the client's shell; by default that of the run",
        hidden=True,
    )


class RunService:
    def __init__(self, parts: Parts, explain_hold: Callable[[], str | None] = lambda: None) -> None:
        """Store the parts; `explain_hold` returns why the queue starts no task, None if it does."""
        self._parts = parts
        self._db = parts.db
        self._callers = Callers(parts.db)
        self._explain_hold = explain_hold

    async def start(
        self, body: StartBody, caller: Caller, idempotency_key: str | None = None
    ) -> Run:
        """Start a run; it is stored when this returns."""
        parts = self._parts
        parent = caller.task_id
        key = own_key(parent, idempotency_key)
        spec = await with_list(self._db, body.pattern, body.spec, key)
        if parent is None:
            return await self.get(await start(parts, body.pattern, spec, key))
        # A run that an attempt starts is a child of the attempt's task.
        task = await self._db.read(tasks.load_row, parent)
        if task["read_only"]:
            raise Forbidden(
                "A read-only task cannot start runs.", hint="Submit a task instead of a run."
            )
        spec = {"directory": task["directory"], **spec}
        pattern_spec = await validated(parts, body.pattern, spec)
        spec = pattern_spec.model_dump(mode="json", exclude_unset=True)
        spec = await as_child(parts, parent, spec)
        belonging = Belonging(parent_task_id=parent)
        room = room_for(parts, parent)
        run_id = await start(parts, body.pattern, spec, key, belonging, room)
        return await self.get(run_id)

    async def patterns(
        self, caller: Caller, directory: PatternDirectory = None
    ) -> list[PatternView]:
        """List the patterns; with a directory also those of its repository, and their errors."""
        if caller.task_id is not None:
            directory = (await self._db.read(tasks.load_row, caller.task_id))["directory"]
        place = Path(require_directory(directory)) if directory else None
        views, errors = await list_patterns(self._parts, place)
        for error in errors:
            view = PatternView(
                name="(broken)", summary=error.message, origin="", spec_schema={}, is_broken=True
            )
            views = [*views, view]
        return views

    async def get_pattern(
        self, name: str, caller: Caller, directory: PatternDirectory = None
    ) -> PatternView:
        """Get a pattern with the JSON schema of its specification."""
        views = await self.patterns(caller, directory)
        for pattern in views:
            if pattern.name == name:
                return pattern
        names = [pattern.name for pattern in views]
        hint = suggest_name(name, names) or f"The patterns are {', '.join(names)}."
        raise NotFound(f"There is no pattern {name!r}.", hint=hint)

    async def get(self, run_id: str) -> Run:
        """Get a run by its id, or by any unique beginning or end of the id."""

        def read(connection: Connection) -> Run:
            return self._add_live_states(connection, [runs.get(connection, run_id)])[0]

        return await self._db.read(read)

    async def page(self, query: RunFilter, caller: Caller) -> RunPage:
        """List runs, newest first; next_cursor leads to the next page.

        With nested, runs inside other runs are listed, too.
        """
        last_event = await self._db.read(events.load_last_seq)
        among = await self._callers.list_below(caller, "run")
        page, cursor = await self.list_page(resolve_repository(query), among)
        return RunPage(runs=page, next_cursor=cursor, last_event=last_event)

    async def list_page(
        self, query: RunFilter, among: list[str] | None, conditions: Conditions = ()
    ) -> tuple[list[Run], str | None]:
        """Return a page of runs and the cursor of the next page.

        `among` limits it to runs with these ids, `conditions` to those that meet them.
        """

        def read(connection: Connection) -> tuple[list[Run], str | None]:
            page, cursor = runs.list_page(connection, query, among, conditions)
            return self._add_live_states(connection, page), cursor

        page, cursor = await self._db.read(read)
        if query.light:
            page = [run.as_row() for run in page]
        return page, cursor

    async def rows(self, ids: list[str]) -> list[Run]:
        """Return runs as rows of a list; ids of deleted runs are skipped."""
        if not ids:
            return []

        def read(connection: Connection) -> list[Run]:
            return self._add_live_states(connection, runs.list_by_ids(connection, ids))

        return [run.as_row() for run in await self._db.read(read)]

    async def steps(self, run_id: str) -> list[Step]:
        """List the steps of a run, in order."""
        return await self._db.read(lambda c: steps.list_steps(c, runs.resolve(c, run_id)))

    async def wait(self, run_id: str, timeout_s: WaitSeconds = 25) -> Run:
        """Wait until a run has ended, is paused or needs input; after timeout_s, call again."""
        run_id = await self._resolve(run_id)
        await wait_until(self._db, [run_id], timeout_s, partial(self._is_resting, run_id=run_id))
        return await self.get(run_id)

    async def pause(self, run_id: str, caller: Caller, body: PauseBody | None = None) -> Run:
        """Pause a run. Its running tasks end first; with now they return to the queue at once."""
        run_id = await self._resolve(run_id)
        body = body or PauseBody()
        cause = stop_cause("paused", caller.task_id)
        await control.pause(self._parts, run_id, cause, now=body.now)
        return await self.get(run_id)

    async def resume(self, run_id: str, caller: Caller, body: ResumeRun | None = None) -> Run:
        """Resume a paused run or, with more cycles, a workflow that ended at its limit."""
        run = await self.get(run_id)
        parent = caller.task_id
        require_still_there(run.directory, run.repository)
        self._parts.require_trust(run.directory)
        if body is not None and body.cycles is not None:
            return await self._extend(run, parent, "cycles", body.cycles)

        def resume(connection: Connection, run_id: str) -> None:
            if parent is not None:
                # An attempt must not resume anything that a person has stopped.
                family = runs.list_family(connection, run_id)
                for row in runs.list_open(connection, family):
                    require_undecided(connection, row["id"])
            control.resume(connection, run_id)

        return await self._apply_change(run.id, resume)

    async def _extend(self, run: Run, parent: str | None, limit: str, value: int) -> Run:
        """Raise the limit that a run ended at, and continue the run."""
        if parent is not None:
            raise Forbidden("Only a person may raise the limits of a run.")
        if run.limit_reached != limit:
            hint = f"Type `kapelle status {run.id}` to see its progress."
            raise Conflict(f"{run.id} did not end at its limit of {limit}.", hint=hint)
        spec = {**run.spec, limit: value}
        await validated(self._parts, run.pattern, spec)
        return await self._apply_change(run.id, control.extend, limit, spec)

    async def cancel(self, run_id: str, caller: Caller, body: CancelRun | None = None) -> Run:
        """Cancel a run with everything that it started; without with_tasks, its tasks continue."""
        run_id = await self._resolve(run_id)
        body = body or CancelRun()
        cause = stop_cause("cancelled", caller.task_id, body.reason)
        await control.cancel(self._parts, run_id, cause, with_tasks=body.with_tasks)
        return await self.get(run_id)

    async def answer(self, run_id: str, body: AnswerBody) -> Run:
        """Answer the question of a waiting run, which then continues."""
        return await self._apply_change(run_id, _answer, body.token, body.answer)

    async def follow_up(
        self, run_id: str, body: FollowUpBody, idempotency_key: str | None = None
    ) -> Task:
        """Follow up on an ended run: start a task on the run's branch.

        The task has the checks, the environment and the budget of the run. If the run has a pull
        request, the task gets one into the branch of the run.
        """
        run = await self.get(run_id)
        message = body.message
        comment_ids: list[str] | None = None
        require_ended(run, "continue", force=True)
        require_still_there(run.directory, run.repository)
        if body.comments:
            # A repeated request returns its task: the comments are no longer new.
            earlier_task = await self._db.glance(tasks.find_by_key, idempotency_key or "")
            if earlier_task is not None and _is_follow_up(earlier_task, run, message):
                return earlier_task
            message, comment_ids = await with_comments(self._parts, run, message)
        if not message or not message.strip():
            raise InvalidInput("message: say what is to be done, or ask for the comments.")
        task_spec = await self._make_follow_up_spec(run, message, body.shell)

        def mark_comments(connection: Connection, _task_id: str) -> None:
            if comment_ids:
                deliveries.update(connection, run.id, heard=comment_ids)

        return await submit(self._parts, task_spec, idempotency_key, also=mark_comments)

    async def _make_follow_up_spec(self, run: Run, message: str, shell: Shell | None) -> TaskSpec:
        spec = await validated(self._parts, run.pattern, run.spec)
        has_pull_request = bool(run.delivery and run.delivery.number)
        fields = {
            "prompt": f"{message}\n\n## Original request\n{spec.subject or run.title}",
            "title": f"Follow-up: {run.title}"[:_LONGEST_TITLE],
            "checks": [check.model_dump(mode="json") for check in spec.final_checks],
            "base": run.workspace.branch,
            "deliver": "pr" if has_pull_request else "branch",
            "timeout_s": spec.task_timeout_s,
            "env": self._parts.secrets.env(run.id),
            "shell": shell or await self._load_shell(run.id),
        }
        for name in _FOLLOW_UP_FIELDS:
            fields[name] = getattr(spec, name)
        try:
            return TaskSpec.model_validate(fields)
        except ValidationError as error:
            raise invalid_spec(error, "follow-up: ") from None

    async def _load_shell(self, run_id: str) -> Shell | None:
        """Return the environment of the shell in which the run was started, as far as known."""
        row = await self._db.read(runs.load_row, run_id)
        return self._parts.secrets.shell(row["shell"])

    async def pause_all(self, reason: str) -> None:
        """Pause every running run; its running tasks return to the queue."""
        for run_id in await self._db.read(runs.list_running):
            with suppress(Conflict):  # it has just ended, or is paused with its parent
                cause = StopCause(Stopper.DAEMON, reason)
                await control.pause(self._parts, run_id, cause, now=True)

    async def _resolve(self, run_id: str) -> str:
        """Return the full id of a run; raises NotFound."""
        return await self._db.read(lambda c: runs.load_row(c, runs.resolve(c, run_id))["id"])

    async def _apply_change(self, text: str, change: Callable[..., None], *args: Any) -> Run:
        def apply(connection: Connection) -> str:
            run_id = runs.resolve(connection, text)
            change(connection, run_id, *args)
            return run_id

        return await self.get(await self._db.write(apply))

    def _is_resting(self, connection: Connection, run_id: str) -> bool:
        return is_at_rest(self._add_live_states(connection, [runs.get(connection, run_id)])[0])

    def _add_live_states(self, connection: Connection, page: list[Run]) -> list[Run]:
        """Add to running runs without a reason what they are doing."""
        silent_ids = {
            run.id for run in page if run.status is RunStatus.RUNNING and run.reason is None
        }
        if not silent_ids:
            return page
        open_tasks: dict[str, list[Row]] = {id_: [] for id_ in silent_ids}
        for task in runs.list_open_tasks(connection, sorted(silent_ids)):
            open_tasks[task["run_id"]].append(task)
        result = []
        for run in page:
            if run.id in silent_ids:
                run = self._add_live_state(run, open_tasks[run.id])
            result.append(run)
        return result

    def _add_live_state(self, run: Run, open_tasks: list[Row]) -> Run:
        """Add the question that all open tasks wait for, else the running check or the tasks."""
        asking_tasks = [task for task in open_tasks if task["waiting_for"] == "input"]
        if asking_tasks and len(asking_tasks) == len(open_tasks) and asking_tasks[0]["may_ask"]:
            task_id = asking_tasks[0]["id"]
            question = asking_tasks[0]["question"]
            reason = f'{task_id} asks: {question} (kapelle answer {task_id} "…")'
            fields = {"waiting_for": "input", "reason": reason, "question": question}
            return run.model_copy(update=fields)
        for check in self._parts.checking.get(run.id, ()):
            reason = check.words(datetime.now(UTC))
            return run.model_copy(update={"reason": reason, "checking": check})
        states = ", ".join(self._describe_task(task) for task in open_tasks)
        return run.model_copy(update={"reason": states or "between two tasks"})

    def _describe_task(self, task: Row) -> str:
        """Return the title and status of a task, with the reason if there is one."""
        reason = task["reason"]
        if task["status"] == TaskStatus.QUEUED:
            reason = self._explain_hold() or reason
        state = f"{task['title']} is {task['status']}"
        if reason:
            return f"{state}: {reason}"
        return state


def _is_follow_up(task: Task, run: Run, message: str | None) -> bool:
    """Return whether a task follows up on a run, with the same message."""
    return task.workspace.base == run.workspace.branch and task.prompt.startswith(message or "")


def _answer(connection: Connection, run_id: str, token: str | None, text: str) -> None:
    asker, _, place = (token or "").rpartition(":")
    if asker not in {"", run_id}:
        raise Conflict(f"{token} is the token of a question of another run.")
    run = runs.load_row(connection, run_id)
    if run["status"] in RUN_FINAL:
        raise Conflict(f"{run_id} is {run['status']} already.")
    answer(connection, f"{run_id}:{place}" if place else run_id, text)
