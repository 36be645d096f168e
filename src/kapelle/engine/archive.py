"""Putting ended work away: archiving it, what merged work need not keep, one file for each ended
attempt, and forgetting what is old."""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kapelle.domain.errors import Conflict, KapelleError, NotFound
from kapelle.domain.ids import is_id
from kapelle.domain.run import Run
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.states import FINAL
from kapelle.domain.task import Task
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.actions import archive
from kapelle.home import disk_use
from kapelle.runner import pack
from kapelle.settings.models import UpkeepSettings
from kapelle.store import attempts, events, processes, runs, schedules, tasks
from kapelle.store.database import Connection
from kapelle.store.query import archivable, update_work

_log = logging.getLogger("kapelle.upkeep")
_AT_A_TIME = 100
_MOST = 1_000_000
_ARCHIVED_AT_A_TIME = 5_000
_PACKED_AT_A_TIME = 2_000


class Setbacks:
    """Does things for tasks and runs; one for which that failed is left alone for a while."""

    def __init__(self, again_s: float = 3600.0) -> None:
        self._again_s = again_s
        self._failed: dict[str, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._failed)

    async def each(self, owners: Iterable[str], duty: Callable[[str], Awaitable[None]]) -> None:
        """Do it for each; the failure of one, which is logged once, keeps no other from it."""
        for owner in owners:
            at, known = self._failed.get(owner, (0.0, None))
            if known is not None and time.monotonic() - at < self._again_s:
                continue
            try:
                await duty(owner)
            except (KapelleError, OSError, ValueError) as error:
                if isinstance(error, KapelleError):
                    reason = error.with_hint
                else:
                    reason = str(error)
                if reason != known:
                    _log.warning("%s stays: %s", owner, reason)
                self._failed[owner] = (time.monotonic(), reason)
            else:
                self._failed.pop(owner, None)


async def archive_work(parts: Parts, work_id: str) -> Task | Run:
    return await (archive_run if is_id("run", work_id) else archive_task)(parts, work_id)


async def archive_task(parts: Parts, text: str) -> Task:
    """Put an ended task away: its worktree is removed, its work kept under a ref."""
    task = await parts.db.write(archive, tasks.get, text)
    await _discard(parts, task, undo=task.archived_at is None)
    return await parts.db.read(tasks.get, task.id)


async def archive_run(parts: Parts, text: str) -> Run:
    """Put an ended run away with its tasks: worktrees are removed, the work is kept."""
    run = await parts.db.write(archive, runs.get, text)
    for task_id in await parts.db.read(runs.ended_tasks, run.id):
        with suppress(Conflict):  # somebody has taken it up again
            await archive_task(parts, task_id)
    for child in (await parts.db.read(runs.family, run.id))[1:]:
        if (await parts.db.read(runs.row, child))["parent_id"] == run.id:
            await archive_run(parts, child)
    await _discard(parts, run, undo=run.archived_at is None)
    return await parts.db.read(runs.get, run.id)


async def _discard(parts: Parts, work: Task | Run, *, undo: bool = False) -> None:
    """Remove the worktree and the secrets of what is archived; where that fails, undo that."""
    try:
        if work.workspace.kind is WorkspaceKind.WORKTREE and work.workspace.owner is None:
            # What its row says is enough to show its work later.
            await parts.workspaces.discard(work.id)
    except (KapelleError, OSError):
        if undo:
            await parts.db.write(update_work, work.id, archived_at=None)
        raise
    parts.secrets.forget(work.id)


