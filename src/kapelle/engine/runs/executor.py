"""A run from beginning to end. Taken up again after a crash it is performed from the top, and
the journal tells its steps what came of them before."""

import asyncio
import logging
import os
import sysconfig
import traceback
import weakref
from collections.abc import Coroutine, Iterator, Set
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

import kapelle
from kapelle.domain.errors import Conflict, KapelleError, LimitReached, Unavailable, sentence
from kapelle.domain.states import RUN_FINAL, RunStatus
from kapelle.engine.parts import Parts
from kapelle.engine.retry import PASSING, retried
from kapelle.engine.runs.context import DurableContext
from kapelle.engine.runs.control import (
    Cancelled,
    Control,
    Paused,
    Superseded,
    Suspended,
    end_checks,
    end_leftovers,
)
from kapelle.engine.runs.journal import Exited, Journal
from kapelle.engine.runs.limits import RunBudget
from kapelle.engine.runs.queue import last_alive
from kapelle.engine.runs.start import Starter
from kapelle.engine.runs.workspace import put_back, run_workspace
from kapelle.patterns import registry
from kapelle.patterns.results import Failed
from kapelle.patterns.spec import PatternSpec
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import runs, steps
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.runs")
_LOOK_S = 2.0
# How long a pattern may be outside its steps before it is called off, and go on after that.
_GRACE_S = 10.0
# How often the daemon may die in the same place of a pattern; more often while a step is under
# way, for then it is rarely the pattern's fault.
_DEATHS, _DEATHS_IN_STEPS = 10, 30


class Execution:
    """Plays one pattern, and calls it off if it heeds neither a request nor a limit by itself."""

    def __init__(self, journal: Journal, control: Control, budget: RunBudget) -> None:
        self._journal = journal
        self._control = control
        self._budget = budget

    async def play(self, pattern: Coroutine[Any, Any, Any]) -> Any:
        """The result of the pattern; raises what ends it, from within or from outside."""
        playing = asyncio.create_task(self._journal.main(pattern))
        try:
            while not (await asyncio.wait({playing}, timeout=_LOOK_S))[0]:
                # In a step it sees requests and limits itself, and ends what it has begun.
                if self._journal.idle_s > _GRACE_S:
                    await self._require()
        except BaseException as error:
            await self._call_off(playing, error)
            raise
        if playing.cancelled():
            raise Conflict("The pattern's own code has cancelled it.")
        return playing.result()

    async def _require(self) -> None:
        await self._control.require()
        await self._budget.require_time_and_money()

    async def _call_off(self, playing: "asyncio.Task[Any]", error: BaseException) -> None:
        self._journal.close(error)
        playing.cancel()
        await asyncio.wait({playing}, timeout=_GRACE_S)
        if not playing.done():
            _log.error("a pattern goes on though it was called off: %s", playing)


@contextmanager
def count_deaths(path: Path, place: str, *, in_step: bool) -> Iterator[bool]:
    """Whether the daemon may be trusted to survive what follows, as far as a file tells.

    The file is there only while the pattern plays: whoever finds it comes after a daemon that
    died meanwhile. The place is how far the pattern was.
    """
    deaths = 0
    with suppress(OSError, ValueError):
        count, _, where = path.read_text(encoding="utf-8").partition(" ")
        deaths = int(count) + 1 if where == place else 0
    with suppress(OSError):
        path.write_text(f"{deaths} {place}", encoding="utf-8")
    try:
        yield deaths < (_DEATHS_IN_STEPS if in_step else _DEATHS)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)

_NOT_OWN = (str(Path(kapelle.__file__).parent) + os.sep, sysconfig.get_path("stdlib") + os.sep)
_DEADLY = (
    "the daemon died again and again while this pattern was played, always in the same place; "
    "mend the pattern, then resume it"
)

Verdict = tuple[RunStatus, str | None, dict[str, Any]]


