"""Pause, resume and cancel a run, and what its branches see of that and of its limits."""

import asyncio
import time
from contextlib import suppress
from typing import Any, NoReturn

from kapelle.domain.budget import (
    NOTHING,
    BudgetLimits,
    RemainingBudget,
    Spent,
    format_limit_reason,
    format_money_limit,
    subtract_usd,
)
from kapelle.domain.errors import Conflict, LimitReached, invalid_field
from kapelle.domain.ids import is_id
from kapelle.domain.states import (
    FINAL,
    RUN_FINAL,
    RunStatus,
    StopCause,
    Stopper,
    TaskStatus,
)
from kapelle.engine.parts import Parts
from kapelle.engine.tasks import actions
from kapelle.runner.process_dir import is_running
from kapelle.store import attempts, children, deliveries, events, runs, steps
from kapelle.store.database import Connection
from kapelle.store.rows import rows_of_work

_LOOK_S = 1.0
# Running agents tell what they used every few seconds.
_SPENT_S = 2.0
_LONG_S = 60.0
NO_LIMITS = BudgetLimits()
# Nobody performs these, and none of their tasks is at work: they are ended on the spot.
_AT_REST = frozenset({RunStatus.QUEUED, RunStatus.WAITING, RunStatus.PAUSED})
# The requests by which a run ends: with its tasks, or leaving them alone.
END = frozenset({"cancel", "abandon"})


class RunInterrupted(BaseException):
    """The run stops here for now; not an Exception, so that no pattern catches it by mistake."""


class RunPaused(RunInterrupted):
    """A person wants the run to pause."""


class RunSuspended(RunInterrupted):
    """The run waits for a person's answer."""


class RunCancelled(RunInterrupted):
    """A person wants the run to end."""


class RunSuperseded(RunInterrupted):
    """Another performer or a later execution has the run now: this one writes nothing more."""


# Of several, the one that goes before the others comes first.
IN_ORDER = (RunSuperseded, RunCancelled, RunPaused, RunSuspended, BaseException)


class Control:
    """Controls the branches of one run: stop requests, and the budget, children included.

    A branch asks before each step and whenever it wakes up. An execution with a claim on the run
    may write only while it holds that claim.
    """

    def __init__(
        self,
        parts: Parts,
        run_id: str,
        claim: runs.RunClaim | None = None,
        budget: BudgetLimits = NO_LIMITS,
    ) -> None:
        self._parts = parts
        self._run_id = run_id
        self._claim = claim
        self._budget = budget
        # Why branches have left off; the others go on beside them.
        self._paused = False
        self.asked: set[str] = set()  # at which places

    async def require(self, *, still: bool = False) -> None:
        """Raise unless the run may go on; a pause lets what is still at work end first."""
        await self._parts.db.glance(self.check, still=still)

    def check(self, connection: Connection, *, still: bool = False) -> None:
        """Raise unless the run may go on; inside a transaction, no request comes in between."""
        stop = self.require_claim(connection)["stop"]
        if stop in END:
            raise RunCancelled
        if stop == "pause":
            if not still:
                self._paused = True
                raise RunPaused
        elif self._paused:
            # It was resumed: the branch that left off is played again, with the rest.
            raise RunPaused
        elif self.asked and self.asked - steps.find_unanswered(connection, self._run_id):
            raise RunSuspended  # it was answered: likewise

    def require_claim(self, connection: Connection) -> runs.Row:
        """Return the run's row; raise RunSuperseded if this execution has lost its claim."""
        run = runs.load_row(connection, self._run_id)
        if self._claim is not None and not self._claim.holds(run):
            raise RunSuperseded
        return run

    async def suspend(self, position: str) -> NoReturn:
        """Leave off until the question at this place is answered."""
        await self.require()
        self.asked.add(position)
        raise RunSuspended

    async def left(self) -> RemainingBudget:
        return self._budget.left(await self._parts.db.glance(self._consumption))

    def _consumption(self, connection: Connection) -> Spent:
        """Return the consumption of the run, including agent calls that are only reserved."""
        if self._budget == NO_LIMITS:
            return NOTHING  # nobody asks how much it is
        spent = runs.get(connection, self._run_id).spent
        if self._budget.max_agent_calls is None:
            return spent
        return spent.model_copy(update={"agent_calls": runs.count_calls(connection, self._run_id)})

    def require_call(self, connection: Connection, *, one_more: bool = False) -> None:
        """Raise LimitReached if a task that was just stored, or one more to come, is too many.

        Counted in its own transaction, for branches may begin theirs at the same time, and for
        the runs around this one as well.
        """
        limit = runs.find_call_limit(connection, self._run_id, one_more=one_more)
        if limit is not None:
            raise LimitReached(limit)

    async def require_time_and_money(self) -> RemainingBudget:
        """Return the remaining budget; raise LimitReached if no time or no money remains."""
        left = self._budget.require(await self._parts.db.glance(self._consumption))
        if not await self._parts.db.glance(children.is_in_tree, self._run_id):
            return left
        # What else the task spends that asked for the run is spent of the same budget.
        of_root = self._parts.settings().children.budget_usd
        tightest = await self._parts.db.read(children.find_tightest_budget, self._run_id, of_root)
        if tightest is None:
            return left
        usd = subtract_usd(*tightest)
        if not usd:
            raise LimitReached(format_money_limit(tightest[0]))
        return left.model_copy(update={"usd": usd})

    async def _look_again_s(self) -> float:
        """How long one may wait before looking again."""
        left = (await self.left()).seconds
        if self._budget.max_usd is None:
            longest = _LONG_S
        else:
            longest = _SPENT_S
        if left is None:
            return longest
        return max(0.01, min(left, longest))

    async def for_child(self, child_id: str, *, may_ask: bool = True, patient: bool = True) -> None:
        """Return when a task or run inside this one has ended; when nothing is left of the budget,
        end it and raise LimitReached."""
        row = rows_of_work(child_id).load
        spent = False
        with self._parts.db.watch(child_id, self._run_id) as changed:
            while (child := await self._parts.db.glance(row, child_id))["status"] not in FINAL:
                await self.require(still=child["status"] == TaskStatus.RUNNING)
                if child["waiting_for"] == "input" and not may_ask:
                    reason = f"nobody is there to answer: {child['reason']}"
                    await end_child(self._parts, child_id, StopCause(Stopper.INPUT, reason))
                elif child["waiting_for"] == "rate_limit" and not patient:
                    reason = f"makes way for another agent: {child['reason']}"
                    await end_child(self._parts, child_id, StopCause(Stopper.RATE_LIMIT, reason))
                try:
                    if not spent:
                        await self.require_time_and_money()
                except LimitReached as error:
                    spent = True
                    limit = error.message
                    cause = StopCause(Stopper.LIMIT, format_limit_reason(limit), limit)
                    await end_child(self._parts, child_id, cause)
                await changed.wait(_LONG_S if spent else await self._look_again_s())
        # As its row tells also after a restart.
        if child["status"] == TaskStatus.CANCELLED and child["limit_reached"] is not None:
            raise LimitReached(child["limit_reached"])

    async def until(self, deadline: float) -> None:
        """Return at a time (seconds since 1970)."""
        with self._parts.db.watch(self._run_id) as changed:
            while (left := deadline - time.time()) > 0:
                await self.require()
                await self.require_time_and_money()
                await changed.wait(min(left, await self._look_again_s()))


