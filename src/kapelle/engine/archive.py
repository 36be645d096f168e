"""Archive ended work, pack the files of ended attempts, and delete what is too old."""

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
from kapelle.store.rows import update_work
from kapelle.store.work import list_archivable

_log = logging.getLogger("kapelle.upkeep")
_AT_A_TIME = 100
_MOST = 1_000_000
_ARCHIVED_AT_A_TIME = 5_000
_PACKED_AT_A_TIME = 2_000


class Setbacks:
    """Runs duties for tasks and runs; skips those whose duty failed recently."""

    def __init__(self, retry_after_s: float = 3600.0) -> None:
        self._retry_after_s = retry_after_s
        self._failed: dict[str, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._failed)

    async def each(self, owners: Iterable[str], duty: Callable[[str], Awaitable[None]]) -> None:
        """Run a duty for each owner. A failure is logged once and stops no other."""
        for owner in owners:
            at, earlier = self._failed.get(owner, (0.0, None))
            if earlier is not None and time.monotonic() - at < self._retry_after_s:
                continue
            try:
                await duty(owner)
            except (KapelleError, OSError, ValueError) as error:
                if isinstance(error, KapelleError):
                    reason = error.with_hint
                else:
                    reason = str(error)
                if reason != earlier:
                    _log.warning("%s stays: %s", owner, reason)
                self._failed[owner] = (time.monotonic(), reason)
            else:
                self._failed.pop(owner, None)


async def archive_work(parts: Parts, work_id: str) -> Task | Run:
    """Archive an ended task or run. Raises Conflict if it has not ended."""
    if is_id("run", work_id):
        return await archive_run(parts, work_id)
    return await archive_task(parts, work_id)


async def archive_task(parts: Parts, text: str) -> Task:
    """Archive an ended task: remove its worktree, keep its content under a ref."""
    task = await parts.db.write(archive, tasks.get, text)
    await _discard(parts, task, undo=task.archived_at is None)
    return await parts.db.read(tasks.get, task.id)


async def archive_run(parts: Parts, text: str) -> Run:
    """Archive an ended run with its tasks: remove worktrees, keep their content."""
    run = await parts.db.write(archive, runs.get, text)
    for task_id in await parts.db.read(runs.list_ended_tasks, run.id):
        with suppress(Conflict):  # it was resumed meanwhile
            await archive_task(parts, task_id)
    # The first of a family is the run itself; each run archives its own children.
    for child in (await parts.db.read(runs.list_family, run.id))[1:]:
        if (await parts.db.read(runs.load_row, child))["parent_id"] == run.id:
            await archive_run(parts, child)
    await _discard(parts, run, undo=run.archived_at is None)
    return await parts.db.read(runs.get, run.id)


async def _discard(parts: Parts, work: Task | Run, *, undo: bool = False) -> None:
    """Remove the worktree and the secrets of archived work; on failure, undo the archiving."""
    try:
        if work.workspace.kind is WorkspaceKind.WORKTREE and work.workspace.owner is None:
            # The row has everything that is needed to show the work later.
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
    is_squashed: bool = False,
) -> None:
    """Remove worktrees of merged work, and branches whose content is in a base.

    The base is that of the work or `into`; squashed means that it holds the content as other
    commits. Failures are retried later.
    """
    worktrees = await parts.db.read(tasks.list_merged_worktrees, of)
    if of:
        present = set(worktrees)
    else:
        present = set(await parts.workspaces.traces())

    async def put_away(owner: str) -> None:
        branch, base = worktrees[owner]
        # Open work that is to be merged into the branch still needs it.
        if await parts.db.read(tasks.is_pending_base, branch):
            return
        # Look again: earlier removals may have taken a while.
        if owner in await parts.db.read(tasks.list_merged_worktrees, owner):
            await parts.workspaces.put_away_merged(owner, into or base, is_squashed=is_squashed)

    await setbacks.each(sorted(present & worktrees.keys()), put_away)


class Due(NamedTuple):
    """The moments before which work must have ended to be archived, by how it ended.

    None excludes that kind of ending.
    """

    merged: datetime | None
    cancelled: datetime | None = None
    failed: datetime | None = None

    @classmethod
    def by(cls, settings: UpkeepSettings, now: datetime) -> "Due":
        """Return the moments according to the settings."""
        days = (settings.archive_days, settings.archive_days, settings.archive_failed_days)
        return cls(*(now - timedelta(days=some) if some else None for some in days))


async def archive_old(
    parts: Parts, setbacks: Setbacks, due: Due, most: int = _ARCHIVED_AT_A_TIME
) -> list[str]:
    """Archive ended work that is due, and return its ids."""
    archived_ids: list[str] = []

    async def put_away(owner: str) -> None:
        with suppress(Conflict, NotFound):  # it was resumed meanwhile, or it is forgotten
            await archive_work(parts, owner)
            archived_ids.append(owner)

    await setbacks.each(await parts.db.read(list_archivable, *due, most), put_away)
    return archived_ids


