"""The runs of a daemon: which are under way, and each from beginning to end. Taken up again after a
crash it is performed from the top, and the journal tells its steps what came of them before."""

import asyncio
import logging
import os
import sysconfig
import traceback
import weakref
from collections.abc import Coroutine, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

import kapelle
from kapelle.domain.budget import BudgetLimits
from kapelle.domain.errors import (
    Conflict,
    KapelleError,
    LimitReached,
    NotTrusted,
    Unavailable,
    format_problems,
)
from kapelle.domain.states import RUN_FINAL, RunStatus, Stopper
from kapelle.engine.background import TRANSIENT_ERRORS, with_retries
from kapelle.engine.parts import Parts
from kapelle.engine.performers import MAX_PERFORMANCES, Performers
from kapelle.engine.runs.context import DurableContext
from kapelle.engine.runs.control import (
    END,
    Control,
    RunCancelled,
    RunPaused,
    RunSuperseded,
    RunSuspended,
    end_checks,
    end_children,
    give_up,
)
from kapelle.engine.runs.journal import Journal, PatternExited, play
from kapelle.engine.runs.patterns import find_pattern
from kapelle.engine.runs.workspace import restore_deleted, run_workspace
from kapelle.home import read_own
from kapelle.patterns.context import State, StoppedBy
from kapelle.patterns.results import Failed
from kapelle.patterns.spec import PatternSpec
from kapelle.runner.shim import files
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import deliveries, questions, runs, steps
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.runs")
_LOOK_S = 2.0
# How long a pattern may be outside its steps before it is called off, and go on after that.
_GRACE_S = 10.0
# How often the daemon may die in the same place of a pattern; more often while a step is under
# way, for then it is rarely the pattern's fault.
_DEATHS = 10
_DEATHS_IN_STEPS = 30
_DIED_TOO_OFTEN = (
    "the daemon died again and again while this pattern was played, always in the same place; "
    "mend the pattern, then resume it"
)
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_NOT_OWN = (str(Path(kapelle.__file__).parent) + os.sep, sysconfig.get_path("stdlib") + os.sep)


@dataclass(frozen=True)
class RunVerdict:
    """How an execution ended, or why it rests; asked are the places of what it waits to hear."""

    status: RunStatus
    reason: str | None = None
    result: Any = None
    asked: Set[str] = frozenset()
    # The field of the specification whose limit a failed run reached, if that can be raised.
    limit: str | None = None
    # Whether what a failed run left becomes a draft pull request, where one is to be made.
    unfinished: bool = False


