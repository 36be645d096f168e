"""What is done from time to time: backups, clean-up of orphans, forgetting finished executions."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta

from kapelle.domain.errors import KapelleError
from kapelle.engine.durable import Durable
from kapelle.engine.stage import Stage
from kapelle.store import backup, tasks

_log = logging.getLogger("kapelle.upkeep")
_ROUND_S = 60.0
# Long enough that a person who looks into a strange ending still finds the engine's record.
_ENGINE_HISTORY = timedelta(hours=1)


async def upkeep(stage: Stage, durable: Durable) -> None:
    """Look after the home until cancelled; a failing round is logged and made again."""
    backed_up = time.monotonic()
    while True:
        try:
            await remove_orphans(stage)
            await durable.forget(datetime.now(UTC) - _ENGINE_HISTORY)
            settings = stage.settings().backup
            if stage.db.is_sqlite and time.monotonic() - backed_up >= settings.every_s:
                files = [stage.home.database, stage.home.engine_database]
                await asyncio.to_thread(backup.make, files, stage.home.backups, settings.keep)
                backed_up = time.monotonic()
        except Exception:
            _log.exception("a round of upkeep failed and will be made again")
        await asyncio.sleep(_ROUND_S)


async def remove_orphans(stage: Stage) -> None:
    """Put away worktrees whose task is not in the database; their content is kept under a ref."""
    known = await stage.db.read(tasks.ids_of_worktrees)
    for task_id in await stage.workspaces.orphans(known):
        try:
            await stage.workspaces.discard_orphan(task_id)
            _log.warning("the worktree of the unknown task %s was put away", task_id)
        except KapelleError as error:
            _log.warning("the worktree of the unknown task %s stays: %s", task_id, error.message)
