"""Periodic duties: backups, removal of orphans, and deletion of what is old."""

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
from kapelle.engine.merge import clear_aside
from kapelle.engine.parts import Parts
from kapelle.engine.processes.container import end_left_commands, remove_containers
from kapelle.engine.processes.shares import remove_unused
from kapelle.home import write_private
from kapelle.runner.pack import SUFFIX
from kapelle.secrets.specs import REQUEST_AGE_S
from kapelle.store import attempts, backup, processes
from kapelle.store import work as work_queries

_log = logging.getLogger("kapelle.upkeep")
_ROUND_S = 60.0
# All directories are scanned in the first rounds, and then once an hour.
_FIRST_ROUNDS = 5
_EVERY_ROUNDS = 60
_TIDY_ROUNDS = 24 * 60


async def upkeep(parts: Parts) -> None:
    """Run the duties of the home until cancelled."""
    duties = Upkeep(parts)
    while True:
        # With a wrong database, all agents and worktrees would look like orphans.
        if parts.db.problem is None:
            await duties.round()
        await asyncio.sleep(_ROUND_S)


class Upkeep:
    """The duties of one daemon. The failure of one duty does not stop the others."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._setbacks = archive.Setbacks()
        self._pack_setbacks = archive.Setbacks()
        self._rounds = 0

    async def round(self) -> None:
        """Run each duty once; log a failure and retry in the next round."""
        parts = self._parts
        setbacks = self._setbacks
        number = self._rounds
        self._rounds += 1
        await _run_duty("the backup", _back_up, parts)
        await _run_duty("the reserve", asyncio.to_thread, parts.home.keep_reserve)
        await _run_duty("shortening the log", asyncio.to_thread, shorten, parts.home.log)
        # Only a crash or a restored backup leaves orphans, and they exist when a daemon starts.
        # Scanning 100,000 directories takes seconds, so it is done rarely after that.
        if number < _FIRST_ROUNDS or number % _EVERY_ROUNDS == 0:
            await _run_duty("stopping processes", stop_left_processes, parts)
            await _run_duty("finding worktrees", put_away_left_worktrees, parts, setbacks)
        await _run_duty("ending commands in containers", end_left_commands, parts)
        await _run_duty("removing containers", remove_containers, parts)
        await _run_duty("dropping secrets", drop_unused_secrets, parts)
        if number % _EVERY_ROUNDS == 0:
            await _run_duty("removing layers", remove_layers, parts)
        await _run_duty("packing attempts", archive.pack_ended, parts, self._pack_setbacks)
        await _run_duty("archiving", self._archive, number)
        await _run_duty("forgetting what is old", archive.forget_old, parts, setbacks)
        if number % _TIDY_ROUNDS == 0:
            await _run_duty("forgetting environments", forget_shells, parts)
            await _run_duty("deleting old output", archive.delete_outputs, parts)
            await _run_duty("tidying", parts.workspaces.tidy)
            await _run_duty("packing objects", archive.pack_objects, parts)

    async def _archive(self, number: int) -> None:
        """Remove merged worktrees and archive old work; if the disk is low, all merged work."""
        parts = self._parts
        now = datetime.now(UTC)
        due = archive.Due.by(parts.settings().upkeep, now)
        # At twice the floor, it will not take long until no attempt can start.
        floor = parts.settings().limits.min_free_disk_mb * 1_000_000
        is_disk_low = shutil.disk_usage(parts.home.root).free < 2 * floor
        if not is_disk_low and number % _EVERY_ROUNDS:
            return
        await archive.put_away_merged(parts, self._setbacks)
        if is_disk_low:
            due = due._replace(merged=now)
        await archive.archive_old(parts, self._setbacks, due)


async def _run_duty(name: str, duty: Callable[..., Awaitable[object]], *args: object) -> None:
    try:
        await duty(*args)
    except KapelleError as error:
        _log.warning("%s failed and will be tried again: %s", name, error.message)
    except Exception:
        _log.exception("%s failed and will be tried again", name)


async def _back_up(parts: Parts) -> None:
    home = parts.home
    settings = parts.settings().backup
    # The age is read from disk, since a daemon may live shorter than the interval.
    if parts.db.is_sqlite and not backup.has_recent(home.backups, settings.every_s):
        await parts.db.back_up(settings.grades)


async def remove_layers(parts: Parts) -> None:
    """Remove directories of confined processes that no workspace and no process uses any more."""
    await asyncio.to_thread(remove_unused, parts.home, set(parts.live))


_MOST_BYTES = 20_000_000
_KEPT_BYTES = 2_000_000


def shorten(log: Path) -> bool:
    """Move the end of a log that grew too large to <log>.1, and empty the log.

    Returns whether the log was emptied. Only a log that is this process's own stderr is touched.
    """
    try:
        status = log.stat()
        own = os.fstat(2)
        # A writer that does not append would leave a hole before its next line.
        appends = fcntl.fcntl(2, fcntl.F_GETFL) & os.O_APPEND
    except OSError:
        return False
    if not os.path.samestat(status, own) or not appends or status.st_size <= _MOST_BYTES:
        return False
    with log.open("r+b") as stream:
        stream.seek(-_KEPT_BYTES, os.SEEK_END)
        tail = stream.read()
        write_private(log.with_name(f"{log.name}.1"), tail[tail.find(b"\n") + 1 :])
        stream.truncate(0)
    return True


# Only while an attempt is prepared may its process directory be newer than its row.
_ATTEMPT_AGE_S = 60.0


async def stop_left_processes(parts: Parts) -> None:
    """End agents without a row, as after a restored backup, and checks of runs that do not run.

    Their output is kept.
    """
    rows = await parts.db.read(processes.list_of_ended_runs)
    reasons = {parts.process(row).directory: f"{row['owner']} is not under way" for row in rows}
    places = {
        parts.home.attempts: attempts.load_ids,
        parts.home.processes: processes.load_directories,
    }
    for place, read_names in places.items():
        # Directories first: a process is stored before its directory is created.
        names = await asyncio.to_thread(os.listdir, place)
        present = {name for name in names if not name.endswith(SUFFIX)}
        unknown = present - await parts.db.read(read_names)
        reasons |= {place / name: f"{name} is in no database" for name in unknown}
    # In a thread: there may be very many directories.
    for process_dir in await asyncio.to_thread(_list_unfinished, reasons):
        _log.warning("ending a process: %s", reasons[process_dir])
        parts.runner.stop(process_dir, reasons[process_dir])


def _list_unfinished(directories: Iterable[Path]) -> list[Path]:
    """Return the process directories without an end, except new ones."""
    limit = time.time() - _ATTEMPT_AGE_S
    unfinished = []
    for process_dir in directories:
        with suppress(FileNotFoundError, NotADirectoryError):  # unclaimed, or deleted meanwhile
            is_old = (process_dir / "claim").stat().st_mtime < limit
            if is_old and not (process_dir / "exit.json").exists():
                unfinished.append(process_dir)
    return unfinished


async def put_away_left_worktrees(parts: Parts, setbacks: archive.Setbacks) -> None:
    """Remove worktrees that no longer belong to open work.

    These are worktrees of tasks without a row (their content is kept under a ref), of merges that a
    crash cut short, with their processes, and of archived work whose removal a crash prevented.
    """
    # Worktrees first: a task is stored before its worktree, so one without a row is an orphan.
    present = await parts.workspaces.traces()
    archived_at = await parts.db.read(work_queries.load_archive_times, sorted(present))
    unknown = present - archived_at.keys() - parts.live.keys()

    async def put_away(owner: str) -> None:
        if owner in unknown:
            await clear_aside(parts, owner)
            _log.warning("removed the worktree of the unknown task %s", owner)
        # Look again: earlier removals may have taken a while.
        elif _list_long_archived(await parts.db.glance(work_queries.load_archive_times, [owner])):
            await parts.workspaces.discard(owner)
            _log.warning("removed the worktree of the archived %s", owner)

    await setbacks.each(sorted(unknown.union(_list_long_archived(archived_at))), put_away)


async def drop_unused_secrets(parts: Parts) -> None:
    """Delete the secrets of tasks and runs that were never stored, or that are archived."""
    owners = await asyncio.to_thread(parts.secrets.owners, "task", "run")
    archived_at = await parts.db.read(work_queries.load_archive_times, owners)
    for owner in {*owners} - {*archived_at} | {*_list_long_archived(archived_at)}:
        parts.secrets.forget(owner)


async def forget_shells(parts: Parts) -> None:
    """Delete old environments that no remaining work uses."""
    if old := await asyncio.to_thread(parts.secrets.old_shells):
        for digest in {*old} - await parts.db.read(work_queries.list_shells_in_use, old):
            parts.secrets.forget(f"shell_{digest}")


def _list_long_archived(archived_at: dict[str, datetime | None]) -> list[str]:
    """Return the owners whose archiving no request can still be working on."""
    limit = datetime.now(UTC) - timedelta(seconds=REQUEST_AGE_S)
    return [owner for owner, moment in archived_at.items() if moment and moment < limit]
