"""Notes by scope and key; a deleted one leaves its version, so that whoever watches it sees that.

The version of a note is the number of the event that tells of it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from kapelle.domain.errors import Conflict, Forbidden, InvalidInput, LimitReached, NotFound
from kapelle.domain.ids import is_id
from kapelle.domain.note import MAX_NOTES, Note, NoteFilter, NoteSpec
from kapelle.store import children, events
from kapelle.store.database import notify_watches
from kapelle.store.ids import resolve_id
from kapelle.store.query import Row, count_rows
from kapelle.store.tables import attempts, notes, tasks

_PERSON = "person"
_PROJECT = "project:"
_GLOBAL = "global"
# The beginning of the keys of saved lists of work.
LISTS = "batch/"


def resolve_scope(connection: sa.Connection, typed: str | None, author: Row | None) -> str:
    """The scope that is meant; an attempt has its family's and its project's, and reads global."""
    if author:
        own = find_family(connection, author["task_id"])
    else:
        own = _GLOBAL
    if typed is None or typed in {own, _GLOBAL}:
        return typed or own
    if typed.startswith(_PROJECT) and (name := typed.removeprefix(_PROJECT)):
        if author is None or author["project"] == name:
            return typed
    elif not author:
        try:
            return find_family(connection, resolve_id(connection, typed, "task", "run"))
        except NotFound:
            hint = f"Write {_GLOBAL}, {_PROJECT}NAME, or the id of a task or run."
            raise NotFound(f"{typed!r} is no scope.", hint=hint) from None
    elif is_id("task", typed) or is_id("run", typed):
        # An attempt learns nothing about which other tasks there are.
        if find_family(connection, typed) == own:
            return own
    else:
        raise InvalidInput(f"{typed!r} is no scope.", hint=f"Leave it out, or write {_GLOBAL}.")
    raise Forbidden(
        f"An attempt has the notes of its own family and project, not those of {typed}.",
        hint="Leave the scope out.",
    )


def find_family(connection: sa.Connection, id_: str) -> str:
    """The run or task at the root of what a task or run belongs to."""
    line = children.load_ancestry(connection, id_)
    return str(line[-1]["id"]) if line else id_


def find_author(connection: sa.Connection, attempt_id: str | None) -> Row | None:
    """The attempt that asks, while it runs; None is a person."""
    if attempt_id is None:
        return None
    columns = (attempts.c.id, attempts.c.task_id, tasks.c.project)
    query = sa.select(*columns).join(tasks, tasks.c.id == attempts.c.task_id)
    query = query.where(attempts.c.id == attempt_id, attempts.c.ended_at.is_(None))
    if (found := connection.execute(query).mappings().first()) is None:
        raise Forbidden("An attempt's token is of use only while the attempt runs.")
    return found


def put(
    connection: sa.Connection, spec: NoteSpec, attempt_id: str | None, by: str = _PERSON
) -> Note:
    """Write a note, if it has the version that is expected; by is who else than an attempt."""
    author = find_author(connection, attempt_id)
    scope = _writable(connection, spec.scope, author)
    before = _require_version(connection, scope, spec.key, spec.expected_version)
    there = (notes.c.scope == scope, notes.c.value.is_not(None))
    if before is None and count_rows(connection, *there) >= MAX_NOTES:
        raise LimitReached(
            f"{scope} has {MAX_NOTES:,} notes, which is the most.",
            hint="Delete those that are done with, or gather several in one.",
        )
    return _write(connection, scope, spec.key, spec.value, author, by)


def delete(
    connection: sa.Connection, typed: str | None, key: str, expected: int | None, by: str | None
) -> Note:
    author = find_author(connection, by)
    scope = _writable(connection, typed, author)
    if _require_version(connection, scope, key, expected) is None:
        raise _missing(scope, key)
    # What is left of others is forgotten when there is too much of it.
    gone = sa.select(notes.c.version).where(notes.c.scope == scope, notes.c.value.is_(None))
    old = gone.order_by(notes.c.version.desc()).offset(MAX_NOTES).limit(1).scalar_subquery()
    stale = notes.delete().where(notes.c.scope == scope, notes.c.value.is_(None))
    connection.execute(stale.where(notes.c.version <= old))
    return _write(connection, scope, key, None, author)


def get(connection: sa.Connection, typed: str | None, key: str, attempt_id: str | None) -> Note:
    scope = resolve_scope(connection, typed, find_author(connection, attempt_id))
    found = list_changed(connection, scope, [key])
    if not found or found[0].deleted:
        raise _missing(scope, key)
    return found[0]


def read_of_people(connection: sa.Connection, id_: str, key: str) -> str | None:
    """What stands there in the family of a task or run, unless an agent wrote it."""
    found = list_changed(connection, find_family(connection, id_), [key])
    if found and not is_id("attempt", found[0].author):
        return found[0].value
    return None


def list_page(
    connection: sa.Connection, wanted: NoteFilter, attempt_id: str | None
) -> tuple[list[Note], str | None]:
    """Notes by their keys, without what they say, and the cursor of the next page; saved lists of
    work are notes only to those who ask for their prefix."""
    scope = resolve_scope(connection, wanted.scope, find_author(connection, attempt_id))
    query = _under(scope, wanted.prefix).where(notes.c.value.is_not(None))
    if scope == _GLOBAL and not wanted.prefix.startswith(LISTS):
        query = query.where(sa.not_(notes.c.key.startswith(LISTS)))
    query = query.where(notes.c.key > (wanted.cursor or "")).limit(wanted.limit + 1)
    found = [_note(row) for row in connection.execute(query).mappings()]
    shown = [note.model_copy(update={"value": None}) for note in found[: wanted.limit]]
    return shown, shown[-1].key if len(found) > len(shown) else None


def list_changed(
    connection: sa.Connection, scope: str, keys: Sequence[str], prefix: str = "", after: int = 0
) -> list[Note]:
    """Those of the keys, or of what is under a prefix, that changed after a version, deleted ones
    too, fifty at most of a prefix."""
    query = _under(scope, prefix).where(notes.c.version > after)
    if keys:
        query = query.where(notes.c.key.in_(keys))
    else:
        query = query.limit(50)
    return [_note(row) for row in connection.execute(query).mappings()]


def _under(scope: str, prefix: str) -> sa.Select[tuple[object, ...]]:
    query = sa.select(notes).where(notes.c.scope == scope).order_by(notes.c.key)
    # Not LIKE, to which SQLite's small and capital letters are the same.
    start = sa.func.substr(notes.c.key, 1, len(prefix))
    if prefix:
        return query.where(start == prefix)
    return query


def _writable(connection: sa.Connection, typed: str | None, author: Row | None) -> str:
    scope = resolve_scope(connection, typed, author)
    if author is not None and scope == _GLOBAL:
        raise Forbidden(
            "An attempt may read global notes, but not write them.",
            hint="Leave the scope out, or name that of your project.",
        )
    return scope


def _require_version(
    connection: sa.Connection, scope: str, key: str, expected: int | None
) -> int | None:
    """The version of what stands there, None if nothing does; Conflict if another is expected."""
    [*found] = (note for note in list_changed(connection, scope, [key]) if not note.deleted)
    version = found[0].version if found else None
    if expected is not None and expected != (version or 0):
        if version:
            stands = f"{key!r} of {scope} has version {version}"
        else:
            stands = f"There is no {key!r}"
        raise Conflict(f"{stands}, not {expected}.", hint="Read it again, then decide anew.")
    return version


def _write(
    connection: sa.Connection,
    scope: str,
    key: str,
    value: str | None,
    author: Row | None,
    by: str = _PERSON,
) -> Note:
    task_id, attempt_id = (author["task_id"], author["id"]) if author else (None, None)
    if value is None:
        kind = "note.deleted"
    else:
        kind = "note.written"
    of = task_id or (scope if is_id("run", scope) else None)
    facts = {"scope": scope, "key": key, "size": len(value or "")}
    events.append(connection, kind, of, attempt_id, **facts)
    notify_watches(connection, {f"notes of {scope}", f"note {key} of {scope}"})
    connection.execute(notes.delete().where(notes.c.scope == scope, notes.c.key == key))
    values = {
        "scope": scope, "key": key, "value": value, "version": events.load_last_seq(connection),
        "author": attempt_id or by, "task_id": task_id, "updated_at": datetime.now(UTC),
    }  # fmt: skip
    connection.execute(notes.insert().values(values))
    return _note(values)


def _note(row: Row | dict[str, object]) -> Note:
    value = row["value"]
    if isinstance(value, str):
        size = len(value)
    else:
        size = 0
    return Note.model_validate({**row, "size": size, "deleted": value is None})


def _missing(scope: str, key: str) -> NotFound:
    return NotFound(f"There is no note {key!r} of {scope}.", hint="kapelle notes lists them.")


def search(
    connection: sa.Connection, terms: Sequence[Sequence[str]], project: str | None, limit: int
) -> list[Row]:
    """The newest notes that have every term, of one project if it is given."""
    text = notes.c.key + " " + notes.c.value
    has = [text.icontains(" ".join(words), autoescape=True) for words in terms]
    query = sa.select(notes).where(notes.c.value.is_not(None), *has)
    if project is None:
        query = query
    else:
        query = query.where(notes.c.scope == _PROJECT + project)
    query = query.order_by(notes.c.updated_at.desc()).limit(limit)
    return list(connection.execute(query).mappings())
