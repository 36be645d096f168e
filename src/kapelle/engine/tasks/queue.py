"""The queue of tasks: the order of starts, the room on this machine, and a sweep.

The sweep finds whatever should move and does not.
"""

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

from kapelle.domain.budget import format_limit_reason
from kapelle.domain.errors import InvalidInput, NotTrusted
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.ids import new_id
from kapelle.domain.outcome import Evidence
from kapelle.domain.states import AttemptStatus, RunStatus, StopCause, Stopper, TaskStatus
from kapelle.domain.task import Exit
from kapelle.engine.background import repeat
from kapelle.engine.children import end_orphans
from kapelle.engine.parts import Parts
from kapelle.engine.performers import MAX_PERFORMANCES, Performers
from kapelle.engine.questions import expire
from kapelle.engine.runs.executor import RunExecutor
from kapelle.engine.tasks.accounts import (
    AgentCandidate,
    PausedAccounts,
    choose_agent,
    list_candidates,
)
from kapelle.engine.tasks.executor import perform
from kapelle.engine.tasks.settle import conclude
from kapelle.runner.shim.failpoints import failpoint
from kapelle.settings.models import LimitsSettings, default_max_attempts
from kapelle.store import accounts, attempts, children, events, messages, questions, runs, tasks
from kapelle.store.database import Connection, notify_watches

_log = logging.getLogger("kapelle.queue")
_MB = 1_000_000
# Trusting a repository wakes its tasks; this interval notices changed files.
_TRUST_AGAIN = timedelta(minutes=10)
# The first attempt after a limit runs alone for this time, in which a refusal would end it.
_TRIAL = timedelta(seconds=30)
_TRIED = "another task tries first whether the limit is over"
_TRIED_AGAIN = timedelta(seconds=2)
_SWEEP_S = 2.0
# Tests set a long interval to prove that every change wakes the queue at once.
SWEEP_VARIABLE = "KAPELLE_SWEEP_S"
# Events that may allow or prevent a start.
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


def find_obstacle(limits: LimitsSettings, reading: MachineReading, running: int) -> str | None:
    """Return why no attempt may start now, with the setting to change; None if one may."""
    slots = max_attempts(limits, reading)
    if running >= slots:
        return f"waits for a free slot: {running} of {slots} attempts are running"
    if reading.free_disk < limits.min_free_disk_mb * _MB:
        return (
            f"the disk is low: {reading.free_disk // _MB} MB free, "
            f"limits.min_free_disk_mb is {limits.min_free_disk_mb}"
        )
    # If nothing runs here, other programs use the memory or the load: waiting might never end.
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


def begin_attempts(
    connection: Connection, ready: Sequence[AgentChoice], performer: str
) -> list[str]:
    """Give each task that is still queued a new attempt; return the ids of the attempts.

    A task gets at most one attempt, whoever asks. A task whose agents are all limited waits for the
    first of them.
    """
    now = datetime.now(UTC)
    pauses = accounts.load_pauses(connection, now)
    ended_limits = accounts.load_trials(connection, now)
    attempt_ids = []
    for task_id, among in ready:
        task = tasks.load_row(connection, task_id)
        if task["status"] != TaskStatus.QUEUED or tasks.is_held_by_run(connection, task):
            continue
        if task["not_before"] is not None and task["not_before"] > now:
            continue  # postponed together with an earlier task
        limit = runs.find_call_limit(connection, task["run_id"], one_more=True)
        if limit is not None:
            cause = StopCause(Stopper.LIMIT, format_limit_reason(limit), limit)
            tasks.move(connection, task, TaskStatus.CANCELLED, cause.reason, **cause.marks)
            continue
        if isinstance(among, NotTrusted):
            until = datetime.now(UTC) + _TRUST_AGAIN
            waits = {"waiting_for": "trust", "not_before": until}
            tasks.move(connection, task, TaskStatus.WAITING, among.with_hint, **waits)
            continue
        candidate = choose_agent(connection, task_id, among, pauses)
        if candidate is None:
            _wait(connection, task, among, pauses)
        elif _is_on_trial(connection, candidate, ended_limits):
            soon = datetime.now(UTC) + _TRIED_AGAIN
            tasks.postpone(connection, task, now, not_before=soon, reason=_TRIED)
        elif _is_others_turn(connection, task, candidate, ended_limits, now):
            soon = datetime.now(UTC) + _TRIED_AGAIN
            tasks.update(connection, task_id, not_before=soon, reason=_TRIED)
            # The task whose turn it is may stand behind this one in the queue.
            notify_watches(connection, [tasks.WOKEN])
        else:
            attempt_ids.append(_begin(connection, task, candidate, performer))
    return attempt_ids


