"""What is done from time to time: backups, putting away orphans, forgetting what is old."""

import asyncio
import logging
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.engine.durable import Durable
from kapelle.engine.stage import Stage
from kapelle.store import attempts, backup, tasks

_log = logging.getLogger("kapelle.upkeep")
_ROUND_S = 60.0
_TIDY_S = 86_400.0
# Long enough that a person who looks into a strange ending still finds the engine's record.
_ENGINE_HISTORY = timedelta(hours=1)
# A run directory is younger than its row only while an attempt is being prepared.
_ORPHAN_AGE_S = 60.0
_AT_A_TIME = 100


async def upkeep(stage: Stage, durable: Durable) -> None:
    """Look after the home until cancelled; a failing round is logged and made again."""
    backed_up, tidied = time.monotonic(), -_TIDY_S
    while True:
        try:
            await _stop_unknown_attempts(stage)
            await _put_away_unknown_worktrees(stage)
            await _forget_old_tasks(stage)
            await durable.forget(datetime.now(UTC) - _ENGINE_HISTORY)
            if time.monotonic() - tidied >= _TIDY_S:
                await stage.workspaces.tidy()
                tidied = time.monotonic()
            settings = stage.settings().backup
            if stage.db.is_sqlite and time.monotonic() - backed_up >= settings.every_s:
                files = [stage.home.database, stage.home.engine_database]
                await asyncio.to_thread(backup.make, files, stage.home.backups, settings.keep)
                backed_up = time.monotonic()
        except Exception:
            _log.exception("a round of upkeep failed and will be made again")
        await asyncio.sleep(_ROUND_S)


async def _stop_unknown_attempts(stage: Stage) -> None:
    """End agents that no row knows of, as after a backup was put back; what they wrote is kept."""
    present = await asyncio.to_thread(_unfinished, stage.home.attempts)
    if not present:
        return
    known = await stage.db.read(attempts.ids)
    for run_dir in present:
        if run_dir.name not in known:
            _log.warning("%s is in no database: its processes are ended", run_dir.name)
            stage.runner.stop(run_dir, "this attempt is in no database")


def _unfinished(directory: Path) -> list[Path]:
    old = time.time() - _ORPHAN_AGE_S
    return [
        claim.parent
        for claim in directory.glob("*/claim")
        if claim.stat().st_mtime < old and not (claim.parent / "exit.json").exists()
    ]


async def _put_away_unknown_worktrees(stage: Stage) -> None:
    """Remove worktrees whose task is in no database; their content is kept under a ref."""
    known = await stage.db.read(tasks.ids_of_worktrees)
    for task_id in await stage.workspaces.orphans(known):
        try:
            await stage.workspaces.discard_orphan(task_id)
            _log.warning("the worktree of the unknown task %s was put away", task_id)
        except KapelleError as error:
            _log.warning("the worktree of the unknown task %s stays: %s", task_id, error.message)


async def _forget_old_tasks(stage: Stage) -> None:
    """Delete tasks that ended longer ago than they are to be kept; branches and refs stay."""
    days = stage.settings().tasks.retention_days
    if not days:
        return
    limit = datetime.now(UTC) - timedelta(days=days)
    for task_id in await stage.db.read(tasks.ended_before, limit, _AT_A_TIME):
        task = await stage.db.read(tasks.get, task_id)
        if task.workspace.branch:
            await stage.workspaces.remove(task_id)
        for attempt in task.attempts:
            await asyncio.to_thread(shutil.rmtree, stage.run_directory(attempt.id), True)
        (stage.home.secrets / f"{task_id}.json").unlink(missing_ok=True)
        await stage.db.write(tasks.delete, task_id)
