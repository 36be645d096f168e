"""Watches a running agent: counts what it uses, warns, and ends one that reached a limit, stalls or
meets nothing but refusals; the reason is stored with the attempt first."""

import asyncio
import logging
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kapelle.agents.base import AgentAdapter
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import failure_of
from kapelle.agents.resets import reset_stated
from kapelle.agents.summary import OutputFold
from kapelle.domain.budget import left_usd
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.states import TaskStatus
from kapelle.domain.task import Activity, Usage
from kapelle.domain.text import excerpt
from kapelle.engine.locks import checkout_of
from kapelle.engine.output import SideLog, attempt_usage, highest_usage
from kapelle.engine.tasks.attempt import ActiveAttempt, ClaimLost
from kapelle.runner import process_tree
from kapelle.runner.output import LogReader, tail_text
from kapelle.store import accounts, attempts, children, tasks

# A runtime that only waits still wakes up now and then.
_IDLE_SHARE = 0.02
_LOOKS = 4


class Stall:
    """Looks at output and CPU time; both must stand still for the whole time."""

    def __init__(self, process_dir: Path, limit_s: float) -> None:
        self._process_dir = process_dir
        self._limit_s = limit_s
        self._bytes = -1
        self._cpu_s: float | None = None
        self._since = self._looked = time.monotonic()

    def silent_s(self) -> float:
        """For how long nothing has happened, once that is too long; 0 before."""
        now = time.monotonic()
        written = process_tree.output_bytes(self._process_dir)
        if written != self._bytes:
            self._bytes = written
            self._since = now
        if now - self._looked >= self._limit_s / _LOOKS:
            self._look_at_cpu(now)
        silent = now - self._since
        if silent >= self._limit_s:
            return silent
        return 0.0

    def reset(self) -> None:
        """Begin anew: it was not expected to do anything."""
        self._since = time.monotonic()

    def _look_at_cpu(self, now: float) -> None:
        used = process_tree.cpu_s(self._process_dir)
        before = self._cpu_s
        # The first look only tells where to count from; what cannot be told counts as work.
        most = _IDLE_SHARE * (now - self._looked)
        if used is None or (before is not None and used - before > most):
            self._since = now
        self._cpu_s = used
        self._looked = now


_PASSING = frozenset({FailureClass.RATE_LIMIT, FailureClass.OVERLOADED})
_PROGRESS = frozenset({"text", "tool_call", "tool_result", "plan", "usage", "result"})
# Errors without any work between them after which nothing else will come.
_CIRCLES = 10
_LONGEST = 500


class Refusal:
    """Notes since when nothing but refusals has come; any progress is the end of it."""

    def __init__(self) -> None:
        self._failure: Failure | None = None
        self._since = 0.0
        self._errors = 0
        self._last_error: AgentEvent | None = None

    def add(self, event: AgentEvent) -> None:
        if event.kind == "error":
            self._errors = self._errors + 1
            self._last_error = event
        elif event.kind in {"tool_call", "tool_result"}:
            self._errors = 0
        if event.kind in _PROGRESS:
            self._failure = None
        elif event.kind == "notice":
            found = failure_of(event)
            if found is not None and found.kind in _PASSING:
                if self._failure:
                    self._since = self._since
                else:
                    self._since = time.monotonic()
                self._failure = found

    def outlasts(self, patience_s: float) -> Failure | None:
        """The refusal, once it has lasted longer than the agent's own retries should."""
        if self._last_error is not None and self._errors >= _CIRCLES:
            said = f"{self._errors} errors without any work between them: {self._last_error.text}"
            found = failure_of(self._last_error) or Failure(FailureClass.TASK, "")
            return replace(found, evidence=said[:_LONGEST])
        if self._failure is None or time.monotonic() - self._since < patience_s:
            return None
        evidence = f"{self._failure.evidence}, for {patience_s:g} s and longer"
        return replace(self._failure, evidence=evidence)


