"""Use cases of locks: take, release and list them, and check the tool calls of agents."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class _LockPlace:
    """The owner of locks, with the directory of relative paths and its checkout."""

    owner: str
    task_id: str | None
    directory: str
    checkout: str

    def real_paths(self, paths: Iterable[str]) -> list[str]:
        return [real_path(path, self.directory, self.checkout) for path in paths]


class LockService:
    """Locks of agents and of people."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._db = parts.db
        self._locks = parts.locks

    async def take(self, spec: LockSpec, caller: Caller) -> LocksView:
        """Lock paths for exclusive use, all or none, or renew the locks.

        While held is false, call again: you keep your place in the queue. A deadlock is refused at
        once.
        """
        place = await self._find_place(spec.directory, caller.attempt_id)
        if caller.attempt_id is not None and place.task_id is not None:
            texts = {"paths": list(spec.paths), "reason": spec.reason}
            texts = await self._parts.without_secrets(place.task_id, caller.attempt_id, texts)
            spec = spec.model_copy(update=texts)
        claim = PathClaim(
            place.checkout,
            tuple(dict.fromkeys(place.real_paths(spec.paths))),
            place.owner,
            place.task_id,
            spec.reason,
            spec.ttl_s,
            parents=await self._list_parents(place.task_id),
        )
        return await self._locks.take(claim, spec.timeout_s)

    async def _list_parents(self, task_id: str | None) -> frozenset[str]:
        """Return the tasks that started this task, directly or through others."""
        if task_id is None:
            return frozenset()
        line = await self._db.read(children.load_ancestry, task_id)
        return frozenset(row["id"] for row in line) - {task_id}

    async def release(self, spec: LockRelease, caller: Caller) -> list[Lock]:
        """Release locks: an attempt its own, a person also the given paths of any holder."""
        place = await self._find_place(spec.directory, caller.attempt_id)
        paths = place.real_paths(spec.paths)
        owner: str | None = place.owner
        if caller.attempt_id is None and paths:
            owner = None
        return await self._locks.release(place.checkout, paths, owner)

    async def list_locks(self, caller: Caller, directory: BaseDirectory = None) -> list[Lock]:
        """List the locks and those who wait for them, of one checkout or of all."""
        await self._locks.sweep()
        if directory is None and caller.attempt_id is None:
            return self._locks.list_locks()
        place = await self._find_place(directory, caller.attempt_id)
        return self._locks.list_locks(place.checkout)

    async def check(self, call: ToolCall, caller: Caller) -> Permission:
        """Check whether the next tool call of an agent would write a path that others locked."""
        directory = None if caller.attempt_id else "/"
        place = await self._find_place(directory, caller.attempt_id)
        lock = self._locks.in_way_of_tool(call.input, call.directory, place.checkout, place.owner)
        if lock is None:
            return Permission(allowed=True)
        self._locks.refusals[place.owner, lock.path] += 1
        reason = f"{lock.path} is locked by {lock.task_id or 'a person'}"
        if lock.reason:
            reason = f"{reason} ({lock.reason})"
        return Permission(
            allowed=False,
            reason=f"{reason}. Take it with lock_take, which waits for its turn, or do something "
            "else first.",
        )

    async def _find_place(self, directory: str | None, attempt_id: str | None) -> _LockPlace:
        """Return where the locks of a caller are; raises InvalidInput.

        An attempt locks files of its own checkout only, so it may leave the directory out.
        """
        real_directory = directory and os.path.realpath(directory)
        task_id = None
        author = await self._db.glance(notes.find_author, attempt_id)
        if author is not None:
            task_id = author["task_id"]
            task = await self._db.glance(tasks.load_row, task_id)
            workspace = os.path.realpath(task["workspace_path"])
            if real_directory not in {None, workspace}:
                raise InvalidInput("An attempt may lock only files of its own checkout.")
            real_directory = workspace
        if real_directory is None:
            raise InvalidInput("directory is missing.", hint="Give the directory of the checkout.")
        checkout = checkout_of(real_directory)
        return _LockPlace(attempt_id or PERSON, task_id, real_directory, checkout)
