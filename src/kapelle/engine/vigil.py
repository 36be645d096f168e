"""Keeps watch over a running agent: counts what it uses, warns, and ends one that went too far."""

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from kapelle.agents.base import Agent
from kapelle.agents.summary import Fold
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Usage
from kapelle.engine import cost, side_log
from kapelle.engine.ending import note
from kapelle.engine.limits import Limits
from kapelle.engine.parts import Stage
from kapelle.engine.refusal import Refusal
from kapelle.engine.stall import Stall
from kapelle.engine.work import Work
from kapelle.runner.output import LineSplitter, read
from kapelle.store import attempts, events
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.vigil")
_STRICT_S = 0.05
_CALM_S = 1.0
_TOLD_S = 5.0
_BLOCK = 1 << 20


class Vigil:
    """Watches one attempt until its end; begun again after a crash, it reads anew."""

    def __init__(
        self, stage: Stage, work: Work, agent: Agent, limits: Limits, before: dict[str, float]
    ) -> None:
        self._stage = stage
        self._work = work
        self._agent = agent
        self._limits = limits
        self._before = before
        self._fold = Fold()
        self._out = _Reader(work.process_dir / "out.log")
        self._err = _Reader(work.process_dir / "err.log")
        self._side: _Reader | None = None
        self._log = side_log.of_run(work.process_dir)
        self._refusal = Refusal()
        self._stall = Stall(work.process_dir, work.settings.health.stall_s)
        self._warned: set[str] = {warning["what"] for warning in work.attempt["warnings"]}
        self._over = asyncio.Event()
        # What a run has printed before this daemon watches it may be hours old.
        self._caught_up = not (work.process_dir / "out.log").exists()
        self._told: tuple[float, Usage | None] = (time.monotonic(), None)

    async def keep(self) -> None:
        """Look again and again; whatever goes wrong here, the attempt goes on."""
        own = self._agent.capabilities
        watched = not own.budget or not own.max_turns
        pause = _STRICT_S if self._limits.strict and watched else _CALM_S
        while not await self._ended_within(pause):
            try:
                if await self._look():
                    return
            except Exception:
                _log.exception("watching %s failed and goes on", self._work.attempt_id)
                pause = max(pause, _CALM_S)

    async def _ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()

    def end(self) -> None:
        """The agent has ended; keep() returns when it has looked for the last time."""
        self._over.set()

    async def _look(self) -> bool:
        """One look; True when the agent was told to end."""
        usage = await asyncio.to_thread(self._count) if self._agent.reads_whole_output else None
        if usage is not None and (sentence := self._limits.exceeded(usage)):
            return self._end(Failure(FailureClass.LIMIT, sentence))
        if refused := self._refusal.outlasts(self._work.settings.failures.patience_s):
            return self._end(refused)
        if silent_s := await asyncio.to_thread(self._stall.silent_s):
            sentence = f"no output and no work for {silent_s:.0f} s"
            await self._warn("stalled", sentence)
            if self._work.settings.health.on_stall != "warn":
                return self._end(Failure(FailureClass.STALLED, f"stalled: {sentence}"))
        await self._warn_of_limits(usage)
        await self._tell(usage)
        return False

    async def look_back(self) -> None:
        """Warn of what the last answer used, once the agent has ended."""
        if not self._agent.reads_whole_output or not self._limits.strict:
            return
        try:
            await self._warn_of_limits(await asyncio.to_thread(self._count))
        except Exception:
            _log.exception("looking back at %s failed", self._work.attempt_id)

    def _count(self) -> Usage | None:
        self._read_side_log()
        for line in self._err.lines():
            for event in self._agent.parse_stderr(line):
                self._refusal.add(event)
        for line in self._out.lines():
            for event in self._agent.parse(line):
                self._fold.add(event)
                self._refusal.add(event)
        if not self._caught_up:
            # Refusals of then may be overcome long since.
            self._refusal, self._caught_up = Refusal(), True
        model = self._work.attempt["model"]
        return cost.of_attempt(self._fold.summary(), self._before, model, self._work.settings)

    def _read_side_log(self) -> None:
        if self._side is None and self._log is not None:
            session = self._fold.session_id or self._log.session_id
            path = side_log.find(self._log.pattern, session)
            self._side = _Reader(path, self._log.begin) if path else None
        for line in self._side.lines() if self._side else ():
            for event in self._agent.parse(line):
                if event.kind in {"usage", "model", "session"}:
                    self._fold.add(event)
                elif event.kind == "notice":
                    # It is read out of step with the output, which alone tells of progress.
                    self._refusal.add(event)

    async def _warn_of_limits(self, usage: Usage | None) -> None:
        health, seconds = self._work.settings.health, self._age_s()
        for what, text in self._limits.near(usage, health.warn_at) if usage else ():
            await self._warn(what, text)
        if usage is not None and self._limits.is_blind(usage):
            await self._warn(
                "price", "the budget cannot be kept: the price of its model is unknown"
            )
        limit = self._work.timeout_s
        if limit is not None and seconds >= health.warn_at * limit:
            await self._warn("time", f"{seconds:.0f} of {limit:g} s are over")
        if seconds >= health.long_s:
            await self._warn("long", f"it has been running for {seconds:.0f} s")

    def _age_s(self) -> float:
        started: datetime = self._work.attempt["started_at"]
        return (datetime.now(UTC) - started).total_seconds()

    async def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            await self._stage.db.write(warn, self._work.task_id, self._work.attempt_id, what, text)

    async def _tell(self, usage: Usage | None) -> None:
        """Store what was used so far, now and then."""
        now = time.monotonic()
        if usage is not None and now - self._told[0] >= _TOLD_S and usage != self._told[1]:
            self._told = (now, usage)
            values = usage.model_dump()
            await self._stage.db.write(attempts.update, self._work.attempt_id, **values)

    def _end(self, failure: Failure) -> bool:
        note(self._work.process_dir, failure)
        self._stage.runner.stop(self._work.process_dir, failure.evidence)
        return True


class _Reader:
    """The new whole lines of a growing file, some at a time."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._splitter = LineSplitter()

    def lines(self) -> list[str]:
        block = read(self._path, self._offset, _BLOCK)
        self._offset += len(block)
        return [line.data.decode("utf-8", "replace") for line in self._splitter.feed(block)]


def warn(connection: Connection, task_id: str, attempt_id: str, what: str, text: str) -> None:
    """Record a warning once, where it can be seen."""
    if attempts.warn(connection, attempt_id, what, text):
        events.append(connection, "attempt.warning", task_id, attempt_id, what=what, text=text)
