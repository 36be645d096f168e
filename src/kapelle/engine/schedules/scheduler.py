"""Starts what schedules ask for when it is due: each slot once, whatever happens in between."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.domain.schedule import Outcome
from kapelle.engine.retry import repeat
from kapelle.engine.schedules import transitions
from kapelle.runner.shim.failpoints import failpoint
from kapelle.secrets.specs import SpecSecrets
from kapelle.store import schedules
from kapelle.store.database import Database

T = TypeVar("T")
Slot = tuple[str, datetime]
# Starts a task or run, given its kind, specification, key and schedule; returns its id, the same
# one again for a key that was used.
StartSchedule = Callable[[str, dict[str, Any], str, str], Awaitable[str]]

_log = logging.getLogger("kapelle.scheduler")
# Clocks may be set, so no sleep is long.
_LONGEST_PAUSE_S = 3.0
_SHORTEST_PAUSE_S = 0.2
# Every write of the daemon wakes it, so it may take this part of the time at most.
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
        # Slots that are held back or being started, as far as the database was asked for them.
        self._open: set[Slot] = set()
        self._asked = False
        # How often a start broke by no fault of what is started, and when it is tried again.
        self._retries: dict[Slot, tuple[int, float]] = {}
        self._sweep_at = 0.0

    async def run(self) -> None:
        """Look after schedules until cancelled; a failing pass is logged and made again."""
        await repeat(_log, self._pass, self._db.watch(), _LONGEST_PAUSE_S)

    async def _pass(self) -> float:
        began = time.monotonic()
        await self.tick()
        rest = max(_SHORTEST_PAUSE_S, (time.monotonic() - began) / _SHARE)
        await asyncio.sleep(min(rest, _LONGEST_PAUSE_S))
        moment = await self._db.glance(schedules.next_moment)
        if moment:
            left = (moment - self.clock()).total_seconds()
        else:
            left = _LONGEST_PAUSE_S
        return min(max(left, 0.0), _LONGEST_PAUSE_S)

    async def tick(self, now: datetime | None = None) -> None:
        """One pass: all that is due is done."""
        async with self._lock:
            now = now or self.clock()
            await self._settle_all(now)
            for schedule_id in await self._db.glance(schedules.needing_attention, now):
                await self._advance(schedule_id, now)
            if time.monotonic() >= self._sweep_at:
                # What a crash left behind.
                await self._drop_secrets(*await asyncio.to_thread(self._secrets.owners, "schedule"))
                self._sweep_at = time.monotonic() + _SWEEP_S

    async def alter(self, change: Callable[..., T], schedule_id: str, *args: Any) -> T:
        """Apply a change between two passes; what it wants started is, when this returns."""
        async with self._lock:
            await self._settle_all(self.clock())
            self._asked = False
            result = await self._db.write(change, schedule_id, *args)
            await self._settle_all(self.clock())
            await self._drop_secrets(schedule_id)
            return result

    async def _advance(self, schedule_id: str, now: datetime) -> None:
        """See to one schedule; what goes wrong with it keeps no other one waiting."""
        try:
            if not await self._db.read(transitions.is_due, schedule_id, now):
                return
            opened = await self._db.write(transitions.advance, schedule_id, now)
            failpoint("scheduler_after_decision")
        except Exception:
            # Whether it was written down is known to the database alone.
            self._asked = False
            _log.exception("%s could not be seen to, which will be tried again", schedule_id)
            return
        self._open |= {(schedule_id, slot) for slot in opened}
        for slot in opened:
            await self._settle((schedule_id, slot), now)
        await self._drop_secrets(schedule_id)

    async def _settle_all(self, now: datetime) -> None:
        if not self._asked:
            rows = await self._db.read(schedules.unsettled_firings)
            self._open = {(row["schedule_id"], row["slot"]) for row in rows}
            self._asked = True
        for slot in sorted(self._open, key=lambda found: found[1]):
            await self._settle(slot, now)

    async def _settle(self, slot: Slot, now: datetime) -> None:
        firing = await self._db.glance(schedules.get_firing, *slot)
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
            _log.warning("%s cannot be started now and will be later: %s", slot[0], error.message)
            self._retries[slot] = (tries, time.monotonic() + _PATIENCE_S)
            return
        except KapelleError as error:
            await self._db.write(transitions.not_started, *slot, error.with_hint, now)
        except Exception as error:
            _log.exception("%s could not be started", slot[0])
            if tries + 1 < _TRIES:
                self._retries[slot] = (tries + 1, time.monotonic() + _PATIENCE_S * 2**tries)
                return
            problem = f"an error ended its start {_TRIES} times: {type(error).__name__}: {error}"
            await self._db.write(transitions.not_started, *slot, problem, now)
        else:
            await self._db.write(transitions.started, *slot, subject, now)
            failpoint("scheduler_after_record")
        self._retries.pop(slot, None)
        self._open.discard(slot)
        await self._drop_secrets(slot[0])

    async def _subject(self, slot: Slot) -> str:
        """What a slot starts or, before a crash, has started."""
        schedule_id, moment = slot
        key = transitions.key_of(schedule_id, moment)
        known = await self._db.read(schedules.subject_of_key, key)
        if known is not None:
            return known
        schedule = await self._db.read(schedules.row, schedule_id)
        spec = self._secrets.whole(schedule_id, schedule["spec"])
        return await self._start_work(schedule["kind"], spec, key, schedule_id)

    async def _drop_secrets(self, *schedule_ids: str) -> None:
        """Delete the values of those that have ended, once nothing of theirs is being started."""
        if not schedule_ids:
            return
        wanted = await self._db.read(schedules.open_ones, schedule_ids)
        wanted |= {schedule_id for schedule_id, _ in self._open}
        for schedule_id in set(schedule_ids) - wanted:
            self._secrets.forget(schedule_id)