async def cancel(parts: Parts, run_id: str, cause: StopCause, *, with_tasks: bool = True) -> None:
    """End a run and the runs inside it; its tasks are ended too, or left to go on."""
    stop = "cancel" if with_tasks else "abandon"
    stops, family = await parts.db.write(_cancel, run_id, cause, stop)
    for attempt_id, request in stops:
        parts.stop(attempt_id, request)
    for member in family:
        parts.stop(member, cause.reason)  # its checks


def _cancel(
    connection: Connection, run_id: str, cause: StopCause, stop: str
) -> tuple[list[tuple[str, str]], list[str]]:
    _require_open(connection, run_id)
    family = runs.list_family(connection, run_id)
    requests: list[actions.StopReason] = []
    if stop == "cancel":
        below = children.list_descendants(connection, run_id)  # what its tasks asked for, too
        family = [run_id, *(one.id for one in below if is_id("run", one.id))]
        for one in below:
            if is_id("task", one.id) and one.status not in FINAL:
                with suppress(Conflict):  # it ended with one that it depends on
                    requests.append(actions.cancel(connection, one.id, cause))
    # Children first: a parent that is told of a child's end must see its own request as well.
    for member in reversed(family):
        status = RunStatus(runs.load_row(connection, member)["status"])
        if status in _AT_REST:
            runs.change(connection, member, RunStatus.CANCELLED, cause.reason, **cause.marks)
        elif status not in RUN_FINAL:
            _request_stop(connection, member, stop, cause)
    return [request for request in requests if request is not None], family


def give_up(connection: Connection, run_id: str, reason: str) -> list[tuple[str, str]]:
    """End a run that cannot go on as failed, and all that it has started."""
    stops, _ = _cancel(connection, run_id, StopCause(Stopper.DAEMON, reason), "cancel")
    if runs.load_row(connection, run_id)["status"] not in RUN_FINAL:
        runs.change(connection, run_id, RunStatus.FAILED, reason)
    return stops


async def pause(parts: Parts, run_id: str, cause: StopCause, *, now: bool = False) -> None:
    """Have a run start nothing more; what is at work ends first, or now goes back to its queue."""
    for attempt_id, stop in await parts.db.write(_pause, run_id, cause, now):
        parts.stop(attempt_id, stop)


