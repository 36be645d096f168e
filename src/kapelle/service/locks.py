"""Use cases of locks: take, release and list them, and judge what an agent is about to do."""

import os

from kapelle.domain.errors import InvalidInput
from kapelle.domain.lock import (
    BaseDirectory,
    Lock,
    LockRelease,
    LockSpec,
    LocksView,
    Permission,
    ToolCall,
)
from kapelle.engine.locks import PERSON, PathClaim, checkout_of, real_path
from kapelle.engine.parts import Parts
from kapelle.service.caller import Caller
from kapelle.store import children, notes, tasks


class LockService:
    """Locks of agents and of people."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._db = parts.db
        self._locks = parts.locks

    async def take(self, spec: LockSpec, caller: Caller) -> LocksView:
        """Hold paths exclusively, all or none, or renew that; where held is false, call it again:
        your place in the queue is kept. A deadlock is refused at once."""
        owner, task_id, directory, checkout = await self._place(spec.directory, caller.attempt_id)
        if caller.attempt_id is not None and task_id is not None:
            fields = {"paths": list(spec.paths), "reason": spec.reason}
            masked = await self._parts.without_secrets(task_id, caller.attempt_id, fields)
            spec = spec.model_copy(update=masked)
        paths = dict.fromkeys(real_path(path, directory, checkout) for path in spec.paths)
        if task_id:
            above = await self._db.read(children.load_ancestry, task_id)
        else:
            above = []
        parents = frozenset(row["id"] for row in above) - {task_id}
        claim = PathClaim(
            checkout, tuple(paths), owner, task_id, spec.reason, spec.ttl_s, parents=parents
        )
        return await self._locks.take(claim, spec.timeout_s)

    async def release(self, spec: LockRelease, caller: Caller) -> list[Lock]:
        """Release locks; an attempt its own, a person those that are named, whoever holds them."""
        owner, _, directory, checkout = await self._place(spec.directory, caller.attempt_id)
        paths = [real_path(path, directory, checkout) for path in spec.paths]
        anybodys = caller.attempt_id is None and bool(paths)
        return await self._locks.release(checkout, paths, None if anybodys else owner)

    async def known(self, caller: Caller, directory: BaseDirectory = None) -> list[Lock]:
        """Who holds and who waits for which paths, of one checkout or of all."""
        await self._locks.sweep()
        if directory is None and caller.attempt_id is None:
            return self._locks.list_locks()
        return self._locks.list_locks((await self._place(directory, caller.attempt_id))[-1])

    async def check(self, call: ToolCall, caller: Caller) -> Permission:
        """Whether what an agent is about to do would write what somebody else holds."""
        directory = None if caller.attempt_id else "/"
        owner, _, _, checkout = await self._place(directory, caller.attempt_id)
        lock = self._locks.in_way_of_tool(call.input, call.directory, checkout, owner)
        if lock is None:
            return Permission(allowed=True)
        self._locks.refusals[owner, lock.path] += 1
        reason = f"{lock.path} is locked by {lock.task_id or 'a person'}"
        reason += f" ({lock.reason})" if lock.reason else ""
        return Permission(
            allowed=False,
            reason=f"{reason}. Take it with lock_take, which waits for its turn, or do something "
            "else first.",
        )

    async def _place(
        self, directory: str | None, attempt_id: str | None
    ) -> tuple[str, str | None, str, str]:
        """Owner, task, where relative paths begin, and the checkout."""
        real = directory and os.path.realpath(directory)
        task_id = None
        if author := await self._db.glance(notes.find_author, attempt_id):
            task_id = author["task_id"]
            task = await self._db.glance(tasks.load_row, task_id)
            own = os.path.realpath(task["workspace_path"])
            if real not in {None, own}:
                raise InvalidInput("An attempt holds files of its own checkout alone.")
            real = own
        if real is None:
            raise InvalidInput("directory is missing: the checkout whose files are meant.")
        return attempt_id or PERSON, task_id, real, checkout_of(real)
