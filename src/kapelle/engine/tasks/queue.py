"""The queue of tasks: which of them starts when, whether this machine has room for another attempt,
and the sweep that finds what should move and does not."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psutil

from kapelle.domain.budget import limit_reason
from kapelle.domain.errors import InvalidInput, NotTrusted
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.ids import new_id
from kapelle.domain.outcome import Evidence
from kapelle.domain.states import AttemptStatus, RunStatus, StopCause, Stopper, TaskStatus
from kapelle.domain.task import Exit
from kapelle.engine.children import end_orphans
from kapelle.engine.parts import Parts
from kapelle.engine.performers import MAX_PERFORMANCES, Performers
from kapelle.engine.questions import expire
from kapelle.engine.retry import repeat
from kapelle.engine.runs.executor import RunExecutor
from kapelle.engine.tasks.accounts import AgentCandidate, PausedAccounts, candidates, choose
from kapelle.engine.tasks.executor import perform
from kapelle.engine.tasks.settle import conclude
from kapelle.runner.shim.failpoints import failpoint
from kapelle.settings.models import LimitsSettings, default_max_attempts
from kapelle.store import accounts, attempts, children, events, messages, questions, runs, tasks
from kapelle.store.database import Connection, about

_log = logging.getLogger("kapelle.queue")
_MB = 1_000_000
# Whoever trusts the repository wakes what waits for that; this is for changes of its files.
_TRUST_AGAIN = timedelta(minutes=10)
# The first attempt after a limit goes alone; a refusal would have ended it by then.
_TRIAL = timedelta(seconds=30)
_TRIED = "another task tries first whether the limit is over"
_TRIED_AGAIN = timedelta(seconds=2)
_SWEEP_S = 2.0
# Tests set it: with a long one, whatever is not taken up at once was not told to the queue.
SWEEP_VARIABLE = "KAPELLE_SWEEP_S"
# What may let something start, or hold it back.
_KINDS = [f"task.{status}" for status in (*TaskStatus, "answered") if status != "running"]
_KINDS += [f"run.{status}" for status in (*RunStatus, "created", "resumed")]
_KINDS += [tasks.WOKEN]


@dataclass(frozen=True)
class MachineReading:
    """The state of the machine at one moment."""

    free_memory: int
    free_disk: int
    load: float
    cores: int
    memory: int


def read_machine(path: Path) -> MachineReading:
    memory = psutil.virtual_memory()
    return MachineReading(
        free_memory=memory.available,
        free_disk=psutil.disk_usage(str(path)).free,
        load=os.getloadavg()[0],
        cores=psutil.cpu_count() or 1,
        memory=memory.total,
    )


def max_attempts(limits: LimitsSettings, reading: MachineReading) -> int:
    return limits.max_attempts or default_max_attempts(reading.cores, reading.memory)


def held(limits: LimitsSettings, reading: MachineReading, running: int) -> str | None:
    """Why no attempt may start now, as a sentence a person can act on; None when one may."""
    slots = max_attempts(limits, reading)
    if running >= slots:
        return f"waits for a free slot: {running} of {slots} attempts are running"
    if reading.free_disk < limits.min_free_disk_mb * _MB:
        return (
            f"the disk is low: {reading.free_disk // _MB} MB free, "
            f"limits.min_free_disk_mb is {limits.min_free_disk_mb}"
        )
    # With nothing running, waiting for memory or load of other programs could last for ever.
    if not running:
        return None
    if reading.free_memory < limits.min_free_memory_mb * _MB:
        return (
            f"memory is low: {reading.free_memory // _MB} MB free, "
            f"limits.min_free_memory_mb is {limits.min_free_memory_mb}"
        )
    ceiling = limits.max_load_per_core * reading.cores
    if ceiling and reading.load > ceiling:
        return (
            f"the machine is busy: load {reading.load:.1f}, "
            f"limits.max_load_per_core allows {ceiling:.1f}"
        )
    return None


AgentChoice = tuple[str, Sequence[AgentCandidate] | NotTrusted]


def begin(connection: Connection, ready: Sequence[AgentChoice], performer: str) -> list[str]:
    """Give each task that is still queued a new attempt; at most one, whoever asks.

    One whose agents are all limited waits for the first of them.
    """
    now = datetime.now(UTC)
    paused = accounts.paused(connection, now)
    ended = accounts.on_trial(connection, now)
    begun = []
    for task_id, among in ready:
        task = tasks.row(connection, task_id)
        if task["status"] != TaskStatus.QUEUED or tasks.is_held(connection, task):
            continue
        if task["not_before"] is not None and task["not_before"] > now:
            continue  # put off together with one before it
        limit = runs.calls_limit(connection, task["run_id"], one_more=True)
        if limit is not None:
            cause = StopCause(Stopper.LIMIT, limit_reason(limit), limit)
            tasks.move(connection, task, TaskStatus.CANCELLED, cause.reason, **cause.marks)
            continue
        if isinstance(among, NotTrusted):
            until = datetime.now(UTC) + _TRUST_AGAIN
            waits = {"waiting_for": "trust", "not_before": until}
            tasks.move(connection, task, TaskStatus.WAITING, among.with_hint, **waits)
            continue
        chosen = choose(connection, task_id, among, paused)
        if chosen is None:
            _wait(connection, task, among, paused)
        elif _is_tried(connection, chosen, ended):
            soon = datetime.now(UTC) + _TRIED_AGAIN
            tasks.put_off(connection, task, now, not_before=soon, reason=_TRIED)
        elif _is_others_turn(connection, task, chosen, ended, now):
            soon = datetime.now(UTC) + _TRIED_AGAIN
            tasks.update(connection, task_id, not_before=soon, reason=_TRIED)
            # The task whose turn it is may stand behind this one in the queue.
            about(connection, [tasks.WOKEN])
        else:
            begun.append(_begin(connection, task, chosen, performer))
    return begun


def _is_tried(
    connection: Connection, chosen: AgentCandidate, ended: Mapping[str, datetime]
) -> bool:
    """Whether somebody else finds out right now if a limit is over that has ended by its word."""
    of_account, of_model = chosen.limits
    tried = partial(attempts.tried, connection, chosen.account, datetime.now(UTC) - _TRIAL)
    return (of_account in ended and tried(ended[of_account])) or (
        of_model in ended and tried(ended[of_model], chosen.model)
    )


def _is_others_turn(
    connection: Connection,
    task: tasks.Row,
    chosen: AgentCandidate,
    ended: Mapping[str, datetime],
    now: datetime,
) -> bool:
    """Return whether another task should find out first if a limit is over.

    A task that is refused for reasons of its own would otherwise be the only one that is ever
    tried. Nobody yields for longer than a trial takes.
    """
    ends = [ended[limit] for limit in chosen.limits if limit in ended]
    if not ends or now - max(ends) > _TRIAL or chosen.agent != task["agent"]:
        return False
    next_task = tasks.least_recently_refused(connection, task, now)
    return next_task != str(task["id"])


def _wait(
    connection: Connection, task: tasks.Row, among: Sequence[AgentCandidate], paused: PausedAccounts
) -> None:
    until, reason = min(filter(None, (candidate.pause(paused) for candidate in among)))
    if len(among) > 1:
        reason = f"all of its agents are limited; first, {reason}"
    # When it goes on is a field, which every view tells.
    waits = {"waiting_for": "rate_limit", "not_before": until}
    tasks.move(connection, task, TaskStatus.WAITING, reason, **waits)
    _log.debug("%s waits for a rate limit until %s", task["id"], until.isoformat())


def _begin(connection: Connection, task: tasks.Row, chosen: AgentCandidate, performer: str) -> str:
    if task["started_at"]:
        last = attempts.latest(connection, task["id"])
    else:
        last = None
    attempt_id = new_id("attempt")
    now = datetime.now(UTC)
    number = (last["number"] if last else 0) + 1
    attempts.insert(
        connection, id=attempt_id, task_id=task["id"], number=number, status=AttemptStatus.RUNNING,
        mode=task["next_mode"], message=task["next_message"], **asdict(chosen),
        performer=performer, warnings=[], started_at=now,
    )  # fmt: skip
    begun = {"started_at": task["started_at"] or now, "tries": task["tries"] + 1}
    over = {"not_before": None, "next_mode": "fresh", "next_message": None, "report": None}
    tasks.move(connection, task, TaskStatus.RUNNING, **begun, **over)
    messages.give_to_attempt(connection, task["id"], attempt_id)
    events.append(
        connection, "attempt.started", task["id"], attempt_id, number=number, agent=chosen.agent
    )
    return attempt_id


_READING_S = 1.0


class TaskQueue:
    """Owns the queue of one daemon."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._performers = Performers(partial(perform, parts), self._give_up)
        self._runs = RunExecutor(parts)
        self._reading: tuple[float, MachineReading] | None = None
        self._swept_at: float | None = None
        self._sweep_s = float(os.environ.get(SWEEP_VARIABLE, _SWEEP_S))
        self.running = 0
        self._limits = LimitsSettings()
        self.held: str | None = None
        self.paused = False

    @property
    def slots(self) -> int:
        return max_attempts(self._limits, self._read())

    async def run(self) -> None:
        """Sweep and admit until cancelled; a failing pass is logged and made again."""
        await repeat(_log, self._pass, self._parts.db.watch(*_KINDS), self._sweep_s)

    async def _pass(self) -> float:
        if (problem := await self._parts.db.find_problem()) is not None:
            # Whoever performs something is left alone as well: its agent goes on.
            self.held = problem.with_hint
            return _SWEEP_S
        try:
            if self._swept_at is None or time.monotonic() - self._swept_at >= self._sweep_s:
                await self._sweep()
                self._swept_at = time.monotonic()
            return min(self._sweep_s, await self._admit())
        except InvalidInput as error:
            # A broken configuration: nothing starts, and everybody can read why.
            self.held = error.message
            return _SWEEP_S

    async def close(self) -> None:
        """Perform nothing any more; agents go on, and the next daemon goes on with them."""
        await asyncio.gather(self._performers.close(), self._runs.close())

    def _read(self) -> MachineReading:
        if self._reading is None or time.monotonic() - self._reading[0] > _READING_S:
            self._reading = (time.monotonic(), read_machine(self._parts.home.root))
        return self._reading[1]

    async def _admit(self) -> float:
        """Begin what may start now; in how many seconds the next delayed task may."""
        limits = self._limits = self._parts.settings().limits
        reading = self._read()
        now = datetime.now(UTC)
        most = max_attempts(limits, reading)

        def look(connection: Connection) -> tuple[int, Sequence[tasks.Row], bool, datetime | None]:
            # An agent that waits for a person leaves its slot to others, and goes on without one.
            running = attempts.running(connection, self._parts.performer).values()
            taken = sum(status != TaskStatus.WAITING for status in running)
            if taken < most:
                ready = tasks.next_queued(connection, now, most - taken)
            else:
                ready = []
            return (
                taken,
                ready,
                runs.count_queued(connection) > 0,
                tasks.next_due(connection, now=now),
            )

        admitted, ready, runs_wait, due = await self._parts.db.glance(look)
        verdict = "the daemon is stopping" if self.paused else held(limits, reading, admitted)
        before = self.held
        if verdict is None and ready:
            choices = [(task["id"], self._candidates(task)) for task in ready]
            begun = await self._parts.db.write(begin, choices, self._parts.performer)
            failpoint("conductor_after_begin")
            _log.debug("%d of %d tasks that may start were begun", len(begun), len(choices))
            for attempt_id in begun:
                _log.debug("%s is begun", attempt_id)
                self._performers.start(attempt_id)
                failpoint("conductor_after_start")
            admitted += len(begun)
            verdict = held(limits, reading, admitted)
        # Together, so that nobody reads a reason that contradicts the number.
        self.running = admitted
        self.held = verdict
        if verdict != before:
            _log.debug("%d attempts are running; %s", admitted, verdict or "another may start")
        if runs_wait and not self.paused:
            await self._runs.admit()
        if due is None:
            return self._sweep_s
        if due <= now:
            # What it queues wakes the queue.
            await self._parts.db.write(_release_overdue)
        return max((due - now).total_seconds(), 0.01)

    def _candidates(self, task: tasks.Row) -> Sequence[AgentCandidate] | NotTrusted:
        """Who may take a task, or why nobody may: what it would execute is not trusted."""
        settings = None
        try:
            settings = self._parts.work_settings(task["directory"])
        except NotTrusted as error:
            return error
        except InvalidInput:
            pass  # a configuration that cannot be read is found out by the attempt
        return candidates(self._parts, task, settings)

    async def _sweep(self) -> None:
        """Find what should move and does not; move it or report it."""
        db = self._parts.db
        overdue, expired, orphaned = await db.read(_stuck)
        if overdue:
            await db.write(_release_overdue)
        await self._performers.restart(await db.glance(attempts.running, self._parts.performer))
        await self._runs.sweep()
        if expired:
            await db.write(expire)
        if orphaned:
            await end_orphans(self._parts)

    async def _give_up(self, attempt_id: str) -> None:
        problem = f"an internal error ended it {MAX_PERFORMANCES} times; see {self._parts.home.log}"
        beside = [one.directory for one in (await self._parts.processes(attempt_id)).values()]
        for process_dir in [self._parts.process_directory(attempt_id), *beside]:
            self._parts.runner.stop(process_dir, problem)
        failure = Failure(FailureClass.LOST, problem)
        evidence = Evidence(Exit(kind="lost"), detail=problem, reason=problem, failure=failure)
        await conclude(self._parts, attempt_id, evidence)


def _stuck(connection: Connection) -> tuple[bool, bool, bool]:
    """Whether a task, a question or what is below a task should move; read at once, for a daemon
    that has nothing to do asks this all day."""
    now = datetime.now(UTC)
    waiting = [*tasks.overdue_waiting(connection, now), *tasks.set_back(connection, now)]
    overdue = bool(waiting or tasks.releasable(connection))
    return overdue, bool(questions.overdue(connection, now)), bool(children.orphans(connection))


def _release_overdue(connection: Connection) -> None:
    now = datetime.now(UTC)
    for task_id, due in tasks.set_back(connection, now).items():
        tasks.update(connection, task_id, not_before=due)
    for task_id in tasks.overdue_waiting(connection, now):
        tasks.enqueue_again(connection, task_id)
    for task_id in tasks.releasable(connection):
        tasks.settle_dependencies(connection, task_id)
