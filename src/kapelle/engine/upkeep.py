"""What is done from time to time: backups, putting away orphans, forgetting what is old."""

import asyncio
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.states import FINAL
from kapelle.domain.task import Task
from kapelle.engine.parts import Parts
from kapelle.home import write_private
from kapelle.secrets import REQUEST_AGE_S
from kapelle.store import attempts, backup, events, runs, schedules, tasks
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.upkeep")
_AGAIN_S = 3600.0


class Setbacks:
    """The tasks for which a duty failed, as long as this daemon lives."""

    def __init__(self, again_s: float = _AGAIN_S) -> None:
        self._again_s = again_s
        self._failed: dict[str, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._failed)

    def may_try(self, task_id: str) -> bool:
        """Whether a duty never failed for this task, or did so long enough ago."""
        failed = self._failed.get(task_id)
        return failed is None or time.monotonic() - failed[0] >= self._again_s

    def note(self, task_id: str, error: KapelleError | OSError) -> None:
        told = self._failed.get(task_id)
        reason = _reason(error)
        if told is None or told[1] != reason:
            _log.warning("%s stays: %s", task_id, reason)
        self._failed[task_id] = (time.monotonic(), reason)

    def overcome(self, task_id: str) -> None:
        self._failed.pop(task_id, None)


def _reason(error: KapelleError | OSError) -> str:
    if isinstance(error, KapelleError):
        return f"{error.message} {error.hint or ''}".rstrip()
    return str(error)


# A process directory is younger than its row only while an attempt is being prepared.
_ATTEMPT_AGE_S = 60.0
# How long the checks of a run that has ended are looked for.
_ENDED_LATELY_S = 3600.0
# When this daemon began, and for how long it is a new one: for its first round.
_BEGAN = time.monotonic()
_NEW_S = 60.0


async def stop_unknown_attempts(parts: Parts) -> None:
    """End agents that no row knows of, as after a backup was put back; what they wrote is kept."""
    present = await asyncio.to_thread(_unfinished, parts.home.attempts)
    if not present:
        return
    known = await parts.db.read(attempts.ids)
    for process_dir in present:
        if process_dir.name not in known:
            _log.warning("%s is in no database: its processes are ended", process_dir.name)
            parts.runner.stop(process_dir, "this attempt is in no database")


async def stop_unknown_steps(parts: Parts) -> None:
    """End checks of runs that are not under way, as a crash leaves them or a backup put back."""
    candidates = None
    # Nobody knows how long there was no daemon, so a new one looks into all directories.
    if time.monotonic() - _BEGAN >= _NEW_S:
        since = datetime.now(UTC) - timedelta(seconds=_ENDED_LATELY_S)
        candidates = await parts.db.read(runs.not_running, since)
    present = await asyncio.to_thread(_unfinished_steps, parts.home.runs, candidates)
    known = await parts.db.read(runs.running) if present else []
    for process_dir in present:
        run_id = process_dir.relative_to(parts.home.runs).parts[0]
        if run_id not in known:
            _log.warning("%s is not under way: a check of it is ended", run_id)
            parts.runner.stop(process_dir, "this run is not under way")


def _unfinished_steps(directory: Path, run_ids: Sequence[str] | None) -> list[Path]:
    """The checks of these runs, or of all, that were begun and have not ended."""
    if run_ids is None:
        return _unfinished(directory, "*/steps/**/claim")
    found = [_unfinished(directory / run_id / "steps", "**/claim") for run_id in run_ids]
    return [process_dir for several in found for process_dir in several]


def _unfinished(directory: Path, pattern: str = "*/claim") -> list[Path]:
    return [
        claim.parent
        for claim in _older(directory, pattern, _ATTEMPT_AGE_S)
        if not (claim.parent / "exit.json").exists()
    ]


async def put_away_unknown_worktrees(parts: Parts, setbacks: Setbacks) -> None:
    """Remove worktrees whose task is in no database; their content is kept under a ref."""
    # In this order: a task is stored before its worktree is begun, so what was found has a row.
    found = await parts.workspaces.traces()
    known = await parts.db.read(tasks.ids_of_worktrees) | await parts.db.read(runs.ids_of_worktrees)
    for task_id in sorted(found - known):
        if not setbacks.may_try(task_id):
            continue
        try:
            await parts.workspaces.discard(task_id)
        except (KapelleError, OSError) as error:
            setbacks.note(task_id, error)
        else:
            setbacks.overcome(task_id)
            _log.warning("the worktree of the unknown task %s was put away", task_id)


