"""Watch a running agent: count its usage, warn, and end it at a limit, a stall or endless refusals.

The reason is stored with the attempt before the agent is ended.
"""

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
from typing import Any, Literal

from pydantic import TypeAdapter

from kapelle.agents.base import AgentAdapter
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify_event
from kapelle.agents.resets import parse_reset_time
from kapelle.agents.summary import OutputFold
from kapelle.domain.budget import subtract_usd
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.states import TaskStatus
from kapelle.domain.task import Activity, Usage
from kapelle.domain.text import excerpt
from kapelle.engine.locks import checkout_of
from kapelle.engine.processes.output import SideLog, attempt_usage, highest_usage
from kapelle.engine.tasks.attempt import ActiveAttempt, ClaimLost
from kapelle.runner import process_tree
from kapelle.runner.output import LogReader, read_tail
from kapelle.store import accounts, attempts, children, tasks

# A runtime that only waits still uses a little CPU time.
_IDLE_SHARE = 0.02
_LOOKS = 4


class Stall:
    """Detects a stall: neither output nor CPU time for the whole limit."""

    def __init__(self, process_dir: Path, limit_s: float) -> None:
        self._process_dir = process_dir
        self._limit_s = limit_s
        self._bytes = -1
        self._cpu_s: float | None = None
        self._since = self._looked = time.monotonic()

    def silent_s(self) -> float:
        """Return the seconds without any progress, once they exceed the limit; 0 before."""
        now = time.monotonic()
        size = process_tree.count_output_bytes(self._process_dir)
        if size != self._bytes:
            self._bytes = size
            self._since = now
        if now - self._looked >= self._limit_s / _LOOKS:
            self._look_at_cpu(now)
        silent = now - self._since
        if silent >= self._limit_s:
            return silent
        return 0.0

    def reset(self) -> None:
        """Start again after a time in which no progress was expected."""
        self._since = time.monotonic()

    def _look_at_cpu(self, now: float) -> None:
        cpu_s = process_tree.read_cpu_seconds(self._process_dir)
        before = self._cpu_s
        # The first look only sets the start. An unknown CPU time counts as work.
        most = _IDLE_SHARE * (now - self._looked)
        if cpu_s is None or (before is not None and cpu_s - before > most):
            self._since = now
        self._cpu_s = cpu_s
        self._looked = now


_TRANSIENT = frozenset({FailureClass.RATE_LIMIT, FailureClass.OVERLOADED})
_PROGRESS = frozenset({"text", "tool_call", "tool_result", "plan", "usage", "result"})
# Number of errors in a row, without any work between them, after which the agent is ended.
_CIRCLES = 10
_LONGEST = 500


class Refusal:
    """Tracks since when the agent has met nothing but refusals; any progress ends that."""

    def __init__(self) -> None:
        self._failure: Failure | None = None
        self._since = 0.0
        self._errors = 0
        self._last_error: AgentEvent | None = None

    def add(self, event: AgentEvent) -> None:
        """Process one event of the agent."""
        if event.kind == "error":
            self._errors = self._errors + 1
            self._last_error = event
        elif event.kind in {"tool_call", "tool_result"}:
            self._errors = 0
        if event.kind in _PROGRESS:
            self._failure = None
        elif event.kind == "notice":
            failure = classify_event(event)
            if failure is not None and failure.kind in _TRANSIENT:
                if not self._failure:
                    self._since = time.monotonic()
                self._failure = failure

    def outlasts(self, patience_s: float) -> Failure | None:
        """Return the refusal, once it has lasted longer than the agent's own retries should."""
        if self._last_error is not None and self._errors >= _CIRCLES:
            evidence = (
                f"{self._errors} errors without any work between them: {self._last_error.text}"
            )
            failure = classify_event(self._last_error) or Failure(FailureClass.TASK, "")
            return replace(failure, evidence=evidence[:_LONGEST])
        if self._failure is None or time.monotonic() - self._since < patience_s:
            return None
        evidence = f"{self._failure.evidence}, for {patience_s:g} s and longer"
        return replace(self._failure, evidence=evidence)


