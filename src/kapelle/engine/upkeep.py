"""What is done from time to time: backups, putting away orphans, forgetting what is old."""

import asyncio
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.engine import archive
from kapelle.engine.container import end_left, remove_containers
from kapelle.engine.merge import clear_aside
from kapelle.engine.parts import Parts
from kapelle.home import write_private
from kapelle.runner.pack import SUFFIX
from kapelle.secrets.specs import REQUEST_AGE_S
from kapelle.store import attempts, backup, processes, query

_log = logging.getLogger("kapelle.upkeep")
_ROUND_S = 60.0
# In which rounds all directories are looked into: the first ones, and one in an hour.
_FIRST_ROUNDS = 5
_EVERY_ROUNDS = 60
_TIDY_ROUNDS = 24 * 60


async def upkeep(parts: Parts) -> None:
    """Look after the home until cancelled."""
    duties = Upkeep(parts)
    while True:
        # With a wrong database, agents and worktrees would look as if nobody knew them.
        if parts.db.problem is None:
            await duties.round()
        await asyncio.sleep(_ROUND_S)


class Upkeep:
    """The duties of one daemon, each of which is done whatever becomes of the others."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._setbacks, self._not_packed = archive.Setbacks(), archive.Setbacks()
        self._rounds = 0

    async def round(self) -> None:
        """Do each duty once; one that fails is logged and done again in the next round."""
        parts = self._parts
        setbacks = self._setbacks
        number = self._rounds
        self._rounds += 1
        await _guarded("the backup", _back_up, parts)
        await _guarded("the reserve", asyncio.to_thread, parts.home.keep_reserve)
        await _guarded("shortening the log", asyncio.to_thread, shorten, parts.home.log)
        # What only a crash or a restored backup leaves is there when a daemon begins; to look
        # into every directory costs seconds where there are 100,000.
        if number < _FIRST_ROUNDS or number % _EVERY_ROUNDS == 0:
            await _guarded("stopping processes", stop_left_processes, parts)
            await _guarded("finding worktrees", put_away_left_worktrees, parts, setbacks)
        await _guarded("ending commands in containers", end_left, parts)
        await _guarded("removing containers", remove_containers, parts)
        await _guarded("dropping secrets", drop_unused_secrets, parts)
        await _guarded("packing attempts", archive.pack_ended, parts, self._not_packed)
        await _guarded("archiving", self._archive, number)
        await _guarded("forgetting what is old", archive.forget_old, parts, setbacks)
        if number % _TIDY_ROUNDS == 0:
            await _guarded("forgetting environments", forget_shells, parts)
            await _guarded("deleting old output", archive.delete_outputs, parts)
            await _guarded("tidying", parts.workspaces.tidy)
            await _guarded("packing objects", archive.pack_objects, parts)

    async def _archive(self, number: int) -> None:
        """Put merged worktrees and old work away; where room is scarce, all that is merged."""
        parts = self._parts
        now = datetime.now(UTC)
        due = archive.Due.by(parts.settings().upkeep, now)
        # So little disk is free that soon no attempt will start.
        floor = parts.settings().limits.min_free_disk_mb * 1_000_000
        scarce = shutil.disk_usage(parts.home.root).free < 2 * floor
        if not scarce and number % _EVERY_ROUNDS:
            return
        await archive.put_away_merged(parts, self._setbacks)
        if scarce:
            due = due._replace(merged=now)
        else:
            due = due
        await archive.archive_old(parts, self._setbacks, due)


async def _guarded(name: str, duty: Callable[..., Awaitable[object]], *args: object) -> None:
    try:
        await duty(*args)
    except KapelleError as error:
        _log.warning("%s failed and will be tried again: %s", name, error.message)
    except Exception:
        _log.exception("%s failed and will be tried again", name)


async def _back_up(parts: Parts) -> None:
    home = parts.home
    settings = parts.settings().backup
    # The age is read from the disk, for daemons may live shorter than the time between two.
    if parts.db.is_sqlite and not backup.made_within(home.backups, settings.every_s):
        await parts.db.back_up(settings.grades)


_MOST_BYTES = 20_000_000
_KEPT_BYTES = 2_000_000


def shorten(log: Path) -> bool:
    """Move the end of a log that grew too large to <log>.1 and empty it; whether it was done.

    Only a log that is this process's own stderr is touched.
    """
    try:
        named = log.stat()
        own = os.fstat(2)
        # A writer that does not append would go on at its old place, after a hole.
        appends = fcntl.fcntl(2, fcntl.F_GETFL) & os.O_APPEND
    except OSError:
        return False
    if not os.path.samestat(named, own) or not appends or named.st_size <= _MOST_BYTES:
        return False
    with log.open("r+b") as stream:
        stream.seek(-_KEPT_BYTES, os.SEEK_END)
        tail = stream.read()
        write_private(log.with_name(f"{log.name}.1"), tail[tail.find(b"\n") + 1 :])
        stream.truncate(0)
    return True


# A process directory is younger than its row only while an attempt is being prepared.
_ATTEMPT_AGE_S = 60.0


async def stop_left_processes(parts: Parts) -> None:
    """End agents that no row knows of, as after a backup was put back, and the checks of runs that
    are not under way; what they wrote is kept."""
    rows = await parts.db.read(processes.of_ended_runs)
    left = {parts.process(row).directory: f"{row['owner']} is not under way" for row in rows}
    places = {parts.home.attempts: attempts.ids, parts.home.processes: processes.directories}
    for place, known in places.items():
        # In this order: a process is stored before its directory is made.
        names = await asyncio.to_thread(os.listdir, place)
        present = {name for name in names if not name.endswith(SUFFIX)}
        unknown = present - await parts.db.read(known)
        left |= {place / name: f"{name} is in no database" for name in unknown}
    for process_dir in await asyncio.to_thread(_unfinished, left):
        _log.warning("a process is ended: %s", left[process_dir])
        parts.runner.stop(process_dir, left[process_dir])


def _unfinished(directories: Iterable[Path]) -> list[Path]:
    """Those of these process directories whose process has not ended, except new ones."""
    limit = time.time() - _ATTEMPT_AGE_S
    found = []
    for process_dir in directories:
        with suppress(FileNotFoundError, NotADirectoryError):  # unclaimed, or forgotten meanwhile
            is_old = (process_dir / "claim").stat().st_mtime < limit
            if is_old and not (process_dir / "exit.json").exists():
                found.append(process_dir)
    return found


async def put_away_left_worktrees(parts: Parts, setbacks: archive.Setbacks) -> None:
    """Remove worktrees whose task is in no database, which keeps their content under a ref, those
    of merges that were cut short, with their processes, and those of what is archived, where a
    crash came between the row and that."""
    # In this order: a task is stored before its worktree is begun, so what was found has a row.
    present = await parts.workspaces.traces()
    stored = await parts.db.read(query.archived_at_of, sorted(present))
    unknown = present - stored.keys() - parts.live.keys()

    async def put_away(owner: str) -> None:
        if owner in unknown:
            await clear_aside(parts, owner)
            _log.warning("the worktree of the unknown task %s was put away", owner)
        # Asked again, for the removals before this one may have taken a while.
        elif _long_archived(await parts.db.glance(query.archived_at_of, [owner])):
            await parts.workspaces.discard(owner)
            _log.warning("the worktree of %s, which is archived, was put away", owner)

    await setbacks.each(sorted(unknown.union(_long_archived(stored))), put_away)


async def drop_unused_secrets(parts: Parts) -> None:
    """Delete the variables of tasks and runs that were never stored, or that are archived."""
    owners = await asyncio.to_thread(parts.secrets.owners, "task", "run")
    stored = await parts.db.read(query.archived_at_of, owners)
    for owner in {*owners} - {*stored} | {*_long_archived(stored)}:
        parts.secrets.forget(owner)


async def forget_shells(parts: Parts) -> None:
    """Delete the environments in which nothing was asked for of late that is still there."""
    if old := await asyncio.to_thread(parts.secrets.old_shells):
        for digest in {*old} - await parts.db.read(query.shells_in_use, old):
            parts.secrets.forget(f"shell_{digest}")


def _long_archived(archived_at: dict[str, datetime | None]) -> list[str]:
    """Those whose archiving no request can still be at."""
    limit = datetime.now(UTC) - timedelta(seconds=REQUEST_AGE_S)
    return [owner for owner, moment in archived_at.items() if moment and moment < limit]