class RunExecutor:
    """Performs runs, each of its executions from the top."""

    def __init__(self, parts: Parts, starter: Starter) -> None:
        self._parts = parts
        self._starter = starter
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._began_at, self._last_alive = datetime.now(UTC), last_alive(parts)

    async def perform(self, execution: str) -> None:
        """Play the pattern to its end, or to where it has to wait for a person."""
        run_id, _, number = execution.partition(".")
        lock = self._locks.setdefault(run_id, asyncio.Lock())
        # A run that is resumed at once is executed anew before its last execution has returned.
        async with lock:
            with self._parts.performing(run_id):
                failpoint("run_begin")
                while not await retried(self._perform)(run_id, int(number)):
                    continue

    async def _perform(self, run_id: str, number: int) -> bool:
        """Play it from the top; False if it is to be played again at once."""
        claim = runs.Claim(self._parts.performer, number)
        run = await self._row(run_id)
        if not claim.holds(run):
            return True  # it was ended just before a crash, or there is a newer execution
        if run["active_since"] < self._began_at:
            await self._parts.db.write(runs.leave_out_downtime, run_id, self._last_alive)
        verdict = await self._verdict(run)
        if await self._settled(run_id, claim, verdict):
            return True
        if (await self._row(run_id))["stop"] not in {"cancel", "abandon"}:
            return False
        # Whatever else it came to, it came to it while its parts were being ended.
        return await self._settled(run_id, claim, await self._cancelled(run_id))

    async def _settled(self, run_id: str, claim: runs.Claim, verdict: Verdict) -> bool:
        status, reason, values = verdict
        if not claim.holds(await self._row(run_id)):
            return True  # what it has left belongs to another performer now
        if status in {RunStatus.COMPLETED, RunStatus.FAILED}:
            await end_leftovers(self._parts, run_id, f"{run_id} has {status}")
        if status in {RunStatus.CANCELLED, RunStatus.FAILED}:
            await end_checks(self._parts, run_id, f"{run_id} was {status}")
        failpoint("run_before_end")
        settled = await self._parts.db.write(_settle, run_id, claim, status, reason, values)
        failpoint("run_after_end")
        return settled

    async def _row(self, run_id: str) -> runs.Row:
        return await self._parts.db.glance(runs.row, run_id)

    async def _verdict(self, run: runs.Row) -> Verdict:
        try:
            return await self._play(run)
        except (Superseded, Paused):
            return RunStatus.PAUSED, None, {}
        except Suspended as stop:
            return RunStatus.WAITING, None, {"asked": stop.asked}
        except Cancelled as stop:
            return await self._cancelled(run["id"], stop)

    async def _play(self, run: runs.Row) -> Verdict:
        try:
            known = await self._parts.db.read(steps.of_run, run["id"])
            try:
                await run_workspace(self._parts, run)
            except KapelleError as error:
                if isinstance(error, Unavailable) or not known:
                    raise
                # A repository that is away for a while must not cost the run.
                reason = f"{error.message} When that is mended, resume it."
                return RunStatus.PAUSED, reason, {}
            mark = self._parts.home.runs / run["id"] / "playing"
            place, in_step = _place(run, known)
            with count_deaths(mark, place, in_step=in_step) as trusted:
                if not trusted:
                    return RunStatus.PAUSED, _DEADLY, {}
                return await self._play_pattern(run, known)
        except Failed as failure:
            return RunStatus.FAILED, failure.reason, {"result": as_json(failure.result)}
        except Unavailable:
            raise
        except OSError as error:
            if error.errno in PASSING:
                raise  # it is played again when there is room
            return RunStatus.FAILED, _mistake(error), {}
        except KapelleError as error:
            return RunStatus.FAILED, error.with_hint, {}
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            _log.exception("the pattern of %s failed", run["id"])
            return RunStatus.FAILED, _mistake(error), {}

    async def _play_pattern(self, run: runs.Row, known: dict[str, steps.Row]) -> Verdict:
        try:
            pattern = registry.get(run["pattern"], self._parts.home, Path(run["directory"]))
        except KapelleError as error:
            # A checkout that was switched to another branch for a while must not cost the run.
            reason = f"{error.message} When its pattern is there again, resume it."
            return RunStatus.PAUSED, reason, {}
        env = self._parts.secrets.env(run["id"])
        try:
            spec: PatternSpec = pattern.spec.model_validate({**run["spec"], "env": env})
        except ValidationError as error:
            reason = (
                f"The pattern's specification changed: {sentence(error)}. When it fits, resume."
            )
            return RunStatus.PAUSED, reason, {}
        claim = runs.Claim(self._parts.performer, run["executions"])
        control = Control(self._parts, run["id"], claim)
        journal = Journal(self._parts, run["id"], known, control)
        budget = RunBudget(self._parts, run["id"], spec)
        context = DurableContext(self._parts, self._starter, run, spec, journal, control, budget)
        execution = Execution(journal, control, budget)
        try:
            result = await execution.play(pattern.function(context, spec))
        except Cancelled as stop:
            stop.state = context.kept
            raise
        except LimitReached as error:
            if context.kept is None:
                raise
            await self._restore(run, context.kept.restore("budget"), "budget")
            result = context.kept.result(error.message, "budget")
            reason = getattr(result, "reason", error.message)
            return RunStatus.FAILED, reason, {"result": as_json(result)}
        except Failed as failure:
            if failure.result is None and context.kept is not None:
                failure.result = context.kept.result(failure.reason, "failure")
            raise
        told = getattr(result, "reason", None)
        verdict = told if isinstance(told, str) else None
        return RunStatus.COMPLETED, verdict, {"result": as_json(result)}

    async def _cancelled(self, run_id: str, stop: Cancelled | None = None) -> Verdict:
        """Nothing of it goes on, except the tasks that were to be left alone."""
        run = await self._row(run_id)
        with_tasks = run["stop"] != "abandon"
        reason = f"{run_id} was cancelled"
        await end_leftovers(self._parts, run_id, reason, with_tasks=with_tasks)
        result = None
        if stop is not None and stop.state is not None:
            if with_tasks:
                await self._restore(run, stop.state.restore("cancelled"), "cancelled")
            result = as_json(stop.state.result("cancelled", "cancelled"))
        return RunStatus.CANCELLED, run["reason"], {"result": result}

    async def _restore(self, run: runs.Row, commit: str | None, name: str) -> None:
        """Have the run's branch hold a commit that its pattern named, if it named one."""
        if commit is None:
            return
        owner = run["workspace_owner"] or run["id"]
        try:
            await put_back(self._parts, owner, commit, name)
        except Unavailable:
            raise
        except KapelleError as error:
            _log.warning("the branch of %s stays where it is: %s", owner, error.message)