class RunExecutor:
    """Takes up runs and performs them, each of their executions from the top; those inside others
    are never held back, for their parents wait."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._performers = Performers(self.perform, self._give_up)
        # Touched at every sweep: when a daemon of this home last looked after runs.
        self._alive = parts.home.runs / "alive"
        self._began_at = datetime.now(UTC)
        self._last_alive = None
        with suppress(OSError):
            self._last_alive = datetime.fromtimestamp(self._alive.stat().st_mtime, UTC)

    async def admit(self) -> None:
        """Take up queued runs in order as far as there is room."""
        db = self._parts.db
        room = self._parts.settings().limits.max_runs - await db.glance(runs.count_running_tops)
        ready = await db.glance(runs.list_queued, room)
        if ready:
            for execution in await db.write(_claim, ready, self._parts.performer):
                failpoint("run_after_take_up")
                self._performers.start(execution)

    async def sweep(self) -> None:
        """Find runs that should be under way and are not."""
        running = await self._parts.db.glance(runs.list_executions, self._parts.performer)
        await self._performers.restart(running)
        if running:
            with suppress(OSError):  # a full disk
                self._alive.touch(mode=0o600)

    async def close(self) -> None:
        await self._performers.close()

    async def _give_up(self, execution: str) -> None:
        run_id = execution.partition(".")[0]
        problem = f"an internal error ended it {MAX_PERFORMANCES} times; see {self._parts.home.log}"
        _log.error("%s: %s", run_id, problem)
        for attempt_id, stop in await self._parts.db.write(give_up, run_id, problem):
            self._parts.stop(attempt_id, stop)
        await end_checks(self._parts, run_id, problem)

    async def perform(self, execution: str) -> None:
        """Play the pattern to its end, or to where it has to wait for a person."""
        run_id, _, number = execution.partition(".")
        lock = self._locks.setdefault(run_id, asyncio.Lock())
        # A run that is resumed at once is executed anew before its last execution has returned.
        async with lock:
            with self._parts.register_performer(run_id):
                failpoint("run_begin")
                while not await with_retries(self._perform)(run_id, int(number)):
                    continue

    async def _perform(self, run_id: str, number: int) -> bool:
        """Play it from the top; False if it is to be played again at once."""
        claim = runs.RunClaim(self._parts.performer, number)
        run = await self._row(run_id)
        if not claim.holds(run):
            return True  # it was ended just before a crash, or there is a newer execution
        if run["active_since"] < self._began_at:
            await self._parts.db.write(runs.skip_downtime, run_id, self._last_alive)
        if await self._settle_run(run_id, claim, await self._verdict(run)):
            return True
        if (await self._row(run_id))["stop"] not in END:
            return False
        # Whatever else it came to, it came to it while its parts were being ended.
        return await self._settle_run(run_id, claim, await self._cancel_run(run_id, None))

    async def _settle_run(self, run_id: str, claim: runs.RunClaim, verdict: RunVerdict) -> bool:
        status = verdict.status
        if not claim.holds(await self._row(run_id)):
            return True  # what it has left belongs to another performer now
        if status in {RunStatus.COMPLETED, RunStatus.FAILED}:
            await end_children(self._parts, run_id, f"{run_id} has {status}")
        if status in {RunStatus.CANCELLED, RunStatus.FAILED}:
            await end_checks(self._parts, run_id, f"{run_id} was {status}")
        failpoint("run_before_end")
        has_settled = await self._parts.db.write(_settle, run_id, claim, verdict)
        failpoint("run_after_end")
        return has_settled

    async def _row(self, run_id: str) -> runs.Row:
        return await self._parts.db.glance(runs.load_row, run_id)

    async def _verdict(self, run: runs.Row) -> RunVerdict:
        try:
            return await self._prepare(run)
        except Failed as failure:
            return RunVerdict(RunStatus.FAILED, failure.reason, _json(failure.result))
        except Unavailable:
            raise
        except OSError as error:
            if error.errno in TRANSIENT_ERRORS:
                raise  # it is played again when there is room
            return RunVerdict(RunStatus.FAILED, _pattern_error(error))
        except NotTrusted as error:
            return RunVerdict(RunStatus.PAUSED, f"{error.with_hint}, then resume it.")
        except KapelleError as error:
            return RunVerdict(RunStatus.FAILED, error.with_hint)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # Most of them are a person's own code, which is none of the daemon's errors.
            _log.exception("the pattern of %s failed", run["id"], extra={"not_internal": True})
            return RunVerdict(RunStatus.FAILED, _pattern_error(error))

    async def _prepare(self, run: runs.Row) -> RunVerdict:
        """Play the pattern, if its worktree is there and the daemon survives it."""
        steps_by_position = await self._parts.db.read(steps.load_by_position, run["id"])
        try:
            self._parts.require_trust(run["directory"])
            await run_workspace(self._parts, run)
        except NotTrusted:
            raise
        except KapelleError as error:
            if isinstance(error, Unavailable) or not steps_by_position:
                raise
            # A repository that is away for a while must not cost the run.
            return RunVerdict(RunStatus.PAUSED, f"{error.message} When that is mended, resume it.")
        with _count_deaths(
            self._parts.home.runs / run["id"] / "playing", run, steps_by_position
        ) as deadly:
            dead = RunVerdict(RunStatus.PAUSED, _DIED_TOO_OFTEN)
            if deadly:
                return dead
            return await self._play(run, steps_by_position)

    async def _play(self, run: runs.Row, steps_by_position: dict[str, steps.Row]) -> RunVerdict:
        try:
            pattern = await find_pattern(self._parts, run["pattern"], Path(run["directory"]))
            secrets = self._parts.secrets
            secret_values = {"env": secrets.env(run["id"]), "shell": secrets.shell(run["shell"])}
            spec: PatternSpec = pattern.spec.model_validate({**run["spec"], **secret_values})
        except KapelleError as error:
            # A checkout that was switched to another branch for a while must not cost the run.
            reason = f"{error.message} When its pattern is there again, resume it."
            return RunVerdict(RunStatus.PAUSED, reason)
        except ValidationError as error:
            reason = f"The pattern's specification changed: {format_problems(error)}."
            return RunVerdict(RunStatus.PAUSED, f"{reason} When it fits, resume.")
        claim = runs.RunClaim(self._parts.performer, run["executions"])
        budget = BudgetLimits(
            max_seconds=spec.max_seconds,
            max_usd=spec.budget_usd,
            max_agent_calls=spec.max_agent_calls,
        )
        control = Control(self._parts, run["id"], claim, budget)
        journal = Journal(self._parts, run["id"], steps_by_position, control)
        context = DurableContext(self._parts, run, spec, journal, control)
        own = self._parts.standing(run["directory"])[0].prompts  # trusted, or it would not play
        roles = {role: own.get(f"{pattern.name}/{role}", "") for role in pattern.prompts}
        context.prompts = {role: text for role, text in roles.items() if text.strip()}
        try:
            result = await _watch_pattern(pattern.function(context, spec), journal, control)
        except (RunSuperseded, RunPaused):
            return RunVerdict(RunStatus.PAUSED)
        except RunSuspended:
            return RunVerdict(RunStatus.WAITING, asked=control.asked)
        except RunCancelled:
            return await self._cancel_run(run["id"], context.state)
        except LimitReached as error:
            if context.state is None:
                raise
            problem = await self._restore(run, context.state, "budget")
            result = context.state.result(_join_reasons(error.message, problem), "budget")
            reason = getattr(result, "reason", error.message)
            result = _json(result)
            unfinished = spec.delivers_unfinished
            return RunVerdict(RunStatus.FAILED, reason, result, unfinished=unfinished)
        except Failed as failure:
            result = failure.result
            if result is None and context.state is not None:
                result = context.state.result(failure.reason, "failure")
            return RunVerdict(
                RunStatus.FAILED,
                failure.reason,
                _json(result),
                limit=failure.limit,
                unfinished=spec.delivers_unfinished,
            )
        told = getattr(result, "reason", None)
        return RunVerdict(
            RunStatus.COMPLETED, told if isinstance(told, str) else None, _json(result)
        )

    async def _cancel_run(self, run_id: str, state: State | None) -> RunVerdict:
        """Nothing of it goes on, except the tasks that were to be left alone."""
        run = await self._row(run_id)
        with_tasks = run["stop"] != "abandon"
        reason = f"{run_id} was cancelled"
        await end_children(self._parts, run_id, reason, with_tasks=with_tasks)
        if state is None:
            return RunVerdict(RunStatus.CANCELLED, run["reason"])
        if with_tasks:
            problem = await self._restore(run, state, "cancelled")
        else:
            problem = None
        result = _json(state.result(_join_reasons("cancelled", problem), "cancelled"))
        return RunVerdict(
            RunStatus.CANCELLED, _join_reasons(run["reason"] or "cancelled", problem), result
        )

    async def _restore(self, run: runs.Row, state: State, stopped_by: StoppedBy) -> str | None:
        """Have the run's branch hold the commit that its pattern names; why it does not."""
        commit = state.restore(stopped_by)
        if commit is None:
            return None
        owner = run["workspace_owner"] or run["id"]
        try:
            await restore_deleted(self._parts, owner)
            await self._parts.workspaces.restore(owner, commit, stopped_by)
            await self._parts.db.write(runs.update, owner, workspace_commit=commit)
        except Unavailable:
            raise
        except KapelleError as error:
            _log.warning("the branch of %s stays where it is: %s", owner, error.message)
            return f"its branch could not be put back to {commit[:12]}: {error.message}"
        return None