@dataclass(frozen=True)
class AttemptLimits:
    """Limits of the turns of one attempt, and of the money of the whole task.

    spent_usd is the money that other attempts have used.
    """

    max_turns: int | None
    budget_usd: float | None
    spent_usd: float
    is_strict: bool  # set for this work; otherwise only a general safety limit
    is_shared: bool = False  # others use the same budget

    @property
    def budget_left_usd(self) -> float | None:
        if self.budget_usd is None:
            return None
        return subtract_usd(self.budget_usd, self.spent_usd)

    def find_exceeded(self, usage: Usage) -> str | None:
        """Return a sentence about the limit that was reached; None while there is room."""
        if self.max_turns is not None and usage.turns > self.max_turns:
            return f"stopped at its limit of {self.max_turns} turns"
        total_usd = self.spent_usd + (usage.cost_usd or 0)
        if self.budget_usd is not None and not subtract_usd(self.budget_usd, total_usd):
            return f"stopped at its budget: ${total_usd:.4f} spent of ${self.budget_usd:g}"
        return None

    def list_warnings(self, usage: Usage, share: float) -> list[tuple[str, str]]:
        """Return the limits that are used up to this share or cannot be kept, with sentences."""
        warnings = []
        if self.max_turns is not None and usage.turns >= share * self.max_turns:
            warnings.append(("turns", f"{usage.turns} of {self.max_turns} turns are used"))
        total_usd = self.spent_usd + (usage.cost_usd or 0)
        if self.budget_usd is not None and not subtract_usd(share * self.budget_usd, total_usd):
            warnings.append(("budget", f"${total_usd:.4f} of ${self.budget_usd:g} are spent"))
        if self.budget_usd is not None and usage.cost_usd is None and usage.output_tokens > 0:
            unknown = "the budget cannot be kept: the price of its model is unknown"
            warnings.append(("price", unknown))
        return warnings


async def limits_of(attempt: ActiveAttempt) -> AttemptLimits:
    """Return the limits of an attempt, by its task, its settings and its parents."""
    task = attempt.task
    defaults = attempt.settings.tasks
    budget_usd: float | None = task["budget_usd"] or defaults.budget_usd
    spent_usd = 0.0
    # Related tasks may use the same budget during the attempt.
    in_tree = await attempt.parts.db.glance(children.is_in_tree, attempt.task_id)
    # The tightest budget of all parents applies.
    if task["coordinate"] or in_tree:
        of_root = attempt.parts.settings().children.budget_usd or defaults.budget_usd
        read = partial(
            children.find_tightest_budget, default_usd=of_root, except_attempt=attempt.id
        )
        if tightest := await attempt.parts.db.read(read, attempt.task_id):
            budget_usd, spent_usd = tightest
    elif budget_usd is not None:
        rows = await attempt.parts.db.read(attempts.list_rows, attempt.task_id)
        spent_usd = sum(row["cost_usd"] or 0.0 for row in rows if row["id"] != attempt.id)
    return AttemptLimits(
        max_turns=task["max_turns"] or defaults.max_turns,
        budget_usd=budget_usd,
        spent_usd=spent_usd,
        is_strict=task["max_turns"] is not None or budget_usd is not None,
        is_shared=in_tree and budget_usd is not None,
    )


_CAUSE = TypeAdapter(Failure)


def recorded_cause(attempt: Mapping[str, Any]) -> Failure | None:
    """Return why the daemon ended the agent of an attempt; None if it did not."""
    if attempt["ended_for"]:
        return _CAUSE.validate_python(attempt["ended_for"])
    return None


async def usage_before(attempt: ActiveAttempt) -> dict[str, float]:
    """Return the counters of a resumed session at the start of the attempt."""
    session_id = attempt.row["started_from"]
    if session_id is None:
        return {}
    return await attempt.parts.db.read(attempts.load_session_usage, session_id)


_log = logging.getLogger("kapelle.watch")
_SHRUNK = "tampered: out.log was shortened by somebody other than its supervisor"
# Names of tools that change nothing.
_READS = re.compile(r"read|grep|glob|search|list|view|fetch|^ls$", re.IGNORECASE)
_STRICT_S = 0.05
_CALM_S = 1.0
_STORED_S = 5.0
_SHARED_S = 0.5
# Limits of the texts and the arguments in a live activity.
_MOST_LETTERS = 200
_MOST_ARGUMENTS = 20
_LONGEST_NAME = 60
_MOST_USED = 100