def _place(run: runs.Row, known: dict[str, steps.Row]) -> tuple[str, bool]:
    """How far a pattern has come, and whether a step is under way."""
    ended = sum(step["ended_at"] is not None for step in known.values())
    return f"{run['executions']}.{len(known)}.{ended}", ended < len(known)


def _settle(
    connection: Connection,
    run_id: str,
    claim: runs.Claim,
    status: RunStatus,
    reason: str | None,
    values: dict[str, Any],
) -> bool:
    """Write down how a run ended or why it rests; False if it is to go on."""
    row = runs.row(connection, run_id)
    if not claim.holds(row):
        return True
    if row["stop"] in {"cancel", "abandon"} and status is not RunStatus.CANCELLED:
        return False
    if status in RUN_FINAL:
        runs.change(connection, run_id, status, reason, **values)
        return True
    return _rest(connection, row, status, reason, values.get("asked", set()))


def _rest(
    connection: Connection, row: runs.Row, status: RunStatus, reason: str | None, asked: Set[str]
) -> bool:
    """Put a run to rest, unless what it rests for was done in this very moment."""
    run_id = row["id"]
    if row["stop"] == "pause":
        runs.change(connection, run_id, RunStatus.PAUSED, row["reason"], stop=None)
    elif status is RunStatus.PAUSED and reason is not None:
        runs.change(connection, run_id, RunStatus.PAUSED, reason)
    elif status is RunStatus.WAITING and asked <= steps.unanswered(connection, run_id):
        questions = steps.questions(connection, run_id)
        text = " · ".join(question.text for question in questions)
        values = {"waiting_for": "input"}
        runs.change(connection, run_id, RunStatus.WAITING, text, **values)
    else:
        return False
    return True


def as_json(value: Any) -> Any:
    """A pattern's result as it is kept."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return _ANYTHING.dump_python(value, mode="json", fallback=repr)


def _mistake(error: BaseException) -> str:
    """What went wrong inside a pattern, with the place in its file."""
    if isinstance(error, Exited) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # What happens inside Kapelle or Python was asked for in the last line before that.
    asked = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN)]
    place = asked[-1] if asked else frames[-1] if frames else None
    where = f" ({place.filename}:{place.lineno})" if place else ""
    return f"the pattern raised {type(error).__name__}: {error}{where}"
