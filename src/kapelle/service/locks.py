"""Use cases of locks: take, release and list them, and judge what an agent is about to do."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.domain.lock import (
    WHOLE,
    Lock,
    LockRelease,
    LockSpec,
    LocksView,
    Permission,
    ToolCall,
    normalised,
)
from kapelle.engine.locks import PERSON, Claim, Locks
from kapelle.store import notes, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.query import Row
from kapelle.workspaces import checkouts_around

_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_FIELDS = ("file_path", "notebook_path", "absolute_path", "filePath", "path")
# Commands of git that may change any file of the checkout.
_GIT = re.compile(
    r"\bgit\b(?:\s+(?:-[Cc]\s+\S+|-\S+))*\s+(?:checkout|reset|clean|stash|restore|switch|rebase|merge"
    r"|pull|rm|mv|apply|am|cherry-pick|revert)\b"
)
# Of a shell: where output goes, where the next command begins, and what stands before a program.
_REDIRECTED = re.compile(r">+\|?\s*[\"']?([^\s;&|<>()\"']+)")
_NEXT = re.compile(r"[;&|\n()]+")
_NO_PROGRAM = re.compile(r"\w+=.*|sudo|env|command|exec|xargs")
_WRITERS = {
    "rm", "mv", "cp", "tee", "touch", "truncate", "dd", "ln", "install", "rsync", "patch", "unlink",
    "shred", "rmdir",
}  # fmt: skip
_IN_PLACE = {"sed": r"-[a-z]*i|--in-place", "perl": r"-[a-z]*i", "awk": "-i"}


class LockService:
    """The attempt that asks is named with every call; without one it is a person."""

    def __init__(self, db: Database, locks: Locks) -> None:
        self._db, self._locks = db, locks

    async def take(self, spec: LockSpec, attempt_id: str | None) -> LocksView:
        """Hold all of the paths, or none and keep a place in the queue."""
        owner, task_id, directory, checkout = await self._place(spec.directory, attempt_id)
        paths = dict.fromkeys(_real(path, directory, checkout) for path in spec.paths)
        claim = Claim(checkout, tuple(paths), owner, task_id, spec.reason, spec.ttl_s)
        return await self._locks.take(claim, spec.timeout_s)

    async def release(self, spec: LockRelease, attempt_id: str | None) -> list[Lock]:
        """Release one's own; a person releases whoever's they are, where paths are named."""
        owner, _, directory, checkout = await self._place(spec.directory, attempt_id)
        paths = [_real(path, directory, checkout) for path in spec.paths]
        anybodys = attempt_id is None and bool(paths)
        return await self._locks.release(checkout, paths, None if anybodys else owner)

    async def known(self, directory: str | None, attempt_id: str | None) -> list[Lock]:
        """What is held and waited for, in one checkout or, for a person, everywhere."""
        await self._locks.sweep()
        if directory is None and attempt_id is None:
            return self._locks.known()
        return self._locks.known((await self._place(directory, attempt_id))[-1])

    async def check(self, call: ToolCall, attempt_id: str | None) -> Permission:
        """Whether an agent may do what it is about to do."""
        owner, _, _, checkout = await self._place(None if attempt_id else "/", attempt_id)
        paths = []
        for path in written(call.input):
            try:
                whole = path == WHOLE
                paths.append(path if whole else _real(path, call.directory, checkout))
            except InvalidInput:
                continue  # what is elsewhere cannot be held
        lock = self._locks.in_way_of(checkout, paths, owner) if paths else None
        if lock is None:
            return Permission(allowed=True)
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
        if attempt_id is not None:
            author, task = await self._db.read(_author, attempt_id)
            if directory is not None and directory != task["workspace_path"]:
                raise InvalidInput("An attempt holds files of its own checkout alone.")
            owner, task_id = attempt_id, author["task_id"]
            directory = task["workspace_path"]
        else:
            owner, task_id = PERSON, None
        if directory is None:
            raise InvalidInput("directory is missing: the checkout whose files are meant.")
        directory = os.path.realpath(directory)
        tops = checkouts_around(Path(directory))
        return owner, task_id, directory, os.path.realpath(tops[0]) if tops else directory


def written(given: Mapping[str, object]) -> list[str]:
    """The paths that a tool of an agent would evidently write, by what it is given."""
    command = given.get("command")
    text = "\n".join(map(str, command)) if isinstance(command, list) else str(command or "")
    named = [str(given[name]) for name in _FIELDS if isinstance(given.get(name), str)]
    if isinstance(several := given.get("paths"), list):
        named += map(str, several)
    if (named := named + _PATCHED.findall(text)) or not text:
        return named
    if _GIT.search(text):
        return [WHOLE]
    found = _REDIRECTED.findall(text)
    for part in _NEXT.split(text.replace("\n", " ") if isinstance(command, list) else text):
        words = [word.strip("\"'") for word in part.split() if not _NO_PROGRAM.fullmatch(word)]
        program = os.path.basename(words[0]) if words else ""
        marked = any(re.match(_IN_PLACE.get(program, "$."), word) for word in words)
        if program in _WRITERS or marked:
            found += [word.removeprefix("of=") for word in words[1:] if word[:1] != "-"]
    return found


def _real(path: str, directory: str, checkout: str) -> str:
    """A path as it stands in a checkout, with what links lead to in their place."""
    whole = os.path.join(directory, path)
    return normalised(whole if "*" in path else os.path.realpath(whole), directory, checkout)


def _author(connection: Connection, attempt_id: str) -> tuple[Row, Row]:
    author = notes.author_of(connection, attempt_id)
    assert author is not None
    return author, tasks.row(connection, author["task_id"])