async def finish_archiving(parts: Parts, setbacks: Setbacks) -> None:
    """Remove the worktrees of archived tasks, where a crash came between the row and that."""
    standing = sorted(await parts.workspaces.standing())
    archived = await parts.db.read(_archived_at_of, standing)
    for task_id, moment in archived.items():
        if not _long_archived(moment) or not setbacks.may_try(task_id):
            continue
        # Asked again, for the removals before this one may have taken a while.
        now = await parts.db.glance(_archived_at_of, [task_id])
        if not _long_archived(now.get(task_id)):
            continue
        try:
            await parts.workspaces.remove(task_id)
        except (KapelleError, OSError) as error:
            setbacks.note(task_id, error)
        else:
            setbacks.overcome(task_id)
            _log.warning("the worktree of %s, which is archived, was put away", task_id)


async def drop_unused_secrets(parts: Parts) -> None:
    """Delete the variables of tasks and runs that were never stored, or that are archived."""
    owners = await asyncio.to_thread(parts.secrets.owners, "task", "run")
    stored = await parts.db.read(_archived_at_of, owners)
    for owner in owners:
        if owner not in stored or _long_archived(stored[owner]):
            parts.secrets.forget(owner)


def _archived_at_of(connection: Connection, ids: list[str]) -> dict[str, datetime | None]:
    """When tasks and runs were archived, those that are stored."""
    return tasks.archived_at_of(connection, ids) | runs.archived_at_of(connection, ids)


def _long_archived(moment: datetime | None) -> bool:
    limit = datetime.now(UTC) - timedelta(seconds=REQUEST_AGE_S)
    return moment is not None and moment < limit


def _older(directory: Path, pattern: str, age_s: float) -> list[Path]:
    limit = time.time() - age_s
    found = []
    for path in directory.glob(pattern):
        try:
            if path.stat().st_mtime < limit:
                found.append(path)
        except FileNotFoundError:
            continue  # its owner was faster
    return found


_AT_A_TIME = 100
_EVENTS_AT_A_TIME = 10_000


def _limit(parts: Parts) -> datetime | None:
    """What ended before this is forgotten; None keeps everything."""
    days = parts.settings().tasks.retention_days
    return datetime.now(UTC) - timedelta(days=days) if days else None


async def forget_old_tasks(parts: Parts, setbacks: Setbacks) -> None:
    """Delete some of the tasks that are too old; those that cannot be are passed over."""
    limit = _limit(parts)
    if limit is None:
        return
    for task_id in await parts.db.read(tasks.ended_before, limit, _AT_A_TIME + len(setbacks)):
        if not setbacks.may_try(task_id):
            continue
        try:
            await forget(parts, task_id, limit)
        except (KapelleError, OSError) as error:
            setbacks.note(task_id, error)
        else:
            setbacks.overcome(task_id)


async def forget_old_runs(parts: Parts, setbacks: Setbacks) -> None:
    """The same for runs, whose tasks are forgotten for themselves."""
    limit = _limit(parts)
    if limit is None:
        return
    for run_id in await parts.db.read(runs.ended_before, limit, _AT_A_TIME + len(setbacks)):
        if not setbacks.may_try(run_id):
            continue
        try:
            run = await parts.db.read(runs.get, run_id)
            if run.workspace.kind is WorkspaceKind.WORKTREE and run.workspace.owner is None:
                await parts.workspaces.discard(run_id)
            await asyncio.to_thread(shutil.rmtree, parts.home.runs / run_id, True)
            parts.secrets.forget(run_id)
            await parts.db.write(runs.delete, run_id)
        except (KapelleError, OSError) as error:
            setbacks.note(run_id, error)
        else:
            setbacks.overcome(run_id)


async def forget_old_history(parts: Parts) -> None:
    """The same for schedules, and for the events of all that is forgotten."""
    limit = _limit(parts)
    if limit is not None:
        await parts.db.write(schedules.delete_ended, limit, _AT_A_TIME)
        await parts.db.write(events.delete_oldest, limit, _EVENTS_AT_A_TIME)