@dataclass(frozen=True)
class AttemptLimits:
    """Turns of one attempt, and money of the whole task less what was spent before."""

    max_turns: int | None
    budget_usd: float | None
    spent_usd: float
    strict: bool  # whether somebody asked for them, rather than being capped for safety
    shared: bool = False  # whether others spend of the same budget

    @property
    def budget_left_usd(self) -> float | None:
        if self.budget_usd is None:
            return None
        return left_usd(self.budget_usd, self.spent_usd)

    def exceeded(self, usage: Usage) -> str | None:
        """The sentence about the limit that was reached; None while there is room."""
        if self.max_turns is not None and usage.turns > self.max_turns:
            return f"stopped at its limit of {self.max_turns} turns"
        spent = self.spent_usd + (usage.cost_usd or 0)
        if self.budget_usd is not None and not left_usd(self.budget_usd, spent):
            return f"stopped at its budget: ${spent:.4f} spent of ${self.budget_usd:g}"
        return None

    def near(self, usage: Usage, share: float) -> list[tuple[str, str]]:
        """The limits of which this share is used, or that cannot be kept, each with a sentence."""
        found = []
        if self.max_turns is not None and usage.turns >= share * self.max_turns:
            found.append(("turns", f"{usage.turns} of {self.max_turns} turns are used"))
        spent = self.spent_usd + (usage.cost_usd or 0)
        if self.budget_usd is not None and not left_usd(share * self.budget_usd, spent):
            found.append(("budget", f"${spent:.4f} of ${self.budget_usd:g} are spent"))
        if self.budget_usd is not None and usage.cost_usd is None and usage.output_tokens > 0:
            unknown = "the budget cannot be kept: the price of its model is unknown"
            found.append(("price", unknown))
        return found


async def limits_of(attempt: ActiveAttempt) -> AttemptLimits:
    task = attempt.task
    defaults = attempt.settings.tasks
    budget: float | None = task["budget_usd"] or defaults.budget_usd
    spent = 0.0
    # Others may spend of the same budget while it is at work.
    in_tree = await attempt.parts.db.glance(children.in_tree, attempt.task_id)
    if task["coordinate"] or in_tree:
        of_root = attempt.parts.settings().children.budget_usd or defaults.budget_usd
        read = partial(children.tightest, of_root=of_root, but_for=attempt.id)
        if found := await attempt.parts.db.read(read, attempt.task_id):
            budget, spent = found
    elif budget is not None:
        rows = await attempt.parts.db.read(attempts.of_task, attempt.task_id)
        spent = sum(row["cost_usd"] or 0.0 for row in rows if row["id"] != attempt.id)
    return AttemptLimits(
        max_turns=task["max_turns"] or defaults.max_turns,
        budget_usd=budget,
        spent_usd=spent,
        strict=task["max_turns"] is not None or budget is not None,
        shared=in_tree and budget is not None,
    )


_CAUSE = TypeAdapter(Failure)


def recorded_cause(attempt: Mapping[str, Any]) -> Failure | None:
    """Return why the daemon ended the agent of an attempt's row; None if it did not."""
    if attempt["ended_for"]:
        return _CAUSE.validate_python(attempt["ended_for"])
    return None


async def usage_before(attempt: ActiveAttempt) -> dict[str, float]:
    """What the session that an attempt goes on with had counted when it began."""
    session_id = attempt.row["started_from"]
    if session_id is None:
        return {}
    return await attempt.parts.db.read(attempts.session_usage, session_id)


_log = logging.getLogger("kapelle.watch")
_SHRUNK = "tampered: somebody else than its supervisor shortened out.log"
# Names of tools that change nothing.
_READS = re.compile(r"read|grep|glob|search|list|view|fetch|^ls$", re.IGNORECASE)
_STRICT_S = 0.05
_CALM_S = 1.0
_STORED_S = 5.0
_SHARED_S = 0.5
# So much of what it does is told to whoever looks on.
_TOLD = 200
_SHOWN = 20
_LONGEST_NAME = 60
_MOST_USED = 100


