"""Who holds which paths and who waits for them, in order; a deadlock is found as it arises.

What is held is in the database before anybody is told so. Time is counted by a clock that nobody
sets: the wall clock may jump, and after a restart of the daemon a lock's time begins anew.
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

from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, LimitReached
from kapelle.domain.lock import (
    MAX_GLOBS,
    WHOLE,
    Lock,
    LocksView,
    conflicts,
    covers,
    is_glob,
    normalised,
    written,
)
from kapelle.domain.states import AttemptStatus
from kapelle.domain.text import relocated
from kapelle.engine.retry import repeat
from kapelle.store import locks
from kapelle.store.database import Database
from kapelle.workspaces import checkouts_around

PERSON = "person"
# Whoever waits and does not ask again within this time loses its place.
PATIENCE_S = 30.0
_SWEEP_S = 5.0
_MOST = 500
_ENDS = [f"attempt.{status}" for status in AttemptStatus if status != AttemptStatus.RUNNING]
_log = logging.getLogger("kapelle.locks")


@dataclass(eq=False)
class PathClaim:
    """Paths that somebody waits for, or one path that somebody holds."""

    checkout: str
    paths: tuple[str, ...]
    owner: str
    task_id: str | None = None
    reason: str | None = None
    ttl_s: float = 600.0
    taken_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    until: float = 0.0  # by the clock: when its time, or the patience with it, is over
    # The tasks that asked for its task, or for what that is part of: they wait for it.
    parents: frozenset[str] = frozenset()
    renews: "PathClaim | None" = None  # what it takes the place of
    asks: int = 0  # how many calls wait for it now
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
        return not apart and conflicts(self.paths, other.paths)

    def is_same(self, other: "PathClaim") -> bool:
        return (self.owner, self.checkout, {*self.paths}) == (
            other.owner, other.checkout, {*other.paths}
        )  # fmt: skip


class LockManager:
    def __init__(self, db: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._held: list[PathClaim] = []
        self._queue: list[PathClaim] = []
        # How often an owner was kept from what a lock holds.
        self.refused = Counter[tuple[str, str]]()

    async def load(self) -> None:
        """Know again what was held when the daemon before this one ended."""
        for row in await self._db.read(locks.all_held):
            values = {name: row[name] for name in row if name != "path"}
            until = self._clock() + row["ttl_s"]
            self._held.append(PathClaim(paths=(row["path"],), until=until, **values))

    async def take(self, wanted: PathClaim, timeout_s: float) -> LocksView:
        """Hold all of the paths, or wait for that; Conflict where it would wait for itself."""
        await self.sweep()
        theirs = (one.paths for one in (*self._held, *self._queue) if one.owner == wanted.owner)
        own = {*wanted.paths}.union(*theirs)
        for many, most, what in (
            (len(own), _MOST, "locks"), (sum(map(is_glob, own)), MAX_GLOBS, "globs")
        ):  # fmt: skip
            if many > most:
                text = f"One may hold and wait for {most} {what}."
                raise LimitReached(text, hint="Take a folder as a whole.")
        claim = next((known for known in self._queue if known.is_same(wanted)), wanted)
        claim.asks += 1
        if claim is wanted:
            self._queue.append(claim)
        try:
            self._advance()
            if circle := self._circle(claim, claim.owner, set()):
                self._queue.remove(claim)
                text = f"Deadlock: {'; '.join(circle)}."
                raise Conflict(text, hint="Release what you hold, then take all of it at once.")
            if not claim.granted.is_set() and timeout_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await claim.granted.wait()
        finally:
            claim.asks -= 1
            claim.until = max(claim.until, self._clock() + (PATIENCE_S if timeout_s else 0.0))
        made = [hold for hold in self._held if hold.granted is claim.granted]
        if not made:
            in_way = [self._view(other) for other in self._before(claim)]
            await self.sweep()
            return LocksView(held=False, locks=[], waiting_for=in_way)
        try:
            await self._db.write(locks.take, [hold.row for hold in made])
        except KapelleError:
            # What it held before it holds still, for so long as that was to be.
            lost = [hold for hold in self._held if hold in made]
            kept = [hold.renews for hold in lost if hold.renews]
            self._held = [hold for hold in self._held if hold not in lost] + kept
            self._advance()
            raise
        for hold in made:
            hold.renews = None
        return LocksView(held=True, locks=[self._view(hold) for hold in made])

    async def release(self, checkout: str, paths: Sequence[str], owner: str | None) -> list[Lock]:
        """Release an owner's locks in a checkout, all of them without paths; without an owner,
        whoever's they are."""

        def is_meant(claim: PathClaim) -> bool:
            theirs = claim.checkout == checkout and owner in {None, claim.owner}
            return theirs and (not paths or {*claim.paths} <= {*paths})

        gone = [hold for hold in self._held if is_meant(hold)]
        self._queue = [claim for claim in self._queue if claim.asks or not is_meant(claim)]
        await self._drop(gone, "released" if owner else "released by a person")
        over = {"status": "released", "left_s": 0.0}
        return [self._view(hold).model_copy(update=over) for hold in gone]

    def in_way_of(self, checkout: str, paths: Sequence[str], owner: str) -> Lock | None:
        """A lock of somebody else on one of the paths."""
        wanted = PathClaim(checkout, tuple(paths), owner)
        now = self._clock()
        held = (hold for hold in self._held if hold.until > now)
        return next((self._view(hold) for hold in held if hold.is_in_way_of(wanted)), None)

    def in_way_of_tool(
        self, given: Mapping[str, object], directory: str, checkout: str, owner: str
    ) -> Lock | None:
        """A lock of somebody else on what a tool of an agent would evidently write."""
        paths = []
        for path in written(given):
            if path == WHOLE or (is_glob(path) and ".." in path.split("/")):
                paths.append(WHOLE)
                continue
            with suppress(InvalidInput, ValueError):  # what is elsewhere, or no path
                paths.append(real_path(path, directory, checkout))
        return self.in_way_of(checkout, paths, owner)

    def known(self, checkout: str | None = None) -> list[Lock]:
        """Every lock that is held, then those that are waited for, in order."""
        claims = [*self._held, *self._queue]
        return [self._view(claim) for claim in claims if checkout in {None, claim.checkout}]

    def relocate(self, old: str, new: str) -> None:
        """Follow a repository that was moved; its rows are changed by the caller."""
        for claim in (*self._held, *self._queue):
            claim.checkout = relocated(claim.checkout, old, new)

    async def run(self) -> None:
        """Sweep whenever an attempt ends and now and then, until cancelled."""
        await repeat(_log, self.sweep, self._db.watch(*_ENDS), _SWEEP_S)

    async def sweep(self) -> None:
        """Release what nobody can hold any more: of ended attempts, and what was not renewed."""
        owners = {claim.owner for claim in (*self._held, *self._queue)} - {PERSON}
        if owners:
            dead = await self._db.read(locks.ended, sorted(owners))
        else:
            dead = set[str]()
        now = self._clock()
        self._queue = [
            claim
            for claim in self._queue
            if claim.owner not in dead and (claim.asks or claim.until > now)
        ]
        over = [hold for hold in self._held if hold.until <= now and hold.owner not in dead]
        await self._drop(over, "its time was up")
        await self._drop([hold for hold in self._held if hold.owner in dead], "its attempt ended")
        self._advance()

    async def _drop(self, gone: Sequence[PathClaim], why: str) -> None:
        self._held = [hold for hold in self._held if hold not in gone]
        self._advance()
        if gone:
            await self._db.write(locks.release, [hold.row for hold in gone], why)

    def _advance(self) -> None:
        """Give every path to the first who waits for it and has nobody in the way."""
        for claim in [*self._queue]:
            if not claim.asks or self._before(claim):
                continue
            self._queue.remove(claim)
            claim.until = self._clock() + claim.ttl_s
            made = [replace(claim, paths=(path,)) for path in claim.paths]
            for hold in made:
                for known in filter(hold.is_same, self._held):
                    # It is renewed: nothing that was said before is lost.
                    last = max(known, hold, key=lambda one: one.until)
                    hold.reason = hold.reason or known.reason
                    hold.until = last.until
                    hold.ttl_s = last.ttl_s
                    hold.renews = known
            self._held = [hold for hold in self._held if not any(map(hold.is_same, made))] + made
            claim.granted.set()

    def _before(self, claim: PathClaim) -> list[PathClaim]:
        """Whom it waits for: holders, and whoever came before it. What it has already it keeps."""
        own = {hold.paths[0] for hold in self._held if hold.owner == claim.owner
               and hold.checkout == claim.checkout}  # fmt: skip
        left = [path for path in claim.paths if not any(covers(hold, path) for hold in own)]
        wanted = replace(claim, paths=tuple(left))
        if claim in self._queue:
            place = self._queue.index(claim)
        else:
            place = len(self._queue)
        others = [*self._held, *self._queue[:place]]
        return [other for other in others if other.is_in_way_of(wanted)]

    def _circle(self, start: PathClaim, owner: str, seen: set[str]) -> list[str]:
        """The sentences of a circle of owners of whom each waits for the next; whoever asked for
        a task waits for that."""
        for claim in (claim for claim in self._queue if claim.owner == owner):
            for other in self._before(claim):
                words = f"{claim.name} waits for {', '.join(claim.paths)} after {other.name}"
                if other.owner == start.owner:
                    return [words]
                if other.task_id in start.parents and other in self._held:
                    return [words, f"{other.name} asked for {start.name} and waits for it"]
                if other.owner not in seen:
                    seen.add(other.owner)
                    if found := self._circle(start, other.owner, seen):
                        return [words, *found]
        return []

    def _view(self, claim: PathClaim) -> Lock:
        if claim.granted.is_set() or claim in self._held:
            status = "held"
        else:
            status = "waiting"
        facts = vars(claim) | {"path": " ".join(claim.paths), "status": status}
        return Lock.model_validate(facts | {"left_s": max(0.0, claim.until - self._clock())})


def checkout_of(directory: str) -> str:
    """The top of the checkout that a directory is in, or the directory."""
    tops = checkouts_around(Path(directory))
    return os.path.realpath(tops[0] if tops else directory)


def real_path(path: str, directory: str, checkout: str) -> str:
    """A path as it stands in a checkout, with what links lead to in their place; of a glob, before
    the first name that has a wildcard."""
    wild = next((place for place, letter in enumerate(path) if is_glob(letter)), None)
    if wild is None:
        cut = len(path)
    else:
        cut = path.rfind("/", 0, wild) + 1
    head = os.path.realpath(os.path.join(directory, path[:cut]))
    rest = path[cut:]
    if ".." in rest.split("/"):
        raise InvalidInput(f"{path} has .. behind a wildcard.", hint="Write it without the ..")
    return normalised(os.path.join(head, rest), directory, checkout)
