"""Delivering what completed, for tasks and runs alike: merged, or as a pull request.

What is due is asked of the rows again and again; a delivery that a crash cut short is made once
more, and each of its steps finds what was done.
"""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from kapelle.domain.errors import Conflict, KapelleError, Unavailable, WorkspaceError
from kapelle.domain.run import Run
from kapelle.domain.specs import MergeSpec
from kapelle.domain.task import Task
from kapelle.engine.merge import Merges, get_work
from kapelle.engine.parts import Parts
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import deliveries
from kapelle.store.database import Connection
from kapelle.store.query import Row

_log = logging.getLogger("kapelle.delivery")
_LOOK_S = 10.0
_LONGEST_S = 900.0


class Deliveries:
    """Delivers whatever is due, each task and run by itself."""

    def __init__(self, parts: Parts, merges: Merges) -> None:
        self._parts, self._merges = parts, merges
        self._going: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look for what is due until cancelled."""
        with self._parts.db.watch("task.completed", "run.completed", deliveries.ASKED) as changed:
            while True:
                try:
                    await self._sweep()
                except (KapelleError, OSError) as error:
                    _log.warning("deliveries are looked for again: %s", error)
                await changed.wait(_LOOK_S)

    async def _sweep(self) -> None:
        self._going = {owner: task for owner, task in self._going.items() if not task.done()}
        for owner in await self._parts.db.read(deliveries.due, datetime.now(UTC)):
            if owner not in self._going:
                self._going[owner] = asyncio.create_task(self._deliver(owner))

    async def _deliver(self, owner: str) -> None:
        """Deliver it, and write down what came of it or when it is tried again."""
        db = self._parts.db
        work, row = await db.read(_rows, owner)
        try:
            failpoint("deliver_begin")
            if work.workspace.commit in {None, work.workspace.base_commit} and not row["force"]:
                found: dict[str, Any] = {"status": "nothing", "reason": "it changed nothing"}
            else:
                found = await self._made(work, row)
        except Unavailable as error:
            wait_s = min(_LONGEST_S, 10.0 * 2 ** row["tries"])
            later = datetime.now(UTC) + timedelta(seconds=wait_s)
            tried = {"reason": error.with_hint, "tries": row["tries"] + 1, "next_at": later}
            await db.write(deliveries.update, owner, **tried)
            return
        except (KapelleError, OSError) as error:
            told = error.with_hint if isinstance(error, KapelleError) else str(error)
            found = {"status": "failed", "reason": told}
        except Exception as error:
            _log.exception("the delivery of %s failed", owner)
            found = {"status": "failed", "reason": f"an internal error: {error!r}"}
        failpoint("deliver_before_end")
        await db.write(_end, owner, {"commit": work.workspace.commit, **found})

    async def _made(self, work: Task | Run, row: Row) -> dict[str, Any]:
        if row["mode"] == "pr":
            raise Conflict("Pull requests are not opened yet.")
        by_person = work.parent_task_id is None
        try:
            merged = await self._merges.merge(work, MergeSpec(), by_person=by_person)
        except (Conflict, WorkspaceError):
            if (await self._parts.db.read(get_work, work.id)).merged_at is None:
                raise
            return {"status": "delivered", "reason": None}  # before a crash
        return {"status": "delivered", "reason": None, "branch": merged.base}


def _rows(connection: Connection, owner: str) -> tuple[Task | Run, Row]:
    row = deliveries.find(connection, owner)
    assert row is not None
    return get_work(connection, owner), row


def _end(connection: Connection, owner: str, values: dict[str, Any]) -> None:
    """What came of it, in the row and in the history."""
    now = datetime.now(UTC)
    deliveries.update(connection, owner, **values, force=False, next_at=None, updated_at=now)
    kind = "delivery.failed" if values["status"] == "failed" else "delivery.ended"
    told = ("status", "reason", "url", "state", "branch")
    deliveries.tell(connection, kind, owner, **{name: values.get(name) for name in told})
