"""The caller of a use case, and the tasks and runs that a caller may name."""

from dataclasses import dataclass
from typing import Literal

from kapelle.domain.errors import Forbidden, NotFound
from kapelle.domain.ids import is_id
from kapelle.engine.children import is_own, not_own
from kapelle.store import attempts, children
from kapelle.store.database import Connection, Database

WorkKind = Literal["task", "run"]


@dataclass(frozen=True)
class Caller:
    """The owner of the daemon, or an agent's attempt with the task that it works on."""

    task_id: str | None = None
    attempt_id: str | None = None

    def require_attempt(self) -> tuple[str, str]:
        """Return the ids of the task and the attempt; raises Forbidden for the owner."""
        if self.task_id is None or self.attempt_id is None:
            text = "Only the agent of a running task can do this, with the token of its attempt."
            raise Forbidden(text)
        return self.task_id, self.attempt_id


OWNER = Caller()


class Callers:
    """The permissions of callers.

    The owner may name every task and run, an attempt only its own task, its run and what its task
    started.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    async def identify(self, attempt_id: str) -> Caller:
        """Return a running attempt as a caller; raises Forbidden once it has ended."""
        task_id = await self._db.glance(_task_of_running, attempt_id)
        if task_id is None:
            raise Forbidden("This attempt has ended, so its token is no longer valid.")
        return Caller(task_id, attempt_id)

    async def is_valid(self, caller: Caller) -> bool:
        """Return whether the token of a caller is still valid.

        The token of an attempt is valid while the attempt runs.
        """
        if caller.attempt_id is None:
            return True
        return await self._db.glance(_task_of_running, caller.attempt_id) is not None

    async def require_own(self, caller: Caller, *ids: str, itself: bool) -> None:
        """Raise Forbidden unless the caller may name these tasks and runs.

        An attempt may name the work that its task started, with `itself` also that task and its
        run.
        """
        if caller.task_id is None:
            return
        for work_id in ids:
            if not await self._db.read(is_own, caller.task_id, work_id, itself):
                raise not_own(work_id)

    async def list_below(self, caller: Caller, kind: WorkKind) -> list[str] | None:
        """Return the ids of the tasks or runs that a caller may list; None if it may list all."""
        if caller.task_id is None:
            return None
        members = await self._db.read(children.list_descendants, caller.task_id)
        return [member.id for member in members if is_id(kind, member.id)]


def _task_of_running(connection: Connection, attempt_id: str) -> str | None:
    try:
        attempt = attempts.load_row(connection, attempt_id)
    except NotFound:
        return None
    if attempt["ended_at"] is not None:
        return None
    return str(attempt["task_id"])
