"""Use cases of runs: start, look, wait, and change their course."""

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
from kapelle.service.work import of_repository, until
from kapelle.store import deliveries, events, runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Conditions, Row

_LONGEST_TITLE = 200
# What a task that follows up on a run takes over from the run's specification.
_KEPT = (
    "directory", "agent", "model", "project", "system_prompt", "fallback_agents", "budget_usd",
)  # fmt: skip

PatternDirectory = Annotated[str | None, Field(max_length=4000, pattern=r"^/[^\x00]*$")]


class RunPage(BaseModel):
    runs: list[Run]
    next_cursor: str | None
    last_event: int  # whoever follows the events behind it misses no change of these


class StartBody(Spec):
    """A pattern by name, and what it is asked to do: see GET /patterns for the schema."""

    pattern: Name
    spec: dict[str, Any]


class PauseBody(Spec):
    now: bool = False


class ResumeRun(Spec):
    """For a workflow that ended at its limit: how many cycles it may have now, in all."""

    cycles: Annotated[int | None, Field(ge=1, le=50)] = None


class CancelRun(Spec):
    reason: Annotated[Text | None, Field(max_length=10_000)] = None
    with_tasks: bool = True


class AnswerBody(Spec):
    answer: Annotated[Text, Field(max_length=MAX_PROMPT_BYTES)]
    token: Annotated[Text | None, Field(max_length=300)] = None


class FollowUpBody(Spec):
    """What is to be done about the work of a run: a message, the comments on its pull request that
    are new, or both."""

    comments: bool = False
    message: Annotated[Text | None, Field(max_length=MAX_PROMPT_BYTES)] = None
    shell: Shell | None = field(
        None,
        "the environment it was asked for in, sent by the client; by default the run's",
        hidden=True,
    )


