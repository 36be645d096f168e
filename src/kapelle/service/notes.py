"""Use cases of notes: write, read and delete them, and wait for what somebody else writes."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

from kapelle.domain.errors import InvalidInput
from kapelle.domain.note import (
    ExpectedVersion,
    Note,
    NoteFilter,
    NoteKey,
    NotesChanged,
    NoteScope,
    NoteSpec,
    NoteWatch,
)
from kapelle.service.caller import Caller
from kapelle.service.work import until
from kapelle.store import attempts, notes
from kapelle.store.database import Connection, Database

Mask = Callable[[str, str, Any], Awaitable[Any]]


class NotePage(BaseModel):
    notes: list[Note]
    next_cursor: str | None


class NoteService:
    """Notes of agents and of people."""

    def __init__(self, db: Database, without_secrets: Mask | None = None) -> None:
        self._db = db
        self._without_secrets = without_secrets

    async def put(self, spec: NoteSpec, caller: Caller) -> Note:
        """Write a note, a text under a key that all agents of one family of work share; with
        expected_version, only if nobody wrote it meanwhile."""
        attempt_id = caller.attempt_id
        if attempt_id is not None and self._without_secrets is not None:
            task_id = (await self._db.glance(attempts.load_row, attempt_id))["task_id"]
            if await self._without_secrets(task_id, attempt_id, spec.key) != spec.key:
                raise InvalidInput("The key of a note must not hold a secret.", hint="Rename it.")
            value = await self._without_secrets(task_id, attempt_id, spec.value)
            spec = spec.model_copy(update={"value": value})
        return await self._db.write(notes.put, spec, attempt_id)

    async def delete(
        self,
        key: NoteKey,
        caller: Caller,
        scope: NoteScope = None,
        expected_version: ExpectedVersion = None,
    ) -> Note:
        """Delete a note; whoever watches it is told."""
        return await self._db.write(notes.delete, scope, key, expected_version, caller.attempt_id)

    async def get(self, key: NoteKey, caller: Caller, scope: NoteScope = None) -> Note:
        """One note with its value and version."""
        return await self._db.glance(notes.get, scope, key, caller.attempt_id)

    async def page(self, wanted: NoteFilter, caller: Caller) -> NotePage:
        """The notes whose keys begin with a prefix, without what they say."""
        found, cursor = await self._db.read(notes.list_page, wanted, caller.attempt_id)
        return NotePage(notes=found, next_cursor=cursor)

    async def watch(self, wanted: NoteWatch, caller: Caller) -> NotesChanged:
        """Wait until all of the keys, or something under the prefix, are there, have a version
        after the one you know, or equal a value; call it again if met is false."""
        scope = await self._db.glance(
            lambda c: notes.resolve_scope(c, wanted.scope, notes.find_author(c, caller.attempt_id))
        )
        keys = {f"note {key} of {scope}" for key in wanted.keys} or {f"notes of {scope}"}
        seen: list[Note] = []

        def met(connection: Connection) -> bool:
            found = notes.list_changed(connection, scope, wanted.keys, wanted.prefix, wanted.after)
            # That one is gone is a change to whoever has seen it, and nothing to others.
            seen[:] = [note for note in found if _is_wanted(note, wanted)]
            if wanted.keys:
                return len(seen) == len(set(wanted.keys))
            return bool(seen)

        return NotesChanged(met=await until(self._db, keys, wanted.timeout_s, met), notes=seen)


def _is_wanted(note: Note, wanted: NoteWatch) -> bool:
    if wanted.equals is not None:
        return note.value == wanted.equals
    return not note.deleted or wanted.after > 0
