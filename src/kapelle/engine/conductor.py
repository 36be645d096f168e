"""Decides what starts when: admits queued tasks in order, and sweeps up what got stuck."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta

from kapelle.domain.errors import InvalidInput
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit
from kapelle.engine import vigil
from kapelle.engine.accounts import candidates
from kapelle.engine.admission import Reading, held, max_attempts, read_machine
from kapelle.engine.beginning import begin
from kapelle.engine.failpoints import failpoint
from kapelle.engine.findings import Findings, Finish
from kapelle.engine.parts import Stage
from kapelle.engine.perform import Performance
from kapelle.engine.performers import MAX_PERFORMANCES, Performers
from kapelle.engine.runs.queue import RunQueue
from kapelle.engine.settle import conclude
from kapelle.settings import Limits
from kapelle.store import attempts, tasks
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.conductor")
_SWEEP_S = 2.0
_READING_S = 1.0


class Conductor:
    """Owns the queue of one daemon."""

    def __init__(self, stage: Stage, run_queue: RunQueue) -> None:
        self._stage = stage
        self._performers = Performers(Performance(stage).perform, self._give_up)
        self._run_queue = run_queue
        self._reading: tuple[float, Reading] | None = None
        self._admitted: set[str] = set()
        self._asked: set[str] = set()
        self._limits = Limits()
        self.held: str | None = None
        self.paused = False

    @property
    def running(self) -> int:
        return len(self._admitted)

    @property
    def slots(self) -> int:
        return max_attempts(self._limits, self._read())

    async def run(self) -> None:
        """Conduct until cancelled; a failing pass is logged and made again."""
        swept = 0.0
        with self._stage.db.watch() as changed:
            while True:
                try:
                    if time.monotonic() - swept >= _SWEEP_S:
                        await self._sweep()
                        swept = time.monotonic()
                    await self._admit()
                    if not self.paused:
                        await self._run_queue.admit()
                    pause = min(_SWEEP_S, await self._until_due())
                except InvalidInput as error:
                    # A broken configuration: nothing starts, and everybody can read why.
                    self.held = error.message
                    pause = _SWEEP_S
                except Exception:
                    _log.exception("a pass of the conductor failed and will be made again")
                    pause = 0.5
                await changed.wait(pause)

    async def close(self) -> None:
        """Perform nothing any more; agents go on, and the next daemon goes on with them."""
        await asyncio.gather(self._performers.close(), self._run_queue.close())

    async def _until_due(self) -> float:
        due = await self._stage.db.glance(tasks.next_due)
        if due is None:
            return _SWEEP_S
        left = (due - datetime.now(UTC)).total_seconds()
        # What is due already but held back waits for the next change or sweep.
        return max(left, 0.01) if left > 0 else _SWEEP_S

    def _read(self) -> Reading:
        if self._reading is None or time.monotonic() - self._reading[0] > _READING_S:
            self._reading = (time.monotonic(), read_machine(self._stage.home.root))
        return self._reading[1]

    async def _admit(self) -> None:
        self._admitted = set(await self._running())
        limits = self._limits = self._stage.settings().limits
        reading = self._read()
        free = max_attempts(limits, reading) - len(self._admitted)
        verdict = "the daemon is stopping" if self.paused else held(limits, reading, self.running)
        if verdict is None:
            now = datetime.now(UTC)
            ready = await self._stage.db.glance(tasks.next_queued, now, free)
            if ready:
                choices = [(task["id"], candidates(self._stage, task)) for task in ready]
                begun = await self._stage.db.write(begin, choices, self._stage.performer)
                failpoint("conductor_after_begin")
                for attempt_id in begun:
                    self._performers.start(attempt_id)
                    failpoint("conductor_after_start")
                self._admitted |= set(begun)
                verdict = held(limits, reading, self.running)
        self.held = verdict

    async def _sweep(self) -> None:
        """Find what should move and does not; move it or report it."""
        db = self._stage.db
        if await db.read(_overdue):
            await db.write(_release_overdue)
        await self._performers.restart(await self._running())
        await self._run_queue.sweep()
        await self._warn_of_questions()

    async def _running(self) -> list[str]:
        return await self._stage.db.glance(attempts.running, self._stage.performer)

    async def _warn_of_questions(self) -> None:
        """Tell of tasks that have been waiting for a person for long."""
        patience = timedelta(seconds=self._stage.settings().health.waiting_s)
        moment = datetime.now(UTC) - patience
        waiting = await self._stage.db.read(tasks.waiting_for_input_since, moment)
        self._asked &= {task["id"] for task in waiting}
        for task in waiting:
            if task["id"] not in self._asked:
                self._asked.add(task["id"])
                await self._stage.db.write(_warn_of_question, task["id"], patience)

    async def _give_up(self, attempt_id: str) -> None:
        problem = f"an internal error ended it {MAX_PERFORMANCES} times; see {self._stage.home.log}"
        self._stage.runner.stop(self._stage.process_directory(attempt_id), problem)
        finish = Finish(Exit(kind="lost"), detail=problem)
        failure = Failure(FailureClass.LOST, problem)
        await conclude(self._stage, attempt_id, finish, Findings(False, problem, failure=failure))


def _overdue(connection: Connection) -> list[str]:
    now = datetime.now(UTC)
    return tasks.overdue_waiting(connection, now) + tasks.releasable(connection)


def _release_overdue(connection: Connection) -> None:
    for task_id in tasks.overdue_waiting(connection, datetime.now(UTC)):
        tasks.enqueue_again(connection, task_id)
    for task_id in tasks.releasable(connection):
        tasks.settle_dependencies(connection, task_id)


def _warn_of_question(connection: Connection, task_id: str, patience: timedelta) -> None:
    attempt = attempts.latest(connection, task_id)
    if attempt is not None:
        text = f"nobody has answered its question for {patience.total_seconds():.0f} s"
        vigil.warn(connection, task_id, attempt["id"], "waiting", text)