async def _watch_pattern(
    pattern: Coroutine[Any, Any, Any], journal: Journal, control: Control
) -> Any:
    """The result of a pattern, which is called off if it heeds neither a request nor a limit by
    itself; raises what ends it, from within or from outside."""
    playing = asyncio.create_task(play(pattern))
    try:
        while not (await asyncio.wait({playing}, timeout=_LOOK_S))[0]:
            # In a step it sees requests and limits itself, and ends what it has begun.
            if journal.idle_s > _GRACE_S:
                await control.require()
                await control.require_time_and_money()
    except BaseException as error:
        journal.close(error)
        playing.cancel()
        await asyncio.wait({playing}, timeout=_GRACE_S)
        if not playing.done():
            _log.error("a pattern goes on though it was called off: %s", playing)
        raise
    if playing.cancelled():
        raise Conflict("The pattern's own code has cancelled it.")
    return playing.result()


@contextmanager
def _count_deaths(
    path: Path, run: runs.Row, steps_by_position: dict[str, steps.Row]
) -> Iterator[bool]:
    """Yield whether the daemon has died too often in the same place of a pattern.

    The count is in a file that exists only while the pattern plays: a daemon that finds the file
    knows that the previous one died meanwhile. The place is the progress of the pattern.
    """
    ended_count = sum(step["ended_at"] is not None for step in steps_by_position.values())
    place = f"{run['executions']}.{len(steps_by_position)}.{ended_count}"
    deaths = 0
    with suppress(OSError, ValueError):
        count, _, where = read_own(path).decode().partition(" ")
        if where == place:
            deaths = int(count) + 1
        else:
            deaths = 0
    with suppress(OSError):
        files.replace(str(path), f"{deaths} {place}".encode())
    try:
        yield deaths >= (_DEATHS_IN_STEPS if ended_count < len(steps_by_position) else _DEATHS)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _claim(connection: Connection, ready: list[str], performer: str) -> list[str]:
    executions = []
    for run_id in ready:
        run = runs.load_row(connection, run_id)
        if run["status"] == RunStatus.QUEUED:
            number = run["executions"] + 1
            claim = {"executions": number, "performer": performer}
            runs.change(connection, run_id, RunStatus.RUNNING, **claim)
            executions.append(f"{run_id}.{number}")
    return executions