def _select_arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain arguments of a tool call, shortened."""
    arguments: dict[str, Any] = {}
    for key, value in data.items():
        if len(arguments) == _MOST_ARGUMENTS:
            break
        if isinstance(value, str):
            arguments[key] = excerpt(value, _MOST_LETTERS)
        elif isinstance(value, int | float):
            arguments[key] = value
    return arguments


@asynccontextmanager
async def watch_agent(
    attempt: ActiveAttempt, agent: AgentAdapter | None, limits: AttemptLimits
) -> AsyncIterator[None]:
    """Watch an agent inside this context; an unknown agent is not watched."""
    if agent is None:
        yield
        return
    watch = AttemptWatch(attempt, agent, limits, await usage_before(attempt))
    with attempt.parts.activities.register(watch):
        watching = asyncio.create_task(watch.keep())
        try:
            yield
            watch.ended.set()
            await watching
            await watch.look_back()
        finally:
            watching.cancel()


class AttemptWatch:
    """Watches one attempt until its end. Started again after a crash, it reads from the start."""

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
        self.ended = asyncio.Event()  # set when the agent has ended, so that keep() returns
        self._last: AgentEvent | None = None
        self._usage: Usage | None = None
        self._largest_size = 0
        self._last_activity = (0.0, -1)  # moment and output size of the last activity
        # Output from before this watch may be hours old.
        self._caught_up = not (process_dir / "out.log").exists()
        self._lock_conflicts = Counter[str]()  # writes to paths that others held, by path
        self._stored_at = time.monotonic()
        self._stored: Usage | None = None
        self._windows: dict[str, Any] = {}  # limits that the provider reported, not stored yet

    async def keep(self) -> None:
        """Look again and again until the end; no error here may end the attempt."""
        own = self._agent.capabilities
        counts_here = not own.budget or not own.max_turns
        if self._limits.is_strict and counts_here:
            pause = _STRICT_S
        else:
            pause = _CALM_S
        looked_at = time.monotonic()
        while not await self._ended_within(min(pause, self._activities.pause_s)):
            try:
                # Activities are published more often than limits are checked, which costs more.
                await self._publish_activity()
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

    async def _publish_activity(self) -> None:
        """Publish the activity, if there is new output."""
        (published_at, size) = self._last_activity
        now = time.monotonic()
        if now - published_at >= self._activities.pause_s and self._output_size() != size:
            self._last_activity = (now, self._output_size())
            if self._agent.reads_whole_output:
                await asyncio.to_thread(self._count)
            self._activities.publish(self)

    def _output_size(self) -> int:
        try:
            return os.stat(self._attempt.process_dir / "out.log").st_size
        except FileNotFoundError:
            return 0

    def _has_shrunk(self) -> bool:
        """Return whether the log is shorter than before."""
        size = self._output_size()
        has_shrunk = size < self._largest_size
        self._largest_size = max(size, self._largest_size)
        return has_shrunk

    def activity(self) -> Activity:
        """Return the present activity of the agent."""
        attempt = self._attempt
        last = self._last
        kind = last.kind if last else None
        text = self._fold.last_text
        if not self._agent.reads_whole_output:
            kind = "text"
            text = read_tail(attempt.process_dir / "out.log", _MOST_LETTERS)
        line = ""
        name = ""
        arguments: dict[str, Any] = {}
        shown_kind: Literal["text", "tool_call"] | None = None
        if kind == "text":
            shown_kind = "text"
            line = text.rstrip().rpartition("\n")[2]
        elif last:
            shown_kind = "tool_call"
            name = excerpt(last.name, _MOST_LETTERS)
            arguments = _select_arguments(last.data)
        return Activity(
            at=datetime.now(UTC),
            task_id=attempt.task_id,
            attempt_id=attempt.id,
            run_id=attempt.task["run_id"],
            kind=shown_kind,
            name=name,
            text=excerpt(line.strip(), _MOST_LETTERS),
            data=arguments,
            usage=self._usage,
            output_bytes=self._output_size(),
        )

    async def _look(self) -> bool:
        """Check everything once; return True if the agent was ended."""
        settings = self._attempt.settings
        if self._has_shrunk():
            # The supervisor only appends to the log. The usage counted so far remains.
            return await self._end(Failure(FailureClass.TAMPERED, _SHRUNK))
        usage = None
        if self._agent.reads_whole_output:
            usage = await asyncio.to_thread(self._count)
        if usage is not None and (sentence := self._limits.find_exceeded(usage)):
            return await self._end(Failure(FailureClass.LIMIT, sentence))
        if refusal := self._refusal.outlasts(settings.failures.patience_s):
            return await self._end(refusal)
        silent_s = await asyncio.to_thread(self._stall.silent_s)
        if silent_s:
            task = await self._attempt.parts.db.glance(tasks.load_row, self._attempt.task_id)
            # A person in a terminal, or with a question, may take any time.
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
        """Warn of limits and locks once more, after the agent has ended."""
        if not self._agent.reads_whole_output:
            return
        try:
            usage = await asyncio.to_thread(self._count)
            if self._limits.is_strict:
                await self._warn_of_limits(usage)
            await self._store_windows()
            await self._warn_of_locks()
        except Exception:
            _log.exception("looking back at %s failed", self._attempt.id)

    def _count(self) -> Usage | None:
        """Read the new output, and return the usage so far. Blocks."""
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
            # Old refusals may have been overcome, and old limits may have changed.
            self._refusal = Refusal()
            self._caught_up = True
            self._windows = {}
        attempt = self._attempt
        model = attempt.row["model"]
        self._usage = attempt_usage(self._fold.summary(), self._before, model, attempt.settings)
        attempt.counted_usage = highest_usage(attempt.counted_usage, self._usage)
        return self._usage

    def _note_window(self, event: AgentEvent) -> None:
        """Keep a limit that the provider has just reported; a missing share is unknown."""
        if event.kind == "window" and event.name:
            share = event.data.get("used")
            resets_at = parse_reset_time(event.data.get("resets_at"))
            is_share = isinstance(share, int | float) and 0 <= share <= _MOST_USED
            self._windows[event.name[:_LONGEST_NAME]] = {
                "used": share if is_share else None,
                "resets_at": resets_at.isoformat() if resets_at else None,
                "told_at": datetime.now(UTC).isoformat(),
            }

    def _note_locks(self, event: AgentEvent) -> None:
        """Count a tool call that would write to a path that somebody else holds."""
        attempt = self._attempt
        if not attempt.shares_files or _READS.search(event.name or ""):
            return
        place = os.path.realpath(attempt.directory)
        lock = attempt.parts.locks.in_way_of_tool(event.data, place, checkout_of(place), attempt.id)
        if lock:
            self._lock_conflicts[lock.path] += 1

    async def _warn_of_locks(self) -> None:
        refusals = self._attempt.parts.locks.refusals
        attempt_id = self._attempt.id
        paths = []
        for path, count in self._lock_conflicts.items():
            if count > refusals[attempt_id, path]:
                paths.append(path)
        if paths:
            text = f"it wrote to paths that others had locked: {', '.join(paths)}"
            await self._warn("lock", text)

    def _read_side_log(self) -> None:
        if self._side is None and self._side_log is not None:
            path = self._side_log.find(self._fold.session_id)
            if path:
                self._side = LogReader(path, self._side_log.begin)
        for line in self._side.lines() if self._side else ():
            for event in self._agent.parse(line.text):
                self._note_window(event)
                if event.kind in {"usage", "model", "session"}:
                    self._fold.add(event)
                elif event.kind == "notice":
                    # Only the output shows progress: the side log may be ahead of it or behind.
                    self._refusal.add(event)

    async def _warn_of_limits(self, usage: Usage | None) -> None:
        health = self._attempt.settings.health
        limit = self._attempt.timeout_s
        seconds = (datetime.now(UTC) - self._attempt.row["started_at"]).total_seconds()
        for what, text in self._limits.list_warnings(usage, health.warn_at) if usage else ():
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
        """Periodically store the usage so far, and reload the limits."""
        now = time.monotonic()
        if now - self._stored_at < (_SHARED_S if self._limits.is_shared else _STORED_S):
            return
        self._stored_at = now
        if usage is not None and usage != self._stored:
            self._stored = usage
            await self._attempt.update(**usage.model_dump())
        self._limits = await limits_of(self._attempt)
        await self._store_windows()

    async def _store_windows(self) -> None:
        windows = self._windows
        self._windows = {}
        if windows and (account := self._attempt.row["account"]):
            await self._attempt.parts.db.write(accounts.store_windows, account, windows)

    async def _end(self, failure: Failure) -> bool:
        """Store why the agent is ended, then end it."""
        # Stored first: after a crash, the reason would be lost with the ended agent.
        await self._attempt.update(ended_for=_CAUSE.dump_python(failure, mode="json"))
        self._attempt.parts.runner.stop(self._attempt.process_dir, failure.evidence)
        return True