async def put_away_merged(
    parts: Parts,
    setbacks: Setbacks,
    of: str | None = None,
    into: str | None = None,
    *,
    squashed: bool = False,
) -> None:
    """Remove worktrees of merged work, and branches that its base, or the branch that it was
    merged into, holds, or has as other commits (squashed); the rest is tried again later."""
    merged = await parts.db.read(tasks.merged_worktrees, of)
    present = merged.keys() if of else await parts.workspaces.traces()

    async def put_away(owner: str) -> None:
        branch, base = merged[owner]
        # What is to be merged into the branch goes before it.
        if await parts.db.read(tasks.is_base, branch):
            return
        # Asked again, for the removals before this one may have taken a while.
        if owner in await parts.db.read(tasks.merged_worktrees, owner):
            await parts.workspaces.put_away_merged(owner, into or base, is_squashed=squashed)

    await setbacks.each(sorted(present & merged.keys()), put_away)


class Due(NamedTuple):
    """Before when work must have ended to be archived, by how it ended; None leaves it alone."""

    merged: datetime | None
    cancelled: datetime | None = None
    failed: datetime | None = None

    @classmethod
    def by(cls, settings: UpkeepSettings, now: datetime) -> "Due":
        days = (settings.archive_days, settings.archive_days, settings.archive_failed_days)
        return cls(*(now - timedelta(days=some) if some else None for some in days))


async def archive_old(
    parts: Parts, setbacks: Setbacks, due: Due, most: int = _ARCHIVED_AT_A_TIME
) -> list[str]:
    """Archive what is due; the ids of what was."""
    done: list[str] = []

    async def put_away(owner: str) -> None:
        with suppress(Conflict, NotFound):  # somebody has taken it up again, or it is forgotten
            await archive_work(parts, owner)
            done.append(owner)

    await setbacks.each(await parts.db.read(archivable, *due, most), put_away)
    return done


async def prune(parts: Parts, due: Due, dry_run: bool) -> tuple[list[str], int, int, int]:
    """Do at once what upkeep does by and by.

    Return what was archived, how many attempts and runs were packed, and the bytes and inodes of
    this home that are free by that. A dry run weighs worktrees alone.
    """
    home = parts.home
    if dry_run:
        found = await parts.db.read(archivable, *due, _MOST)
        merged = await parts.db.read(tasks.merged_worktrees)
        worktrees = [home.worktrees / owner for owner in {*found, *merged}]
        unpacked = len(await _unpacked(parts, _MOST))
        return found, unpacked, *await asyncio.to_thread(disk_use, *worktrees)
    places = (home.attempts, home.processes, home.worktrees, home.runs)
    before = await asyncio.to_thread(disk_use, *places)
    await put_away_merged(parts, Setbacks())
    done = await archive_old(parts, Setbacks(), due, _MOST)
    packed = await pack_ended(parts, Setbacks(), _MOST)
    await delete_outputs(parts)
    await pack_objects(parts)
    after = await asyncio.to_thread(disk_use, *places)
    return done, packed, max(0, before[0] - after[0]), max(0, before[1] - after[1])


# An attempt that ended this long ago is not looked at by whoever concluded it.
_PACK_AGE = timedelta(minutes=5)
# More than a day, for what is done once a day.
_RECENT = timedelta(days=3)


async def _unpacked(parts: Parts, most: int) -> list[str]:
    """Return the attempts and the runs that have ended and have loose files."""
    home = parts.home
    limit = datetime.now(UTC) - _PACK_AGE
    names = await asyncio.to_thread(os.listdir, home.attempts)
    begun = await asyncio.to_thread(os.listdir, home.processes)
    loose = {name for name in names if not name.endswith(pack.SUFFIX)}
    loose |= await parts.db.read(processes.owners, begun)
    found: list[str] = []
    for noun in (attempts, runs):
        found += await parts.db.read(noun.ended_of, sorted(loose), limit, most)
    return found