async def prune(parts: Parts, due: Due, dry_run: bool) -> tuple[list[str], int, int, int]:
    """Do at once what upkeep does gradually.

    Return the archived ids, the number of packed attempts and runs, and the bytes and inodes that
    this home has freed. A dry run estimates worktrees alone.
    """
    home = parts.home
    if dry_run:
        archivable_ids = await parts.db.read(list_archivable, *due, _MOST)
        worktrees_by_owner = await parts.db.read(tasks.list_merged_worktrees)
        worktrees = [home.worktrees / owner for owner in {*archivable_ids, *worktrees_by_owner}]
        unpacked_count = len(await _list_unpacked(parts, _MOST))
        return archivable_ids, unpacked_count, *await asyncio.to_thread(disk_use, *worktrees)
    places = (home.attempts, home.processes, home.worktrees, home.runs)
    before = await asyncio.to_thread(disk_use, *places)
    await put_away_merged(parts, Setbacks())
    archived_ids = await archive_old(parts, Setbacks(), due, _MOST)
    packed_count = await pack_ended(parts, Setbacks(), _MOST)
    await delete_outputs(parts)
    await pack_objects(parts)
    after = await asyncio.to_thread(disk_use, *places)
    return archived_ids, packed_count, max(0, before[0] - after[0]), max(0, before[1] - after[1])


# After this time, the code that concluded an attempt has no more use for its files.
_PACK_AGE = timedelta(minutes=5)
# More than a day, since the duty runs once a day.
_RECENT = timedelta(days=3)


async def _list_unpacked(parts: Parts, most: int) -> list[str]:
    """Return the ended attempts and runs that still have loose files."""
    home = parts.home
    limit = datetime.now(UTC) - _PACK_AGE
    names = await asyncio.to_thread(os.listdir, home.attempts)
    process_names = await asyncio.to_thread(os.listdir, home.processes)
    loose = {name for name in names if not name.endswith(pack.SUFFIX)}
    loose |= await parts.db.read(processes.find_owners, process_names)
    owners: list[str] = []
    for noun in (attempts, runs):
        owners += await parts.db.read(noun.list_ended, sorted(loose), limit, most)
    return owners


async def pack_ended(parts: Parts, setbacks: Setbacks, most: int = _PACKED_AT_A_TIME) -> int:
    """Pack the process directories of each ended attempt and run into one file each.

    Returns the number of attempts and runs.
    """
    home = parts.home

    async def pack_one(owner: str) -> None:
        of_run = home.runs / owner / "steps"
        if owner.startswith("run_"):
            place = of_run
        else:
            place = home.attempts / owner
        others = {name: one.directory for name, one in (await parts.processes(owner)).items()}
        await asyncio.to_thread(pack.pack, place, others)

    # Some owners may be skipped, so read more than are packed at a time.
    owners = await _list_unpacked(parts, most + len(setbacks))
    await setbacks.each(owners, pack_one)
    return len(owners)


async def pack_objects(parts: Parts) -> None:
    """Pack the loose objects of recent worktrees in their repositories."""
    since = datetime.now(UTC) - _RECENT
    for directory in await parts.db.read(tasks.list_worktree_directories, since):
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
    """Delete a batch of work that ended too long ago; skip work that cannot be deleted."""
    days = parts.settings().upkeep.retention_days
    if not days:
        return
    limit = datetime.now(UTC) - timedelta(days=days)
    # Some owners may be skipped, so read more than are deleted at a time.
    owners = await parts.db.read(tasks.list_ended_before, limit, _AT_A_TIME + len(setbacks))
    await setbacks.each(owners, lambda task_id: forget_task(parts, task_id, limit))
    owners = await parts.db.read(runs.list_ended_before, limit, _AT_A_TIME + len(setbacks))
    await setbacks.each(owners, partial(_forget_run, parts))
    await parts.db.write(schedules.delete_ended, limit, _AT_A_TIME)
    await parts.db.write(events.delete_oldest, limit, _EVENTS_AT_A_TIME)


async def forget_task(parts: Parts, task_id: str, limit: datetime) -> None:
    """Delete a task with everything that belongs to it, unless it was resumed meanwhile."""

    def put_away(connection: Connection) -> Task | None:
        """Archive the task if it has still ended, so that nobody can resume it."""
        task = tasks.get(connection, task_id)
        has_ended = task.status in FINAL and task.ended_at is not None and task.ended_at < limit
        if has_ended:
            return archive(connection, tasks.get, task_id)
        return None

    # The row goes last: after a crash, the next round finds it and deletes the rest.
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
    """Delete the processes beside the agent, with their output."""
    for process in (await parts.processes(owner)).values():
        await asyncio.to_thread(shutil.rmtree, process.directory, True)
    await parts.db.write(processes.delete, owner)


async def _forget_run(parts: Parts, run_id: str) -> None:
    """Delete a run. Runs are never resumed after this age; tasks are deleted separately."""
    await _discard(parts, await parts.db.read(runs.get, run_id))
    await asyncio.to_thread(shutil.rmtree, parts.home.runs / run_id, True)
    await forget_processes(parts, run_id)
    await parts.db.write(runs.delete, run_id)
