"""Use cases of notes: write, read, list and delete them, and wait for notes of others."""

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
from kapelle.service.wait import wait_until
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
        """Write a note: a text under a key, shared by all agents of related work.

        With expected_version, it is refused if the note has changed since that version.
        """
        attempt_id = caller.attempt_id
        if attempt_id is not None and self._without_secrets is not None:
            task_id = (await self._db.glance(attempts.load_row, attempt_id))["task_id"]
            if await self._without_secrets(task_id, attempt_id, spec.key) != spec.key:
                raise InvalidInput(
                    "The key of a note must not contain a secret.", hint="Use another key."
                )
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
        """Delete a note; those who watch it are notified."""
        return await self._db.write(notes.delete, scope, key, expected_version, caller.attempt_id)

    async def get(self, key: NoteKey, caller: Caller, scope: NoteScope = None) -> Note:
        """Get a note with its value and version."""
        return await self._db.glance(notes.get, scope, key, caller.attempt_id)

    async def page(self, query: NoteFilter, caller: Caller) -> NotePage:
        """List the notes whose keys begin with a prefix, without their values."""
        page, cursor = await self._db.read(notes.list_page, query, caller.attempt_id)
        return NotePage(notes=page, next_cursor=cursor)

    async def watch(self, query: NoteWatch, caller: Caller) -> NotesChanged:
        """Wait until notes exist, have a version after the one you know, or equal a value.

        It waits for all of the keys, or for any note under the prefix. Call again while met is
        false.
        """

        def find_scope(connection: Connection) -> str:
            author = notes.find_author(connection, caller.attempt_id)
            return notes.resolve_scope(connection, query.scope, author)

        scope = await self._db.glance(find_scope)
        wake_keys = {f"note {key} of {scope}" for key in query.keys} or {f"notes of {scope}"}

        matches: list[Note] = []

        def is_met(connection: Connection) -> bool:
            changes = notes.list_changed(connection, scope, query.keys, query.prefix, query.after)
            matches[:] = [note for note in changes if _matches(note, query)]
            if query.keys:
                return len(matches) == len(set(query.keys))
            return bool(matches)

        met = await wait_until(self._db, wake_keys, query.timeout_s, is_met)
        return NotesChanged(met=met, notes=matches)


def _matches(note: Note, query: NoteWatch) -> bool:
    if query.equals is not None:
        return note.value == query.equals
    # A deletion is a change only to a caller who knows an earlier version of the note.
    return not note.deleted or query.after > 0