class RunService:
    def __init__(self, parts: Parts, held: Callable[[], str | None] = lambda: None) -> None:
        """held says why no task starts now, None when nothing is in the way."""
        self._parts = parts
        self._db = parts.db
        self._callers = Callers(parts.db)
        self._held = held

    async def start(
        self, body: StartBody, caller: Caller, idempotency_key: str | None = None
    ) -> Run:
        """Start a run; it is stored when this returns."""
        parts = self._parts
        parent = caller.task_id
        key = own_key(parent, idempotency_key)
        asked = await with_list(self._db, body.pattern, body.spec, key)
        if parent is None:
            return await self.get(await start(parts, body.pattern, asked, key))
        # What an attempt asks for is a child of the attempt's task.
        own = await self._db.read(tasks.load_row, parent)
        if own["read_only"]:
            raise Forbidden("A task that only reports starts no run.", hint="Ask for a task.")
        valid = await validated(parts, body.pattern, {"directory": own["directory"], **asked})
        spec = await as_child(parts, parent, valid.model_dump(mode="json", exclude_unset=True))
        whose = Belonging(parent_task_id=parent)
        run_id = await start(parts, body.pattern, spec, key, whose, room_for(parts, parent))
        return await self.get(run_id)

    async def patterns(
        self, caller: Caller, directory: PatternDirectory = None
    ) -> list[PatternView]:
        """Every pattern; with a directory also those of its repository, and what is wrong there."""
        if caller.task_id is not None:
            directory = (await self._db.read(tasks.load_row, caller.task_id))["directory"]
        if directory:
            place = Path(require_directory(directory))
        else:
            place = None
        usable, problems = await list_patterns(self._parts, place)
        broken = {"name": "(broken)", "origin": "", "spec_schema": {}, "is_broken": True}
        return usable + [PatternView(**broken, summary=error.message) for error in problems]

    async def get_pattern(
        self, name: str, caller: Caller, directory: PatternDirectory = None
    ) -> PatternView:
        """One pattern, with the JSON schema of its specification."""
        known = await self.patterns(caller, directory)
        for pattern in known:
            if pattern.name == name:
                return pattern
        names = [pattern.name for pattern in known]
        hint = suggest_name(name, names) or f"There are {', '.join(names)}."
        raise NotFound(f"There is no pattern {name!r}.", hint=hint)

    async def get(self, run_id: str) -> Run:
        """One run, by its id or any unique end or beginning of it."""
        return await self._db.read(lambda c: self._shown(c, [runs.get(c, run_id)])[0])

    async def page(self, wanted: RunFilter, caller: Caller) -> RunPage:
        """Runs, newest first; next_cursor leads to the next page. Nested ones are inside others."""
        last = await self._db.read(events.load_last_seq)
        among = await self._callers.list_below(caller, "run")
        listed, cursor = await self.listed(of_repository(wanted), among)
        return RunPage(runs=listed, next_cursor=cursor, last_event=last)

    async def listed(
        self, wanted: RunFilter, among: list[str] | None, own: Conditions = ()
    ) -> tuple[list[Run], str | None]:
        """A page of runs for which own conditions hold too, and the next cursor."""

        def read(connection: Connection) -> tuple[list[Run], str | None]:
            found, cursor = runs.list_page(connection, wanted, among, own)
            return self._shown(connection, found), cursor

        found, cursor = await self._db.read(read)
        return [run.as_row() for run in found] if wanted.light else found, cursor

    async def rows(self, ids: list[str]) -> list[Run]:
        """Some runs as the rows of a list, as far as they exist."""
        if not ids:
            return []
        found = await self._db.read(lambda c: self._shown(c, runs.list_by_ids(c, ids)))
        return [run.as_row() for run in found]

    async def steps(self, run_id: str) -> list[Step]:
        """What the run did and does, in order."""
        return await self._db.read(lambda c: steps.list_steps(c, runs.resolve(c, run_id)))

    async def wait(self, run_id: str, timeout_s: WaitSeconds = 25) -> Run:
        """The run once it has ended, waits or is paused; after timeout_s as it is: then call
        again."""
        run_id = await self._id(run_id)
        await until(self._db, [run_id], timeout_s, partial(self._is_resting, run_id=run_id))
        return await self.get(run_id)

    async def pause(self, run_id: str, caller: Caller, body: PauseBody | None = None) -> Run:
        """Start nothing more; what is at work ends first, or with now goes back to its queue."""
        run_id = await self._id(run_id)
        now = body.now if body else False
        await control.pause(self._parts, run_id, stop_cause("paused", caller.task_id), now=now)
        return await self.get(run_id)

    async def resume(self, run_id: str, caller: Caller, body: ResumeRun | None = None) -> Run:
        """Let a paused run go on, or with more cycles a workflow that ended at its limit."""
        run = await self.get(run_id)
        parent = caller.task_id
        require_still_there(run.directory, run.repository)
        self._parts.require_trust(run.directory)
        if body is not None and body.cycles is not None:
            return await self._extend(run, parent, "cycles", body.cycles)

        def resume(connection: Connection, run_id: str) -> None:
            if parent is not None:
                family = runs.list_family(connection, run_id)
            else:
                family = []
            for row in runs.list_open(connection, family):
                require_undecided(connection, row["id"])
            control.resume(connection, run_id)

        return await self._apply_change(run.id, resume)

    async def _extend(self, run: Run, parent: str | None, limit: str, value: int) -> Run:
        """Raise a limit of a run that ended at it, and let it go on."""
        if parent is not None:
            raise Forbidden("Only a person raises the limits of a run.")
        if run.limit_reached != limit:
            hint = f"`kapelle status {run.id}` tells how far it is."
            raise Conflict(f"{run.id} has not ended at its limit of {limit}.", hint=hint)
        spec = {**run.spec, limit: value}
        await validated(self._parts, run.pattern, spec)
        return await self._apply_change(run.id, control.extend, limit, spec)

    async def cancel(self, run_id: str, caller: Caller, body: CancelRun | None = None) -> Run:
        """End a run with all that it started, or leave its tasks to go on."""
        run_id = await self._id(run_id)
        body = body or CancelRun()
        cause = stop_cause("cancelled", caller.task_id, body.reason)
        await control.cancel(self._parts, run_id, cause, with_tasks=body.with_tasks)
        return await self.get(run_id)

    async def answer(self, run_id: str, body: AnswerBody) -> Run:
        """Answer a question of a run that waits; it then goes on."""
        return await self._apply_change(run_id, _answer, body.token, body.answer)

    async def follow_up(
        self, run_id: str, body: FollowUpBody, idempotency_key: str | None = None
    ) -> Task:
        """Begin a task that goes on with what an ended run left: it starts from the run's branch
        and has its checks, environment and budget. Where the run has a pull request it gets one
        into that branch."""
        run = await self.get(run_id)
        message = body.message
        ids = None
        require_ended(run, "continue", force=True)
        require_still_there(run.directory, run.repository)
        if body.comments:
            # What it was told when it was asked for first is not new any more.
            known = await self._db.glance(tasks.find_by_key, idempotency_key or "")
            same = known is not None and known.workspace.base == run.workspace.branch
            if known is not None and same and known.prompt.startswith(message or ""):
                return known
            message, ids = await with_comments(self._parts, run, message)
        if not message or not message.strip():
            raise InvalidInput("message: say what is to be done, or ask for the comments.")
        spec = await validated(self._parts, run.pattern, run.spec)
        asked = {
            "prompt": f"{message}\n\n## What was asked for before\n{spec.subject or run.title}",
            "title": f"Follow-up: {run.title}"[:_LONGEST_TITLE],
            "checks": [check.model_dump(mode="json") for check in spec.final_checks],
            "base": run.workspace.branch,
            "deliver": "pr" if run.delivery and run.delivery.number else "branch",
            "timeout_s": spec.task_timeout_s,
            "env": self._parts.secrets.env(run.id),
            "shell": body.shell or await self._shell(run.id),
            **{name: getattr(spec, name) for name in _KEPT},
        }

        def heard(connection: Connection, _task_id: str) -> None:
            deliveries.update(connection, run.id, heard=ids)

        try:
            task = TaskSpec.model_validate(asked)
        except ValidationError as error:
            raise invalid_spec(error, "follow-up: ") from None
        also = heard if ids else None
        return await submit(self._parts, task, idempotency_key, also=also)

    async def _shell(self, run_id: str) -> Shell | None:
        """Return the environment that the run was asked for in, as far as it is known."""
        row = await self._db.read(runs.load_row, run_id)
        return self._parts.secrets.shell(row["shell"])

    async def pause_all(self, reason: str) -> None:
        """Pause whatever is under way; running tasks go back to their queue."""
        for run_id in await self._db.read(runs.list_running):
            with suppress(Conflict):  # it has just ended, or is paused with its parent
                cause = StopCause(Stopper.DAEMON, reason)
                await control.pause(self._parts, run_id, cause, now=True)

    async def _id(self, run_id: str) -> str:
        return await self._db.read(lambda c: runs.load_row(c, runs.resolve(c, run_id))["id"])

    async def _apply_change(self, text: str, change: Callable[..., None], *args: Any) -> Run:
        def apply(connection: Connection) -> str:
            run_id = runs.resolve(connection, text)
            change(connection, run_id, *args)
            return run_id

        return await self.get(await self._db.write(apply))

    def _is_resting(self, connection: Connection, run_id: str) -> bool:
        return is_at_rest(self._shown(connection, [runs.get(connection, run_id)])[0])

    def _shown(self, connection: Connection, found: list[Run]) -> list[Run]:
        """Runs with what they are at."""
        under_way = (run for run in found if run.status is RunStatus.RUNNING)
        silent = {run.id for run in under_way if run.reason is None}
        if silent:
            going = runs.list_open_tasks(connection, sorted(silent))
        else:
            going = []
        return [
            self._at_work(run, [task for task in going if task["run_id"] == run.id])
            if run.id in silent
            else run
            for run in found
        ]

    def _at_work(self, run: Run, going: list[Row]) -> Run:
        """A run with what its tasks are at, and whether all of them wait for a person."""
        asking = [task for task in going if task["waiting_for"] == "input"]
        if asking and len(asking) == len(going) and asking[0]["may_ask"]:
            task_id = asking[0]["id"]
            question = asking[0]["question"]
            reason = f'{task_id} asks: {question} (kapelle answer {task_id} "…")'
            found = {"waiting_for": "input", "reason": reason, "question": question}
            return run.model_copy(update=found)
        for check in self._parts.checking.get(run.id, ()):
            reason = check.words(datetime.now(UTC))
            return run.model_copy(update={"reason": reason, "checking": check})
        states = ", ".join(map(self._state, going))
        return run.model_copy(update={"reason": states or "between two tasks"})

    def _state(self, task: Row) -> str:
        """What a task of a run is at; of one that waits, why."""
        if task["status"] == TaskStatus.QUEUED:
            held = self._held()
        else:
            held = None
        why = held or task["reason"]
        return f"{task['title']} is {task['status']}" + (f": {why}" if why else "")


def _answer(connection: Connection, run_id: str, token: str | None, text: str) -> None:
    asker, _, place = (token or "").rpartition(":")
    if asker not in {"", run_id}:
        raise Conflict(f"{token} is the token of a question of another run.")
    if (run := runs.load_row(connection, run_id))["status"] in RUN_FINAL:
        raise Conflict(f"{run_id} is {run['status']} already.")
    answer(connection, f"{run_id}:{place}" if place else run_id, text)
