"""Putting away what a crash or a restored backup left without an owner; no work is lost by it."""

import asyncio
import logging
import os
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.engine.parts import Stage
from kapelle.engine.setbacks import Setbacks
from kapelle.store import attempts, runs, tasks
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.upkeep")
# A process directory is younger than its row only while an attempt is being prepared.
_ATTEMPT_AGE_S = 60.0
# How long the checks of a run that has ended are looked for.
_ENDED_LATELY_S = 3600.0
# When this daemon began, and for how long it is a new one: for its first round.
_BEGAN = time.monotonic()
_NEW_S = 60.0
# Longer than any request that submits or archives a task is at work on it.
_REQUEST_AGE_S = 600.0


async def stop_unknown_attempts(stage: Stage) -> None:
    """End agents that no row knows of, as after a backup was put back; what they wrote is kept."""
    present = await asyncio.to_thread(_unfinished, stage.home.attempts)
    if not present:
        return
    known = await stage.db.read(attempts.ids)
    for process_dir in present:
        if process_dir.name not in known:
            _log.warning("%s is in no database: its processes are ended", process_dir.name)
            stage.runner.stop(process_dir, "this attempt is in no database")


async def stop_unknown_steps(stage: Stage) -> None:
    """The same for the checks of runs."""
    ended = await stage.db.read(runs.ended)
    present = await asyncio.to_thread(_unfinished_steps, stage.home.runs, ended)
    known = await stage.db.read(runs.running) if present else []
    for process_dir in present:
        run_id = process_dir.relative_to(stage.home.runs).parts[0]
        if run_id not in known:
            _log.warning("%s is not under way: a check of it is ended", run_id)
            stage.runner.stop(process_dir, "this run is not under way")


def _unfinished_steps(directory: Path, ended: set[str]) -> list[Path]:
    """Those of all runs but the ones that ended long ago: looking into each takes its time."""
    # Nobody knows how long there was no daemon, so a new one looks into all.
    is_new = time.monotonic() - _BEGAN < _NEW_S
    limit = 0.0 if is_new else time.time() - _ENDED_LATELY_S
    found: list[Path] = []
    for path in _directories(directory):
        with suppress(FileNotFoundError):  # it was forgotten meanwhile
            if path.name not in ended or path.stat().st_mtime >= limit:
                found += _unfinished(path / "steps", "**/claim")
    return found


def _directories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []


def _unfinished(directory: Path, pattern: str = "*/claim") -> list[Path]:
    return [
        claim.parent
        for claim in _older(directory, pattern, _ATTEMPT_AGE_S)
        if not (claim.parent / "exit.json").exists()
    ]


async def put_away_unknown_worktrees(stage: Stage, setbacks: Setbacks) -> None:
    """Remove worktrees whose task is in no database; their content is kept under a ref."""
    # In this order: a task is stored before its worktree is begun, so what was found has a row.
    found = await stage.workspaces.traces()
    known = await stage.db.read(tasks.ids_of_worktrees) | await stage.db.read(runs.ids_of_worktrees)
    for task_id in sorted(found - known):
        if not setbacks.may_try(task_id):
            continue
        try:
            await stage.workspaces.discard(task_id)
        except (KapelleError, OSError) as error:
            setbacks.note(task_id, error)
        else:
            setbacks.overcome(task_id)
            _log.warning("the worktree of the unknown task %s was put away", task_id)


async def finish_archiving(stage: Stage, setbacks: Setbacks) -> None:
    """Remove the worktrees of archived tasks, where a crash came between the row and that."""
    standing = sorted(await stage.workspaces.standing())
    archived = await stage.db.read(_archived_at_of, standing)
    for task_id, moment in archived.items():
        if not _long_archived(moment) or not setbacks.may_try(task_id):
            continue
        # Asked again, for the removals before this one may have taken a while.
        now = await stage.db.glance(_archived_at_of, [task_id])
        if not _long_archived(now.get(task_id)):
            continue
        try:
            await stage.workspaces.remove(task_id)
        except (KapelleError, OSError) as error:
            setbacks.note(task_id, error)
        else:
            setbacks.overcome(task_id)
            _log.warning("the worktree of %s, which is archived, was put away", task_id)


async def drop_unused_secrets(stage: Stage) -> None:
    """Delete the variables of tasks and runs that were never stored, or that are archived."""
    paths = await asyncio.to_thread(_older, stage.home.secrets, "task_*.json", _REQUEST_AGE_S)
    paths += await asyncio.to_thread(_older, stage.home.secrets, "run_*.json", _REQUEST_AGE_S)
    stored = await stage.db.read(_archived_at_of, [path.stem for path in paths])
    for path in paths:
        if path.stem not in stored or _long_archived(stored[path.stem]):
            path.unlink(missing_ok=True)


def _archived_at_of(connection: Connection, ids: list[str]) -> dict[str, datetime | None]:
    """When tasks and runs were archived, those that are stored."""
    return tasks.archived_at_of(connection, ids) | runs.archived_at_of(connection, ids)


def _long_archived(moment: datetime | None) -> bool:
    limit = datetime.now(UTC) - timedelta(seconds=_REQUEST_AGE_S)
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
