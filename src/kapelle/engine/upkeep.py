"""What is done from time to time: backups, putting away orphans, forgetting what is old."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from kapelle.domain.errors import KapelleError
from kapelle.engine import daemon_log, orphans, retention
from kapelle.engine.parts import Stage
from kapelle.engine.setbacks import Setbacks
from kapelle.store import backup

_log = logging.getLogger("kapelle.upkeep")
_ROUND_S = 60.0
_TIDY_S = 86_400.0

Duty = Callable[[], Awaitable[None]]


async def upkeep(stage: Stage) -> None:
    """Look after the home until cancelled."""
    duties = Upkeep(stage)
    while True:
        await duties.round()
        await asyncio.sleep(_ROUND_S)


class Upkeep:
    """The duties of one daemon, each of which is done whatever becomes of the others."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._setbacks = Setbacks()
        self._tidied_at: float | None = None

    async def round(self) -> None:
        """Do each duty once; one that fails is logged and done again in the next round."""
        stage, setbacks = self._stage, self._setbacks
        await _guarded("the backup", self._back_up)
        await _guarded("shortening the log", self._shorten_log)
        await _guarded("stopping attempts", lambda: orphans.stop_unknown_attempts(stage))
        await _guarded("stopping checks", lambda: orphans.stop_unknown_steps(stage))
        await _guarded(
            "looking for unknown worktrees",
            lambda: orphans.put_away_unknown_worktrees(stage, setbacks),
        )
        await _guarded("finishing archives", lambda: orphans.finish_archiving(stage, setbacks))
        await _guarded("dropping secrets", lambda: orphans.drop_unused_secrets(stage))
        await _guarded("forgetting tasks", lambda: retention.forget_old_tasks(stage, setbacks))
        await _guarded("forgetting runs", lambda: retention.forget_old_runs(stage, setbacks))
        await _guarded("forgetting history", lambda: retention.forget_old_history(stage))
        await _guarded("tidying", self._tidy)

    async def _back_up(self) -> None:
        home, settings = self._stage.home, self._stage.settings().backup
        # The age is read from the disk, for daemons may live shorter than the time between two.
        if self._stage.db.is_sqlite and not backup.made_within(home.backups, settings.every_s):
            await asyncio.to_thread(backup.make, home.database, home.backups, settings.keep)

    async def _shorten_log(self) -> None:
        await asyncio.to_thread(daemon_log.shorten, self._stage.home.log)

    async def _tidy(self) -> None:
        if self._tidied_at is None or time.monotonic() - self._tidied_at >= _TIDY_S:
            await self._stage.workspaces.tidy()
            self._tidied_at = time.monotonic()


async def _guarded(name: str, duty: Duty) -> None:
    try:
        await duty()
    except KapelleError as error:
        _log.warning("%s failed and will be tried again: %s", name, error.message)
    except Exception:
        _log.exception("%s failed and will be tried again", name)