def _pause(
    connection: Connection, run_id: str, cause: StopCause, now: bool
) -> list[tuple[str, str]]:
    row = _require_open(connection, run_id)
    if row["status"] == RunStatus.PAUSED or (row["stop"] == "pause" and not now):
        raise Conflict(f"{run_id} is paused already.", hint=f"kapelle runs resume {run_id}")
    if row["stop"] in END:
        raise Conflict(f"{run_id} is being cancelled.")
    family = runs.list_family(connection, run_id)
    for member in family:
        status = RunStatus(runs.load_row(connection, member)["status"])
        if status in {RunStatus.QUEUED, RunStatus.WAITING}:
            runs.change(connection, member, RunStatus.PAUSED, cause.reason, **cause.marks)
        elif status is RunStatus.RUNNING:
            _request_stop(connection, member, "pause", cause)
    requests = [
        actions.requeue(connection, task["id"], cause.by)
        for task in (runs.list_open_tasks(connection, family) if now else ())
        # One that a person has cancelled does not come back.
        if task["stop"] is None
        and (task["status"] == TaskStatus.RUNNING or attempts.find_open(connection, task["id"]))
    ]
    return [request for request in requests if request is not None]


def resume(connection: Connection, run_id: str) -> None:
    """Let a paused run go on, with the runs inside it; one that was only to pause goes on too."""
    row = _require_open(connection, run_id)
    if row["status"] != RunStatus.PAUSED and row["stop"] != "pause":
        if row["status"] == RunStatus.WAITING:
            hint = f"kapelle answer {run_id}"
        else:
            hint = None
        raise Conflict(f"{run_id} is not paused; it is {row['status']}.", hint=hint)
    for member in runs.list_family(connection, run_id):
        found = runs.load_row(connection, member)
        if found["stop"] == "pause":
            runs.update(connection, member, stop=None, stopped_by=None, reason=None)
            events.append(connection, "run.resumed", member, title=found["title"])
        if found["status"] == RunStatus.PAUSED:
            runs.change(connection, member, RunStatus.QUEUED, "resumed")


def extend(connection: Connection, run_id: str, limit: str, spec: dict[str, Any]) -> None:
    """Let a run that failed at a limit go on with a specification in which that is raised.

    Its pattern is played again from the top: the steps that ended are told from the journal.
    """
    row = runs.load_row(connection, run_id)
    if row["status"] != RunStatus.FAILED or row["limit_reached"] != limit:
        hint = f"`kapelle status {run_id}` tells how it ended."
        raise Conflict(f"{run_id} has not ended at its limit of {limit}.", hint=hint)
    if row["parent_id"] is not None:
        raise Conflict(f"{run_id} is a part of {row['parent_id']}, which has gone on without it.")
    if row["archived_at"] is not None:
        raise Conflict(f"{run_id} is archived.", hint="Start a new run.")
    earlier = row["spec"].get(limit, row["progress"].get(limit, 0))
    if spec[limit] <= earlier:
        raise invalid_field(limit, f"{run_id} has had {earlier} already; give it more")
    afresh = {"ended_at": None, "result": None, "limit_reached": None}
    runs.change(connection, run_id, RunStatus.QUEUED, "resumed", spec=spec, **afresh)
    deliveries.withdraw_draft(connection, run_id)


def _request_stop(connection: Connection, run_id: str, stop: str, cause: StopCause) -> None:
    cause = cause.behind(runs.load_row(connection, run_id))
    runs.update(connection, run_id, stop=stop, reason=cause.reason, **cause.marks)
    if stop == "pause":
        kind = "run.pausing"
    else:
        kind = "run.stopping"
    events.append(connection, kind, run_id, reason=cause.reason, stopped_by=cause.by)


def _require_open(connection: Connection, run_id: str) -> runs.Row:
    row = runs.load_row(connection, run_id)
    if row["status"] in RUN_FINAL:
        raise Conflict(f"{run_id} is {row['status']} already.")
    return row


async def end_child(
    parts: Parts, child_id: str, cause: StopCause, *, with_tasks: bool = True
) -> None:
    """End a task or run that something else started, unless it has just ended by itself."""
    with suppress(Conflict):
        if is_id("run", child_id):
            await cancel(parts, child_id, cause, with_tasks=with_tasks)
        elif stop := await parts.db.write(actions.cancel, child_id, cause):
            parts.stop(*stop)


async def end_children(parts: Parts, run_id: str, reason: str, *, with_tasks: bool = True) -> None:
    """Return when no run inside this one is open, nor any of their tasks; what is, is ended."""
    with parts.db.watch(run_id) as changed:
        while True:
            left = await parts.db.read(_open_children, run_id, with_tasks)
            if not left:
                return
            for child in left:
                # Each is told once: telling is an event, which would wake this for ever.
                if child["stop"] not in END:
                    cause = StopCause(Stopper.PARENT, reason)
                    await end_child(parts, child["id"], cause, with_tasks=with_tasks)
            await changed.wait(_LOOK_S)


def _open_children(connection: Connection, run_id: str, with_tasks: bool) -> list[runs.Row]:
    family = runs.list_family(connection, run_id)
    if with_tasks:
        inside = runs.list_open_tasks(connection, family)
    else:
        inside = []
    return runs.list_open(connection, family[1:]) + inside


async def end_checks(parts: Parts, run_id: str, reason: str) -> None:
    """End the commands of a run that a daemon before this one started and nobody watches."""
    begun = (await parts.processes(run_id)).values()
    left = await asyncio.to_thread(lambda: [one for one in begun if is_running(one.directory)])
    await asyncio.gather(*(parts.end_process(process, reason) for process in left))