def _settle(connection: Connection, run_id: str, claim: runs.RunClaim, verdict: RunVerdict) -> bool:
    """Write down how a run ended or why it rests; False if it is to go on."""
    row = runs.load_row(connection, run_id)
    status = verdict.status
    if not claim.holds(row):
        return True
    if row["stop"] in END and status is not RunStatus.CANCELLED:
        return False
    if status in RUN_FINAL:
        values = {"result": verdict.result, "limit_reached": verdict.limit}
        if status is RunStatus.CANCELLED:
            values["stopped_by"] = row["stopped_by"]
        runs.change(connection, run_id, status, verdict.reason, **values)
        has_work = row["workspace_commit"] not in {None, row["workspace_base_commit"]}
        if verdict.unfinished and has_work:
            deliveries.request_draft(connection, run_id)
    # It rests, unless what it rests for was done in this very moment.
    elif row["stop"] == "pause":
        values = {"stop": None, "stopped_by": row["stopped_by"]}
        runs.change(connection, run_id, RunStatus.PAUSED, row["reason"], **values)
    elif status is RunStatus.PAUSED and verdict.reason is not None:
        values = {"stopped_by": Stopper.DAEMON}
        runs.change(connection, run_id, RunStatus.PAUSED, verdict.reason, **values)
    elif status is RunStatus.WAITING and verdict.asked <= steps.find_unanswered(connection, run_id):
        text = " · ".join(one.text for one in questions.list_open(connection, [run_id]))
        runs.change(connection, run_id, RunStatus.WAITING, text, waiting_for="input")
    else:
        return False
    return True


def _join_reasons(reason: str, problem: str | None) -> str:
    if problem:
        return f"{reason.removesuffix('.')}; {problem}"
    return reason


def _json(value: Any) -> Any:
    """A pattern's result as it is kept."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return _ANYTHING.dump_python(value, mode="json", fallback=repr)


def _pattern_error(error: BaseException) -> str:
    """Return the reason for an error inside a pattern, with the place in its file."""
    if isinstance(error, PatternExited) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # An error inside Kapelle or Python is reported at the pattern's line that called it.
    own_frames = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN)]
    if own_frames:
        place = own_frames[-1]
    elif frames:
        place = frames[-1]
    else:
        place = None
    if place:
        where = f" ({place.filename}:{place.lineno})"
    else:
        where = ""
    return f"the pattern raised {type(error).__name__}: {error}{where}"
