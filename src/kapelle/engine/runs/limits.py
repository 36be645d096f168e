"""What a run may use, its children included: held where attempts begin and while it waits."""

import time
from dataclasses import dataclass

from kapelle.domain.errors import LimitReached
from kapelle.domain.ids import is_id
from kapelle.domain.states import FINAL, RunStatus, TaskStatus
from kapelle.engine.notify import Notifier
from kapelle.engine.parts import Parts
from kapelle.engine.runs.control import Control, end_child
from kapelle.patterns.results import Left
from kapelle.patterns.spec import PatternSpec
from kapelle.store import runs, steps, tasks
from kapelle.store.database import Connection

# Running agents tell what they used every few seconds.
_LOOK_S = 2.0
_LONG_S = 60.0


def too_many_calls(connection: Connection, run_id: str, *, one_more: bool) -> str | None:
    """Why a run, or one around it, may not have called that often; one_more counts one to come."""
    around: str | None = run_id
    while around is not None:
        run = runs.row(connection, around)
        limit = run["spec"].get("max_agent_calls")
        if limit is not None:
            if one_more:
                called = runs.attempts_made(connection, around) + 1
            else:
                called = runs.calls(connection, around)
            if called > limit:
                who = "It" if around == run_id else f"{around}, around it,"
                return f"{who} may call agents {limit} times, and has."
        around = run["parent_id"]
    return None


def refuse_attempt(connection: Connection, run_id: str, task_id: str) -> str | None:
    """Why a task of a run may have no further attempt; its run hears of that limit."""
    problem = too_many_calls(connection, run_id, one_more=True)
    return note_limit(connection, run_id, task_id, problem) if problem else None


def note_limit(connection: Connection, run_id: str, child_id: str, problem: str) -> str:
    """Write down which limit ends a task or run inside a run; returns the reason of that end."""
    steps.note_limit(connection, run_id, child_id, problem)
    return f"the run has nothing left: {problem}"


@dataclass(frozen=True)
class RunBudget:
    """The limits of one run against what it has spent."""

    parts: Parts
    run_id: str
    spec: PatternSpec

    async def left(self) -> Left:
        return await self.parts.db.glance(self._left)

    def _left(self, connection: Connection) -> Left:
        seconds, usd = self.spec.max_seconds, self.spec.budget_usd
        if seconds is not None or usd is not None:
            spent = runs.get(connection, self.run_id).spent
            seconds = None if seconds is None else max(0.0, seconds - spent.seconds)
            usd = None if usd is None else max(0.0, usd - (spent.cost_usd or 0.0))
        calls = self.spec.max_agent_calls
        if calls is not None:
            calls = max(0, calls - runs.calls(connection, self.run_id))
        return Left(seconds=seconds, usd=usd, agent_calls=calls)

    def require_calls(self, connection: Connection, *, one_more: bool = False) -> None:
        """Raise LimitReached if a task that was just stored is one too many; with one_more, if a
        run that was just stored could call nobody.

        Counted in their transaction, for branches may begin theirs at the same time, and for the
        runs around this one as well.
        """
        problem = too_many_calls(connection, self.run_id, one_more=one_more)
        if problem is not None:
            raise LimitReached(problem)

    async def require_time_and_money(self) -> Left:
        """What is left; LimitReached when that is nothing of what runs out while one waits."""
        left = await self.left()
        if left.seconds == 0:
            raise LimitReached(f"Its {self.spec.max_seconds:g} s are over.")
        if left.usd == 0:
            raise LimitReached(f"Its budget of ${self.spec.budget_usd:g} is spent.")
        return left

    async def patience_s(self) -> float:
        """How long one may wait before looking again."""
        left = (await self.left()).seconds
        longest = _LONG_S if self.spec.budget_usd is None else _LOOK_S
        return longest if left is None else max(0.01, min(left, longest))


@dataclass(frozen=True)
class Wait:
    """How one run waits: requests, limits and the clock are looked at meanwhile."""

    parts: Parts
    notifier: Notifier
    run_id: str
    budget: RunBudget
    control: Control

    async def for_child(self, child_id: str, *, may_ask: bool = True) -> None:
        """Return when a task or run inside this one has ended; when nothing is left, end it and
        raise LimitReached."""
        row = runs.row if is_id("run", child_id) else tasks.row
        spent = False
        with self.notifier.listen(child_id, self.run_id) as heard:
            while (child := await self.parts.db.glance(row, child_id))["status"] not in FINAL:
                await self.control.require(still=child["status"] == TaskStatus.RUNNING)
                if child["waiting_for"] == "input" and not may_ask:
                    reason = f"nobody is there to answer: {child['reason']}"
                    await end_child(self.parts, child_id, reason)
                if not spent and (problem := await self._overspent()):
                    spent = True
                    ids = (self.run_id, child_id)
                    reason = await self.parts.db.write(note_limit, *ids, problem)
                    await end_child(self.parts, child_id, reason)
                await heard.wait(_LONG_S if spent else await self.budget.patience_s())
        limit = await self.parts.db.glance(steps.limit, self.run_id, child_id)
        if limit is not None and child["status"] == RunStatus.CANCELLED:
            raise LimitReached(limit)

    async def until(self, deadline: float) -> None:
        """Return at a time (seconds since 1970)."""
        with self.notifier.listen(self.run_id) as heard:
            while (left := deadline - time.time()) > 0:
                await self.control.require()
                await self.budget.require_time_and_money()
                await heard.wait(min(left, await self.budget.patience_s()))

    async def _overspent(self) -> str | None:
        try:
            await self.budget.require_time_and_money()
        except LimitReached as error:
            return error.message
        return None
