"""Start the work of schedules when it is due: each slot once, also across crashes."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, TypeVar

from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.domain.schedule import Outcome
from kapelle.engine.background import repeat
from kapelle.engine.schedules import transitions
from kapelle.runner.shim.failpoints import failpoint
from kapelle.secrets.specs import SpecSecrets
from kapelle.store import schedules
from kapelle.store.database import Database

T = TypeVar("T")
Slot = tuple[str, datetime]
# Starts a task or run by its kind, specification, key and schedule. Returns its id; a repeated key
# returns the same id.
StartSchedule = Callable[[str, dict[str, Any], str, str], Awaitable[str]]

_log = logging.getLogger("kapelle.scheduler")
# No sleep is long, because somebody may set the clock.
_LONGEST_PAUSE_S = 3.0
_SHORTEST_PAUSE_S = 0.2
# Every write of the daemon wakes the scheduler, so its share of the time is limited.
_SHARE = 0.1
_TRIES = 5
_PATIENCE_S = 1.0
_SWEEP_S = 3600.0


class Scheduler:
    """Owns the schedules of one daemon."""

    def __init__(
        self,
        db: Database,
        start: StartSchedule,
        secrets: SpecSecrets,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._db = db
        self._start_work = start
        self._secrets = secrets
        self.clock = clock
        self._lock = asyncio.Lock()
        # Slots that are held or starting; complete only if _is_loaded.
        self._open: set[Slot] = set()
        self._is_loaded = False
        # Number of internal errors at a start, and the time of the next try.
        self._retries: dict[Slot, tuple[int, float]] = {}
        self._sweep_at = 0.0

    async def run(self) -> None:
        """Run passes until cancelled; a failing pass is logged and repeated."""
        await repeat(_log, self._pass, self._db.watch(), _LONGEST_PAUSE_S)

    async def _pass(self) -> float:
        began = time.monotonic()
        await self.tick()
        rest = max(_SHORTEST_PAUSE_S, (time.monotonic() - began) / _SHARE)
        await asyncio.sleep(min(rest, _LONGEST_PAUSE_S))
        moment = await self._db.glance(schedules.find_next_moment)
        if moment:
            left = (moment - self.clock()).total_seconds()
        else:
            left = _LONGEST_PAUSE_S
        return min(max(left, 0.0), _LONGEST_PAUSE_S)

    async def tick(self, now: datetime | None = None) -> None:
        """Run one pass: decide about every due schedule, and start its slots."""
        async with self._lock:
            now = now or self.clock()
            await self._settle_all(now)
            for schedule_id in await self._db.glance(schedules.list_needing_attention, now):
                await self._advance(schedule_id, now)
            if time.monotonic() >= self._sweep_at:
                # Secrets of schedules that a crash left behind.
                await self._drop_secrets(*await asyncio.to_thread(self._secrets.owners, "schedule"))
                self._sweep_at = time.monotonic() + _SWEEP_S

    async def alter(self, change: Callable[..., T], schedule_id: str, *args: Any) -> T:
        """Apply a change between two passes, and start what it asks for before returning."""
        async with self._lock:
            await self._settle_all(self.clock())
            self._is_loaded = False
            result = await self._db.write(change, schedule_id, *args)
            await self._settle_all(self.clock())
            await self._drop_secrets(schedule_id)
            return result

    async def _advance(self, schedule_id: str, now: datetime) -> None:
        """Process one schedule; its errors do not delay other schedules."""
        try:
            if not await self._db.read(transitions.is_due, schedule_id, now):
                return
            slots = await self._db.write(transitions.advance, schedule_id, now)
            failpoint("scheduler_after_decision")
        except Exception:
            # The write may or may not have happened, so read the open slots again.
            self._is_loaded = False
            _log.exception("%s could not be processed and will be retried", schedule_id)
            return
        self._open |= {(schedule_id, slot) for slot in slots}
        for slot in slots:
            await self._settle((schedule_id, slot), now)
        await self._drop_secrets(schedule_id)

    async def _settle_all(self, now: datetime) -> None:
        if not self._is_loaded:
            rows = await self._db.read(schedules.list_unsettled_firings)
            self._open = {(row["schedule_id"], row["slot"]) for row in rows}
            self._is_loaded = True
        for slot in sorted(self._open, key=itemgetter(1)):
            await self._settle(slot, now)

    async def _settle(self, slot: Slot, now: datetime) -> None:
        firing = await self._db.glance(schedules.find_firing, *slot)
        outcome = firing and firing["outcome"]
        if outcome == Outcome.HELD and await self._db.read(transitions.may_release, *slot, now):
            outcome = await self._db.write(transitions.release_slot, *slot, now)
        if outcome == Outcome.STARTING:
            await self._start(slot, now)
        elif outcome != Outcome.HELD:
            self._open.discard(slot)

    async def _start(self, slot: Slot, now: datetime) -> None:
        tries, again_at = self._retries.get(slot, (0, 0.0))
        if time.monotonic() < again_at:
            return
        try:
            failpoint("scheduler_before_start")
            subject = await self._subject(slot)
            failpoint("scheduler_after_start")
        except Unavailable as error:
            _log.warning("%s cannot be started now and will be retried: %s", slot[0], error.message)
            self._retries[slot] = (tries, time.monotonic() + _PATIENCE_S)
            return
        except KapelleError as error:
            # The specification itself is at fault, so a retry would not help.
            await self._db.write(transitions.record_failed_start, *slot, error.with_hint, now)
        except Exception as error:
            _log.exception("%s could not be started", slot[0])
            if tries + 1 < _TRIES:
                self._retries[slot] = (tries + 1, time.monotonic() + _PATIENCE_S * 2**tries)
                return
            problem = f"an error ended its start {_TRIES} times: {type(error).__name__}: {error}"
            await self._db.write(transitions.record_failed_start, *slot, problem, now)
        else:
            await self._db.write(transitions.record_start, *slot, subject, now)
            failpoint("scheduler_after_record")
        self._retries.pop(slot, None)
        self._open.discard(slot)
        await self._drop_secrets(slot[0])

    async def _subject(self, slot: Slot) -> str:
        """Return the work that a slot starts, or has started before a crash."""
        schedule_id, moment = slot
        # A crash may have come between the start and its record.
        key = transitions.key_of(schedule_id, moment)
        earlier = await self._db.read(schedules.find_subject, key)
        if earlier is not None:
            return earlier
        schedule = await self._db.read(schedules.load_row, schedule_id)
        spec = self._secrets.whole(schedule_id, schedule["spec"])
        return await self._start_work(schedule["kind"], spec, key, schedule_id)

    async def _drop_secrets(self, *schedule_ids: str) -> None:
        """Delete the secrets of ended schedules without a starting slot."""
        if not schedule_ids:
            return
        needed = await self._db.read(schedules.filter_open, schedule_ids)
        needed |= {schedule_id for schedule_id, _ in self._open}
        for schedule_id in set(schedule_ids) - needed:
            self._secrets.forget(schedule_id)