def _is_on_trial(
    connection: Connection, candidate: AgentCandidate, ended_limits: Mapping[str, datetime]
) -> bool:
    """Return whether another attempt is testing right now if a limit has ended."""
    of_account, of_model = candidate.limits
    is_on_trial = partial(
        attempts.has_running_trial, connection, candidate.account, datetime.now(UTC) - _TRIAL
    )
    return (of_account in ended_limits and is_on_trial(ended_limits[of_account])) or (
        of_model in ended_limits and is_on_trial(ended_limits[of_model], candidate.model)
    )


def _is_others_turn(
    connection: Connection,
    task: tasks.Row,
    candidate: AgentCandidate,
    ended_limits: Mapping[str, datetime],
    now: datetime,
) -> bool:
    """Return whether another task should test first if a limit has ended.

    A task that is refused for reasons of its own would otherwise be the only one ever tried. Nobody
    yields for longer than a trial takes.
    """
    ends = [ended_limits[limit] for limit in candidate.limits if limit in ended_limits]
    if not ends or now - max(ends) > _TRIAL or candidate.agent != task["agent"]:
        return False
    next_task = tasks.find_least_recently_refused(connection, task, now)
    return next_task != str(task["id"])


def _wait(
    connection: Connection, task: tasks.Row, among: Sequence[AgentCandidate], pauses: PausedAccounts
) -> None:
    until, reason = min(filter(None, (candidate.find_pause(pauses) for candidate in among)))
    if len(among) > 1:
        reason = f"all of its agents are limited; first, {reason}"
    # The reason has no time: the time is a field that every view shows.
    waits = {"waiting_for": "rate_limit", "not_before": until}
    tasks.move(connection, task, TaskStatus.WAITING, reason, **waits)
    _log.debug("%s waits for a rate limit until %s", task["id"], until.isoformat())