async def pack_ended(parts: Parts, setbacks: Setbacks, most: int = _PACKED_AT_A_TIME) -> int:
    """Make one file of the process directories of every attempt that has ended, and of those of
    the steps of every such run; return how many attempts and runs that were."""
    home = parts.home

    async def pack_one(owner: str) -> None:
        of_run = home.runs / owner / "steps"
        if owner.startswith("run_"):
            place = of_run
        else:
            place = home.attempts / owner
        beside = {name: one.directory for name, one in (await parts.processes(owner)).items()}
        await asyncio.to_thread(pack.pack, place, beside)

    # More than are packed at a time, for some may have to be passed over.
    found = await _unpacked(parts, most + len(setbacks))
    await setbacks.each(found, pack_one)
    return len(found)


async def pack_objects(parts: Parts) -> None:
    """Pack what worktrees of the last days left as loose objects in their repositories."""
    since = datetime.now(UTC) - _RECENT
    for directory in await parts.db.read(tasks.directories_of_worktrees, since):
        try:
            await parts.workspaces.pack_objects(Path(directory))
        except (KapelleError, OSError) as error:
            _log.warning("the objects of %s stay as they are: %s", directory, error)


async def delete_outputs(parts: Parts) -> None:
    """Delete the packed output of attempts that ended too long ago."""
    days = parts.settings().upkeep.output_days
    home = parts.home

    def delete(before: float) -> None:
        for place, packs in ((home.attempts, "*"), (home.runs, "*/steps*")):
            for path in place.glob(packs + pack.SUFFIX):
                if path.stat().st_mtime < before:
                    path.unlink()

    if days:
        await asyncio.to_thread(delete, time.time() - days * 86_400)


_EVENTS_AT_A_TIME = 10_000


async def forget_old(parts: Parts, setbacks: Setbacks) -> None:
    """Delete some of what ended too long ago; tasks and runs that cannot be are passed over."""
    days = parts.settings().upkeep.retention_days
    if not days:
        return
    limit = datetime.now(UTC) - timedelta(days=days)
    # More than are forgotten at a time, for some may have to be passed over.
    found = await parts.db.read(tasks.ended_before, limit, _AT_A_TIME + len(setbacks))
    await setbacks.each(found, lambda task_id: forget_task(parts, task_id, limit))
    found = await parts.db.read(runs.ended_before, limit, _AT_A_TIME + len(setbacks))
    await setbacks.each(found, partial(_forget_run, parts))
    await parts.db.write(schedules.delete_ended, limit, _AT_A_TIME)
    await parts.db.write(events.delete_oldest, limit, _EVENTS_AT_A_TIME)


async def forget_task(parts: Parts, task_id: str, limit: datetime) -> None:
    """Delete a task with all that belongs to it, unless it was taken up again meanwhile."""

    def put_away(connection: Connection) -> Task | None:
        """Archive it if it is still over, so that nobody can take it up again."""
        task = tasks.get(connection, task_id)
        is_over = task.status in FINAL and task.ended_at is not None and task.ended_at < limit
        if is_over:
            return archive(connection, tasks.get, task_id)
        return None

    task = await parts.db.write(put_away)
    if task is None:
        return
    await _discard(parts, task)
    for attempt in task.attempts:
        await asyncio.to_thread(pack.delete, parts.process_directory(attempt.id))
        await asyncio.to_thread(shutil.rmtree, parts.home.files / attempt.id, True)
        await forget_processes(parts, attempt.id)
    await parts.db.write(tasks.delete_archived, task_id)


async def forget_processes(parts: Parts, owner: str) -> None:
    """Delete the processes beside the agent's, and their output."""
    for process in (await parts.processes(owner)).values():
        await asyncio.to_thread(shutil.rmtree, process.directory, True)
    await parts.db.write(processes.delete, owner)


async def _forget_run(parts: Parts, run_id: str) -> None:
    """Delete a run, which nothing takes up again; its tasks are forgotten for themselves."""
    await _discard(parts, await parts.db.read(runs.get, run_id))
    await asyncio.to_thread(shutil.rmtree, parts.home.runs / run_id, True)
    await forget_processes(parts, run_id)
    await parts.db.write(runs.delete, run_id)