async def forget(parts: Parts, task_id: str, limit: datetime) -> None:
    """Delete a task with all that belongs to it, unless it was taken up again meanwhile."""
    task = await parts.db.write(_put_away, task_id, limit)
    if task is None:
        return
    if task.workspace.kind is WorkspaceKind.WORKTREE and task.workspace.owner is None:
        await parts.workspaces.discard(task_id)
    for attempt in task.attempts:
        await asyncio.to_thread(shutil.rmtree, parts.process_directory(attempt.id), True)
    parts.secrets.forget(task_id)
    await parts.db.write(tasks.delete_archived, task_id)


def _put_away(connection: Connection, task_id: str, limit: datetime) -> Task | None:
    """Archive a task that is still over, so that nobody can take it up again."""
    task = tasks.get(connection, task_id)
    if task.status not in FINAL or task.ended_at is None or task.ended_at >= limit:
        return None
    if task.archived_at is None:
        tasks.update(connection, task_id, archived_at=datetime.now(UTC))
        events.append(connection, "task.archived", task_id, title=task.title)
    return task


_MOST_BYTES = 20_000_000
_KEPT_BYTES = 2_000_000


def shorten(log: Path) -> bool:
    """Move the end of a log that grew too large to <log>.1 and empty it; whether it was done.

    Only a log that is this process's own stderr is touched.
    """
    try:
        named, own = log.stat(), os.fstat(2)
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


_ROUND_S = 60.0
_TIDY_S = 86_400.0
# In which rounds all directories are looked into: the first ones, and one in an hour.
_FIRST_ROUNDS, _EVERY_ROUNDS = 5, 60

Duty = Callable[[], Awaitable[None]]


async def upkeep(parts: Parts) -> None:
    """Look after the home until cancelled."""
    duties = Upkeep(parts)
    while True:
        await duties.round()
        await asyncio.sleep(_ROUND_S)


class Upkeep:
    """The duties of one daemon, each of which is done whatever becomes of the others."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._setbacks = Setbacks()
        self._tidied_at: float | None = None
        self._rounds = 0

    async def round(self) -> None:
        """Do each duty once; one that fails is logged and done again in the next round."""
        parts, setbacks = self._parts, self._setbacks
        await _guarded("the backup", self._back_up)
        await _guarded("shortening the log", self._shorten_log)
        # What only a crash or a restored backup leaves is there when a daemon begins; to look
        # into every directory costs seconds where there are 100,000.
        if self._rounds < _FIRST_ROUNDS or self._rounds % _EVERY_ROUNDS == 0:
            await _guarded("stopping attempts", lambda: stop_unknown_attempts(parts))
            await _guarded(
                "looking for unknown worktrees",
                lambda: put_away_unknown_worktrees(parts, setbacks),
            )
            await _guarded("finishing archives", lambda: finish_archiving(parts, setbacks))
        self._rounds += 1
        await _guarded("stopping checks", lambda: stop_unknown_steps(parts))
        await _guarded("dropping secrets", lambda: drop_unused_secrets(parts))
        await _guarded("forgetting tasks", lambda: forget_old_tasks(parts, setbacks))
        await _guarded("forgetting runs", lambda: forget_old_runs(parts, setbacks))
        await _guarded("forgetting history", lambda: forget_old_history(parts))
        await _guarded("tidying", self._tidy)

    async def _back_up(self) -> None:
        home, settings = self._parts.home, self._parts.settings().backup
        # The age is read from the disk, for daemons may live shorter than the time between two.
        if self._parts.db.is_sqlite and not backup.made_within(home.backups, settings.every_s):
            await asyncio.to_thread(backup.make, home.database, home.backups, settings.keep)

    async def _shorten_log(self) -> None:
        await asyncio.to_thread(shorten, self._parts.home.log)

    async def _tidy(self) -> None:
        if self._tidied_at is None or time.monotonic() - self._tidied_at >= _TIDY_S:
            await self._parts.workspaces.tidy()
            self._tidied_at = time.monotonic()


async def _guarded(name: str, duty: Duty) -> None:
    try:
        await duty()
    except KapelleError as error:
        _log.warning("%s failed and will be tried again: %s", name, error.message)
    except Exception:
        _log.exception("%s failed and will be tried again", name)