def _begin(
    connection: Connection, task: tasks.Row, candidate: AgentCandidate, performer: str
) -> str:
    last = None
    if task["started_at"]:
        last = attempts.find_latest(connection, task["id"])
    attempt_id = new_id("attempt")
    now = datetime.now(UTC)
    number = last["number"] + 1 if last else 1
    attempts.insert(
        connection,
        id=attempt_id,
        task_id=task["id"],
        number=number,
        status=AttemptStatus.RUNNING,
        mode=task["next_mode"],
        message=task["next_message"],
        **asdict(candidate),
        performer=performer,
        warnings=[],
        started_at=now,
    )
    start_values = {"started_at": task["started_at"] or now, "tries": task["tries"] + 1}
    reset_values = {"not_before": None, "next_mode": "fresh", "next_message": None, "report": None}
    tasks.move(connection, task, TaskStatus.RUNNING, **start_values, **reset_values)
    messages.give_to_attempt(connection, task["id"], attempt_id)
    events.append(
        connection, "attempt.started", task["id"], attempt_id, number=number, agent=candidate.agent
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
        """Sweep and admit until cancelled; a failing pass is logged and repeated."""
        await repeat(_log, self._pass, self._parts.db.watch(*_KINDS), self._sweep_s)

    async def _pass(self) -> float:
        if (problem := await self._parts.db.find_problem()) is not None:
            # Performers are left alone too, and their agents continue.
            self.held = problem.with_hint
            return _SWEEP_S
        try:
            # A pass runs at every event, and the sweep only now and then.
            if self._swept_at is None or time.monotonic() - self._swept_at >= self._sweep_s:
                await self._sweep()
                self._swept_at = time.monotonic()
            return min(self._sweep_s, await self._admit())
        except InvalidInput as error:
            # A broken configuration: nothing starts, and the views show why.
            self.held = error.message
            return _SWEEP_S

    async def close(self) -> None:
        """Stop performing; agents continue, and the next daemon takes them over."""
        await asyncio.gather(self._performers.close(), self._runs.close())

    def _read(self) -> MachineReading:
        if self._reading is None or time.monotonic() - self._reading[0] > _READING_S:
            self._reading = (time.monotonic(), read_machine(self._parts.home.root))
        return self._reading[1]

    async def _admit(self) -> float:
        """Begin what may start now; return the seconds until the next delayed task may start."""
        limits = self._limits = self._parts.settings().limits
        reading = self._read()
        now = datetime.now(UTC)
        most = max_attempts(limits, reading)

        def look(connection: Connection) -> tuple[int, Sequence[tasks.Row], bool, datetime | None]:
            # An agent that waits for a person frees its slot, and continues later without one.
            statuses = [*attempts.load_running(connection, self._parts.performer).values()]
            busy = len(statuses) - statuses.count(TaskStatus.WAITING)
            ready: Sequence[tasks.Row] = []
            if busy < most:
                ready = tasks.list_startable(connection, now, most - busy)
            return (
                busy,
                ready,
                runs.count_queued(connection) > 0,
                tasks.find_next_due(connection, now=now),
            )

        running, ready, runs_wait, due = await self._parts.db.glance(look)
        obstacle = (
            "the daemon is stopping" if self.paused else find_obstacle(limits, reading, running)
        )
        before = self.held
        if obstacle is None and ready:
            choices = [(task["id"], self._candidates(task)) for task in ready]
            attempt_ids = await self._parts.db.write(begin_attempts, choices, self._parts.performer)
            failpoint("conductor_after_begin")
            _log.debug("%d of %d tasks that may start were begun", len(attempt_ids), len(choices))
            for attempt_id in attempt_ids:
                _log.debug("%s is begun", attempt_id)
                self._performers.start(attempt_id)
                failpoint("conductor_after_start")
            running += len(attempt_ids)
            obstacle = find_obstacle(limits, reading, running)
        # Assigned together, so that no reader sees a reason that contradicts the number.
        self.running = running
        self.held = obstacle
        if obstacle != before:
            _log.debug("%d attempts are running; %s", running, obstacle or "another may start")
        if runs_wait and not self.paused:
            await self._runs.admit()
        if due is None:
            return self._sweep_s
        if due <= now:
            # Tasks that are queued by this wake the queue.
            await self._parts.db.write(_release_overdue)
        return max((due - now).total_seconds(), 0.01)

    def _candidates(self, task: tasks.Row) -> Sequence[AgentCandidate] | NotTrusted:
        """Return the agents that may take a task, or why its directory is not trusted."""
        settings = None
        try:
            settings = self._parts.work_settings(task["directory"])
        except NotTrusted as error:
            return error
        except InvalidInput:
            pass  # the attempt will report a broken configuration
        return list_candidates(self._parts, task, settings)

    async def _sweep(self) -> None:
        """Find whatever should move and does not, and move it."""
        db = self._parts.db
        has_overdue_tasks, has_expired_questions, has_orphans = await db.read(_find_stuck)
        if has_overdue_tasks:
            await db.write(_release_overdue)
        await self._performers.restart(
            await db.glance(attempts.load_running, self._parts.performer)
        )
        await self._runs.sweep()
        if has_expired_questions:
            await db.write(expire)
        if has_orphans:
            await end_orphans(self._parts)

    async def _give_up(self, attempt_id: str) -> None:
        problem = f"an internal error ended it {MAX_PERFORMANCES} times; see {self._parts.home.log}"
        beside = [one.directory for one in (await self._parts.processes(attempt_id)).values()]
        # The agent may still run: nobody would watch it any more.
        for process_dir in [self._parts.process_directory(attempt_id), *beside]:
            self._parts.runner.stop(process_dir, problem)
        failure = Failure(FailureClass.LOST, problem)
        evidence = Evidence(Exit(kind="lost"), detail=problem, reason=problem, failure=failure)
        await conclude(self._parts, attempt_id, evidence)


def _find_stuck(connection: Connection) -> tuple[bool, bool, bool]:
    """Return whether a task, a question or a child of a task should move.

    One read for all three, because an idle daemon asks this all day.
    """
    now = datetime.now(UTC)
    waiting = [*tasks.list_overdue(connection, now), *tasks.find_clock_corrections(connection, now)]
    overdue = bool(waiting or tasks.list_releasable(connection))
    return (
        overdue,
        bool(questions.list_overdue(connection, now)),
        bool(children.list_orphans(connection)),
    )


def _release_overdue(connection: Connection) -> None:
    now = datetime.now(UTC)
    for task_id, due in tasks.find_clock_corrections(connection, now).items():
        tasks.update(connection, task_id, not_before=due)
    for task_id in tasks.list_overdue(connection, now):
        tasks.enqueue_again(connection, task_id)
    for task_id in tasks.list_releasable(connection):
        tasks.settle_dependencies(connection, task_id)
