"""Locks on paths: who holds which, who waits for them in order, and deadlock detection.

A lock is in the database before its owner learns of it. Time is monotonic, because the wall clock
may jump; after a restart of the daemon the time of a lock starts anew.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.agents.tools import list_written_paths
from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, LimitReached
from kapelle.domain.lock import (
    MAX_GLOBS,
    WHOLE,
    Lock,
    LocksView,
    covers,
    has_conflict,
    is_glob,
    normalize_path,
)
from kapelle.domain.states import AttemptStatus
from kapelle.domain.text import relocate_path
from kapelle.engine.background import repeat
from kapelle.store import locks
from kapelle.store.database import Database
from kapelle.workspaces import checkouts_around

PERSON = "person"
# An owner that waits loses its place unless it asks again within this time.
PATIENCE_S = 30.0
_SWEEP_S = 5.0
_MOST = 500
_ENDS = [f"attempt.{status}" for status in AttemptStatus if status != AttemptStatus.RUNNING]
_log = logging.getLogger("kapelle.locks")


@dataclass(eq=False)
class PathClaim:
    """Paths that an owner waits for, or one path that an owner holds."""

    checkout: str
    paths: tuple[str, ...]
    owner: str
    task_id: str | None = None
    reason: str | None = None
    ttl_s: float = 600.0
    taken_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    until: float = 0.0  # by the clock: when the lock, or the place in the queue, expires
    # The tasks that started its task, directly or not: they wait for it.
    parents: frozenset[str] = frozenset()
    renews: "PathClaim | None" = None  # the earlier hold that this one replaces
    asks: int = 0  # how many calls are waiting for it now
    granted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.task_id or "a person"

    @property
    def row(self) -> dict[str, Any]:
        names = ("checkout", "owner", "task_id", "reason", "ttl_s", "taken_at")
        return {name: getattr(self, name) for name in names} | {"path": self.paths[0]}

    def is_in_way_of(self, other: "PathClaim") -> bool:
        apart = self.owner == other.owner or self.checkout != other.checkout
        return not apart and has_conflict(self.paths, other.paths)

    def is_same(self, other: "PathClaim") -> bool:
        if (self.owner, self.checkout) != (other.owner, other.checkout):
            return False
        return {*self.paths} == {*other.paths}


class LockManager:
    """The locks of one daemon."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._held: list[PathClaim] = []
        self._queue: list[PathClaim] = []
        # How often an owner was refused a path that another owner holds.
        self.refusals = Counter[tuple[str, str]]()

    async def load(self) -> None:
        """Reload the locks that were held before the restart."""
        for row in await self._db.read(locks.list_all):
            values = {name: row[name] for name in row if name != "path"}
            until = self._clock() + row["ttl_s"]
            self._held.append(PathClaim(paths=(row["path"],), until=until, **values))

    async def take(self, request: PathClaim, timeout_s: float) -> LocksView:
        """Hold all of the paths, or wait for them up to timeout_s.

        Raises Conflict in a deadlock, and LimitReached for too many paths. If the database fails,
        the owner keeps the locks that it held before.
        """
        await self.sweep()
        theirs = (one.paths for one in (*self._held, *self._queue) if one.owner == request.owner)
        own = {*request.paths}.union(*theirs)
        if len(own) > _MOST:
            raise LimitReached(f"Limit of {_MOST} locks reached.", hint="Lock a folder as a whole.")
        # Globs are compared with each other in every step, so there may be only few.
        if sum(map(is_glob, own)) > MAX_GLOBS:
            raise LimitReached(
                f"Limit of {MAX_GLOBS} globs reached.", hint="Lock a folder as a whole."
            )
        # A repeated call joins the claim that is waiting already, and keeps its place.
        claim = next((other for other in self._queue if other.is_same(request)), request)
        claim.asks += 1
        if claim is request:
            self._queue.append(claim)
        try:
            self._advance()
            if circle := self._find_deadlock(claim, claim.owner, set()):
                self._queue.remove(claim)
                text = f"Deadlock: {'; '.join(circle)}."
                raise Conflict(text, hint="Release your locks, then take all paths at once.")
            if not claim.granted.is_set() and timeout_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await claim.granted.wait()
        finally:
            # Also after a cancelled call: a claim that nobody waits for loses its place soon.
            claim.asks -= 1
            claim.until = max(claim.until, self._clock() + (PATIENCE_S if timeout_s else 0.0))
        # The holds of this claim share its event, also if the claim was joined by several calls.
        holds = [hold for hold in self._held if hold.granted is claim.granted]
        if not holds:
            in_way = [self._view(other) for other in self._list_blockers(claim)]
            await self.sweep()
            return LocksView(held=False, locks=[], waiting_for=in_way)
        try:
            await self._db.write(locks.take, [hold.row for hold in holds])
        except KapelleError:
            # The owner keeps its earlier locks for their remaining time.
            dropped = [hold for hold in self._held if hold in holds]
            renewed = [hold.renews for hold in dropped if hold.renews]
            self._held = [hold for hold in self._held if hold not in dropped] + renewed
            self._advance()
            raise
        for hold in holds:
            hold.renews = None
        return LocksView(held=True, locks=[self._view(hold) for hold in holds])

    async def release(self, checkout: str, paths: Sequence[str], owner: str | None) -> list[Lock]:
        """Release an owner's locks in a checkout: the named paths, or all of them.

        Without an owner, the locks of every owner are released.
        """

        def matches(claim: PathClaim) -> bool:
            theirs = claim.checkout == checkout and owner in {None, claim.owner}
            return theirs and (not paths or {*claim.paths} <= {*paths})

        released = [hold for hold in self._held if matches(hold)]
        self._queue = [claim for claim in self._queue if claim.asks or not matches(claim)]
        await self._drop(released, "released" if owner else "released by a person")
        values = {"status": "released", "left_s": 0.0}
        return [self._view(hold).model_copy(update=values) for hold in released]

    def in_way_of(self, checkout: str, paths: Sequence[str], owner: str) -> Lock | None:
        """Return a lock of another owner on one of the paths."""
        request = PathClaim(checkout, tuple(paths), owner)
        now = self._clock()
        holds = (hold for hold in self._held if hold.until > now)
        return next((self._view(hold) for hold in holds if hold.is_in_way_of(request)), None)

    def in_way_of_tool(
        self, arguments: Mapping[str, object], directory: str, checkout: str, owner: str
    ) -> Lock | None:
        """Return a lock of another owner on a path that an agent's tool evidently writes."""
        paths = []
        for path in list_written_paths(arguments):
            if path == WHOLE or (is_glob(path) and ".." in path.split("/")):
                paths.append(WHOLE)
                continue
            with suppress(InvalidInput, ValueError):  # outside of the checkout, or not a path
                paths.append(real_path(path, directory, checkout))
        return self.in_way_of(checkout, paths, owner)

    def list_locks(self, checkout: str | None = None) -> list[Lock]:
        """Return every lock that is held, then the waiting claims in order."""
        claims = [*self._held, *self._queue]
        return [self._view(claim) for claim in claims if checkout in {None, claim.checkout}]

    def relocate(self, old: str, new: str) -> None:
        """Follow a moved repository; the caller changes the rows."""
        for claim in (*self._held, *self._queue):
            claim.checkout = relocate_path(claim.checkout, old, new)

    async def run(self) -> None:
        """Sweep at the end of every attempt and periodically, until cancelled."""
        await repeat(_log, self.sweep, self._db.watch(*_ENDS), _SWEEP_S)

    async def sweep(self) -> None:
        """Release locks of ended attempts and locks that were not renewed in time."""
        owners = {claim.owner for claim in (*self._held, *self._queue)} - {PERSON}
        # An idle daemon asks nothing of the database.
        if owners:
            dead = await self._db.read(locks.find_ended_owners, sorted(owners))
        else:
            dead = set[str]()
        now = self._clock()
        self._queue = [
            claim
            for claim in self._queue
            if claim.owner not in dead and (claim.asks or claim.until > now)
        ]
        expired_holds = [
            hold for hold in self._held if hold.until <= now and hold.owner not in dead
        ]
        await self._drop(expired_holds, "expired")
        await self._drop([hold for hold in self._held if hold.owner in dead], "its attempt ended")
        self._advance()

    async def _drop(self, holds: Sequence[PathClaim], why: str) -> None:
        self._held = [hold for hold in self._held if hold not in holds]
        self._advance()
        if holds:
            await self._db.write(locks.release, [hold.row for hold in holds], why)

    def _advance(self) -> None:
        """Give every path to the first claim in the queue that nothing blocks."""
        for claim in [*self._queue]:
            if not claim.asks or self._list_blockers(claim):
                continue
            self._queue.remove(claim)
            claim.until = self._clock() + claim.ttl_s
            holds = [replace(claim, paths=(path,)) for path in claim.paths]
            for hold in holds:
                for earlier in filter(hold.is_same, self._held):
                    # A renewal never shortens a lock and never loses its reason.
                    last = max(earlier, hold, key=lambda lock: lock.until)
                    hold.reason = hold.reason or earlier.reason
                    hold.until = last.until
                    hold.ttl_s = last.ttl_s
                    hold.renews = earlier
            self._held = [hold for hold in self._held if not any(map(hold.is_same, holds))] + holds
            claim.granted.set()

    def _list_blockers(self, claim: PathClaim) -> list[PathClaim]:
        """Return the claims that a claim waits for: holders, and claims before it in the queue.

        Paths that the owner holds already are not waited for.
        """
        own = {
            hold.paths[0]
            for hold in self._held
            if hold.owner == claim.owner and hold.checkout == claim.checkout
        }
        missing = [path for path in claim.paths if not any(covers(hold, path) for hold in own)]
        request = replace(claim, paths=tuple(missing))
        if claim in self._queue:
            place = self._queue.index(claim)
        else:
            place = len(self._queue)
        others = [*self._held, *self._queue[:place]]
        return [other for other in others if other.is_in_way_of(request)]

    def _find_deadlock(self, start: PathClaim, owner: str, visited: set[str]) -> list[str]:
        """Return the sentences about a circle of owners that wait for each other; empty without
        one.

        An owner that started a task waits for that task.
        """
        for claim in (claim for claim in self._queue if claim.owner == owner):
            for other in self._list_blockers(claim):
                sentence = f"{claim.name} waits for {', '.join(claim.paths)} after {other.name}"
                if other.owner == start.owner:
                    return [sentence]
                if other.task_id in start.parents and other in self._held:
                    return [sentence, f"{other.name} started {start.name} and waits for it"]
                if other.owner not in visited:
                    visited.add(other.owner)
                    if circle := self._find_deadlock(start, other.owner, visited):
                        return [sentence, *circle]
        return []

    def _view(self, claim: PathClaim) -> Lock:
        if claim.granted.is_set() or claim in self._held:
            status = "held"
        else:
            status = "waiting"
        facts = vars(claim) | {"path": " ".join(claim.paths), "status": status}
        return Lock.model_validate(facts | {"left_s": max(0.0, claim.until - self._clock())})


def checkout_of(directory: str) -> str:
    """Return the top of the checkout around a directory, or the directory itself."""
    tops = checkouts_around(Path(directory))
    return os.path.realpath(tops[0] if tops else directory)


def real_path(path: str, directory: str, checkout: str) -> str:
    """Return a path inside a checkout with its links resolved.

    In a glob, only the part before the first name with a wildcard is resolved. Raises InvalidInput
    for `..` after a wildcard.
    """
    wildcard = next((position for position, letter in enumerate(path) if is_glob(letter)), None)
    if wildcard is None:
        cut = len(path)
    else:
        cut = path.rfind("/", 0, wildcard) + 1
    head = os.path.realpath(os.path.join(directory, path[:cut]))
    rest = path[cut:]
    if ".." in rest.split("/"):
        raise InvalidInput(f"{path} has .. after a wildcard.", hint="Write it without the ..")
    return normalize_path(os.path.join(head, rest), directory, checkout)