def _shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool is called with, as far as a line can say it."""
    plain = [(key, value) for key, value in given.items() if isinstance(value, str | int | float)]
    return {key: excerpt(v, _TOLD) if isinstance(v, str) else v for key, v in plain[:_SHOWN]}


@asynccontextmanager
async def watched(
    attempt: ActiveAttempt, agent: AgentAdapter | None, limits: AttemptLimits
) -> AsyncIterator[None]:
    """The agent, if it is known, is watched as long as this lasts."""
    if agent is None:
        yield
        return
    watch = AttemptWatch(attempt, agent, limits, await usage_before(attempt))
    with attempt.parts.activities.showing(watch):
        watching = asyncio.create_task(watch.keep())
        try:
            yield
            watch.ended.set()
            await watching
            await watch.look_back()
        finally:
            watching.cancel()


class AttemptWatch:
    """Watches one attempt until its end; begun again after a crash, it reads anew."""

    def __init__(
        self,
        attempt: ActiveAttempt,
        agent: AgentAdapter,
        limits: AttemptLimits,
        before: dict[str, float],
    ) -> None:
        process_dir = attempt.process_dir
        self._attempt = attempt
        self._agent = agent
        self._limits = limits
        self._before = before
        self._fold = OutputFold()
        self._out = LogReader(process_dir / "out.log")
        self._err = LogReader(process_dir / "err.log")
        self._side: LogReader | None = None
        self._side_log = SideLog.of_row(attempt.row)
        self._refusal = Refusal()
        self._stall = Stall(process_dir, attempt.settings.health.stall_s)
        self._warned: set[str] = {warning["what"] for warning in attempt.row["warnings"]}
        self._activities = attempt.parts.activities
        self.ended = asyncio.Event()  # when keep() returns, having looked for the last time
        self._last: AgentEvent | None = None
        self._usage: Usage | None = None
        self._most_printed = 0
        self._told = (0.0, -1)  # when its activity was, and how much it had printed then
        # What an agent has printed before this daemon watches it may be hours old.
        self._caught_up = not (process_dir / "out.log").exists()
        self._past = Counter[str]()  # calls on what somebody else held, by its path
        self._stored_at = time.monotonic()
        self._stored: Usage | None = None
        self._windows: dict[str, Any] = {}  # of its account, as told and not stored yet

    async def keep(self) -> None:
        """Look again and again; whatever goes wrong here, the attempt goes on."""
        own = self._agent.capabilities
        watched = not own.budget or not own.max_turns
        if self._limits.strict and watched:
            pause = _STRICT_S
        else:
            pause = _CALM_S
        looked_at = time.monotonic()
        while not await self._ended_within(min(pause, self._activities.pause_s)):
            try:
                # Whoever looks on is told sooner than limits are looked at, which costs more.
                await self._tell()
                if time.monotonic() - looked_at < pause:
                    continue
                looked_at = time.monotonic()
                if await self._look():
                    return
            except ClaimLost:
                return
            except Exception:
                _log.exception("watching %s failed and goes on", self._attempt.id)
                pause = max(pause, _CALM_S)

    async def _ended_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        return self.ended.is_set()

    async def _tell(self) -> None:
        """Tell whoever looks on what it does, if something was printed since the last time."""
        (told_at, before) = self._told
        now = time.monotonic()
        if now - told_at >= self._activities.pause_s and self._printed() != before:
            self._told = (now, self._printed())
            if self._agent.reads_whole_output:
                await asyncio.to_thread(self._count)
            self._activities.tell(self)

    def _printed(self) -> int:
        try:
            return os.stat(self._attempt.process_dir / "out.log").st_size
        except FileNotFoundError:
            return 0

    def _has_shrunk(self) -> bool:
        """Whether the log is shorter than it was before."""
        printed = self._printed()
        has_shrunk = printed < self._most_printed
        self._most_printed = max(printed, self._most_printed)
        return has_shrunk

    def activity(self) -> Activity:
        """What it does at this moment."""
        attempt = self._attempt
        last = self._last
        kind = last.kind if last else None
        text = self._fold.last_text
        if not self._agent.reads_whole_output:
            kind = "text"
            text = tail_text(attempt.process_dir / "out.log", _TOLD)
        if kind == "text":
            line = text.rstrip().rpartition("\n")[2]
        else:
            line = ""
        return Activity(
            at=datetime.now(UTC),
            task_id=attempt.task_id,
            attempt_id=attempt.id,
            run_id=attempt.task["run_id"],
            kind="text" if kind == "text" else "tool_call" if kind else None,
            name=excerpt(last.name, _TOLD) if last and kind != "text" else "",
            text=excerpt(line.strip(), _TOLD),
            data=_shown(last.data) if last and kind != "text" else {},
            usage=self._usage,
            output_bytes=self._printed(),
        )

    async def _look(self) -> bool:
        """One look; True when the agent was told to end."""
        settings = self._attempt.settings
        if self._has_shrunk():
            # Its supervisor only ever adds to the log. What was counted stands.
            return await self._end(Failure(FailureClass.TAMPERED, _SHRUNK))
        if self._agent.reads_whole_output:
            usage = await asyncio.to_thread(self._count)
        else:
            usage = None
        if usage is not None and (sentence := self._limits.exceeded(usage)):
            return await self._end(Failure(FailureClass.LIMIT, sentence))
        if refused := self._refusal.outlasts(settings.failures.patience_s):
            return await self._end(refused)
        silent_s = await asyncio.to_thread(self._stall.silent_s)
        if silent_s:
            task = await self._attempt.parts.db.glance(tasks.row, self._attempt.task_id)
            # A person, in a terminal or asked something, may think for as long as they like.
            if task["interactive"] or task["status"] == TaskStatus.WAITING:
                self._stall.reset()
                silent_s = 0.0
        if silent_s:
            sentence = f"no output and no work for {silent_s:.0f} s"
            await self._warn("stalled", sentence)
            if settings.health.on_stall != "warn":
                return await self._end(Failure(FailureClass.STALLED, f"stalled: {sentence}"))
        await self._warn_of_limits(usage)
        await self._store(usage)
        return False

    async def look_back(self) -> None:
        """Warn of what the last answer used, once the agent has ended."""
        if not self._agent.reads_whole_output:
            return
        try:
            usage = await asyncio.to_thread(self._count)
            if self._limits.strict:
                await self._warn_of_limits(usage)
            await self._store_windows()
            await self._warn_of_locks()
        except Exception:
            _log.exception("looking back at %s failed", self._attempt.id)

    def _count(self) -> Usage | None:
        self._read_side_log()
        for line in self._err.lines():
            for event in self._agent.parse_stderr(line.text):
                self._refusal.add(event)
        for line in self._out.lines():
            for event in self._agent.parse(line.text):
                self._fold.add(event)
                self._refusal.add(event)
                if event.kind in {"text", "tool_call"}:
                    self._last = event
                if event.kind == "tool_call" and self._caught_up:
                    self._note_locks(event)
                self._note_window(event)
        if not self._caught_up:
            # Refusals of then may be overcome long since, and limits have moved on.
            self._refusal = Refusal()
            self._caught_up = True
            self._windows = {}
        attempt = self._attempt
        model = attempt.row["model"]
        self._usage = attempt_usage(self._fold.summary(), self._before, model, attempt.settings)
        attempt.counted = highest_usage(attempt.counted, self._usage)
        return self._usage

    def _note_window(self, event: AgentEvent) -> None:
        """Keep what its provider has just told of a limit; a share that it did not is unknown."""
        if event.kind == "window" and event.name:
            used = event.data.get("used")
            resets_at = reset_stated(event.data.get("resets_at"))
            is_share = isinstance(used, int | float) and 0 <= used <= _MOST_USED
            self._windows[event.name[:_LONGEST_NAME]] = {
                "used": used if is_share else None,
                "resets_at": resets_at.isoformat() if resets_at else None,
                "told_at": datetime.now(UTC).isoformat(),
            }

    def _note_locks(self, event: AgentEvent) -> None:
        """Count a tool that would write what somebody else holds."""
        attempt = self._attempt
        if not attempt.shares_files or _READS.search(event.name or ""):
            return
        place = os.path.realpath(attempt.directory)
        held = attempt.parts.locks.in_way_of_tool(event.data, place, checkout_of(place), attempt.id)
        if held:
            self._past[held.path] += 1

    async def _warn_of_locks(self) -> None:
        refused = self._attempt.parts.locks.refusals
        past = [p for p, times in self._past.items() if times > refused[self._attempt.id, p]]
        if past:
            text = f"it wrote what somebody else held, and nothing kept it from: {', '.join(past)}"
            await self._warn("lock", text)

    def _read_side_log(self) -> None:
        if self._side is None and self._side_log is not None:
            path = self._side_log.find(self._fold.session_id)
            if path:
                self._side = LogReader(path, self._side_log.begin)
            else:
                self._side = None
        for line in self._side.lines() if self._side else ():
            for event in self._agent.parse(line.text):
                self._note_window(event)
                if event.kind in {"usage", "model", "session"}:
                    self._fold.add(event)
                elif event.kind == "notice":
                    # It is read out of step with the output, which alone tells of progress.
                    self._refusal.add(event)

    async def _warn_of_limits(self, usage: Usage | None) -> None:
        health = self._attempt.settings.health
        limit = self._attempt.timeout_s
        seconds = (datetime.now(UTC) - self._attempt.row["started_at"]).total_seconds()
        for what, text in self._limits.near(usage, health.warn_at) if usage else ():
            await self._warn(what, text)
        if limit is not None and seconds >= health.warn_at * limit:
            await self._warn("time", f"{seconds:.0f} of {limit:g} s are over")
        if seconds >= health.long_s:
            await self._warn("long", f"it has been running for {seconds:.0f} s")

    async def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            await self._attempt.warn(what, text)

    async def _store(self, usage: Usage | None) -> None:
        """Store what was used so far, and see what others have used, now and then."""
        now = time.monotonic()
        if now - self._stored_at < (_SHARED_S if self._limits.shared else _STORED_S):
            return
        self._stored_at = now
        if usage is not None and usage != self._stored:
            self._stored = usage
            await self._attempt.update(**usage.model_dump())
        self._limits = await limits_of(self._attempt)
        await self._store_windows()

    async def _store_windows(self) -> None:
        told = self._windows
        self._windows = {}
        if told and (account := self._attempt.row["account"]):
            await self._attempt.parts.db.write(accounts.told, account, told)

    async def _end(self, failure: Failure) -> bool:
        """Store why the agent is ended, then end it."""
        await self._attempt.update(ended_for=_CAUSE.dump_python(failure, mode="json"))
        self._attempt.parts.runner.stop(self._attempt.process_dir, failure.evidence)
        return True
