"""Notes by scope and key.

The version of a note is the number of the event of its last change. A deleted note keeps its row
and version for a while, so that those who watch it see the deletion.
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
# The prefix of the keys of saved lists of work.
LISTS = "batch/"


def resolve_scope(connection: sa.Connection, text: str | None, author: Row | None) -> str:
    """Return the scope for what an author typed; the default is the own family.

    An attempt may use the notes of its family and its project, and read global ones. Raise
    Forbidden, NotFound or InvalidInput for any other scope.
    """
    own = _GLOBAL
    if author:
        own = find_family(connection, author["task_id"])
    if text is None or text in {own, _GLOBAL}:
        return text or own
    project = text.removeprefix(_PROJECT)
    if text.startswith(_PROJECT) and project:
        if author is None or author["project"] == project:
            return text
    elif not author:
        try:
            return find_family(connection, resolve_id(connection, text, "task", "run"))
        except NotFound:
            hint = f"Write {_GLOBAL}, {_PROJECT}NAME, or the id of a task or run."
            raise NotFound(f"{text!r} is not a scope.", hint=hint) from None
    elif is_id("task", text) or is_id("run", text):
        # The answer for a foreign id is the same as for an unknown id: an attempt must not learn
        # which other tasks exist.
        if find_family(connection, text) == own:
            return own
    else:
        hint = f"Leave the scope out, or write {_GLOBAL}."
        raise InvalidInput(f"{text!r} is not a scope.", hint=hint)
    raise Forbidden(
        f"An attempt may use the notes of its own family and project, not those of {text}.",
        hint="Leave the scope out.",
    )


def find_family(connection: sa.Connection, id_: str) -> str:
    """Return the id of the run or task at the root of a task or run."""
    ancestry = children.load_ancestry(connection, id_)
    if not ancestry:
        return id_
    return str(ancestry[-1]["id"])


def find_author(connection: sa.Connection, attempt_id: str | None) -> Row | None:
    """Return the running attempt of a request; None for a request of a person."""
    if attempt_id is None:
        return None
    columns = (attempts.c.id, attempts.c.task_id, tasks.c.project)
    query = sa.select(*columns).join(tasks, tasks.c.id == attempts.c.task_id)
    query = query.where(attempts.c.id == attempt_id, attempts.c.ended_at.is_(None))
    attempt = connection.execute(query).mappings().first()
    if attempt is None:
        raise Forbidden("The token of an attempt is only valid while the attempt runs.")
    return attempt


def put(
    connection: sa.Connection, spec: NoteSpec, attempt_id: str | None, by: str = _PERSON
) -> Note:
    """Store a note if it has the expected version; `by` is the author without an attempt."""
    author = find_author(connection, attempt_id)
    scope = _resolve_writable_scope(connection, spec.scope, author)
    version = _require_version(connection, scope, spec.key, spec.expected_version)
    existing = (notes.c.scope == scope, notes.c.value.is_not(None))
    if version is None and count_rows(connection, *existing) >= MAX_NOTES:
        raise LimitReached(
            f"{scope} has {MAX_NOTES:,} notes, the maximum.",
            hint="Delete old notes, or join several into one.",
        )
    return _write(connection, scope, spec.key, spec.value, author, by)


def delete(
    connection: sa.Connection, scope_text: str | None, key: str, version: int | None, by: str | None
) -> Note:
    """Delete a note if it has the expected version; raise NotFound if there is none."""
    author = find_author(connection, by)
    scope = _resolve_writable_scope(connection, scope_text, author)
    if _require_version(connection, scope, key, version) is None:
        raise _missing(scope, key)
    # Remove the rows of notes that were deleted long ago.
    is_deleted = (notes.c.scope == scope, notes.c.value.is_(None))
    versions = sa.select(notes.c.version).where(*is_deleted).order_by(notes.c.version.desc())
    oldest_kept = versions.offset(MAX_NOTES).limit(1).scalar_subquery()
    connection.execute(notes.delete().where(*is_deleted, notes.c.version <= oldest_kept))
    return _write(connection, scope, key, None, author)


def get(
    connection: sa.Connection, scope_text: str | None, key: str, attempt_id: str | None
) -> Note:
    """Return a note; raise NotFound if there is none."""
    scope = resolve_scope(connection, scope_text, find_author(connection, attempt_id))
    matches = list_changed(connection, scope, [key])
    if not matches or matches[0].deleted:
        raise _missing(scope, key)
    return matches[0]


def read_of_people(connection: sa.Connection, id_: str, key: str) -> str | None:
    """Return the value of a note in the family of a task or run, unless an agent wrote it."""
    matches = list_changed(connection, find_family(connection, id_), [key])
    if matches and not is_id("attempt", matches[0].author):
        return matches[0].value
    return None


def list_page(
    connection: sa.Connection, filter_: NoteFilter, attempt_id: str | None
) -> tuple[list[Note], str | None]:
    """Return one page of notes by their keys, without values, and the cursor of the next page.

    Saved lists of work are left out unless the filter asks for their prefix.
    """
    scope = resolve_scope(connection, filter_.scope, find_author(connection, attempt_id))
    query = _select_under(scope, filter_.prefix).where(notes.c.value.is_not(None))
    if scope == _GLOBAL and not filter_.prefix.startswith(LISTS):
        query = query.where(sa.not_(notes.c.key.startswith(LISTS)))
    query = query.where(notes.c.key > (filter_.cursor or "")).limit(filter_.limit + 1)
    matches = [_read_note(row) for row in connection.execute(query).mappings()]
    page = [note.model_copy(update={"value": None}) for note in matches[: filter_.limit]]
    if len(matches) > len(page):
        return page, page[-1].key
    return page, None


def list_changed(
    connection: sa.Connection, scope: str, keys: Sequence[str], prefix: str = "", after: int = 0
) -> list[Note]:
    """Return notes that changed after a version, including deleted ones.

    They are those of the keys, or, without keys, at most fifty under the prefix.
    """
    query = _select_under(scope, prefix).where(notes.c.version > after)
    if keys:
        query = query.where(notes.c.key.in_(keys))
    else:
        query = query.limit(50)
    return [_read_note(row) for row in connection.execute(query).mappings()]


def _select_under(scope: str, prefix: str) -> sa.Select[tuple[object, ...]]:
    query = sa.select(notes).where(notes.c.scope == scope).order_by(notes.c.key)
    # Not LIKE: on SQLite it ignores the case of letters.
    start = sa.func.substr(notes.c.key, 1, len(prefix))
    if prefix:
        return query.where(start == prefix)
    return query


def _resolve_writable_scope(connection: sa.Connection, text: str | None, author: Row | None) -> str:
    scope = resolve_scope(connection, text, author)
    if author is not None and scope == _GLOBAL:
        raise Forbidden(
            "An attempt may read global notes, but not write them.",
            hint="Leave the scope out, or name the scope of your project.",
        )
    return scope


def _require_version(
    connection: sa.Connection, scope: str, key: str, expected_version: int | None
) -> int | None:
    """Return the version of a note, None if there is none; raise Conflict for another version."""
    version = None
    for note in list_changed(connection, scope, [key]):
        if not note.deleted:
            version = note.version
    if expected_version is not None and expected_version != (version or 0):
        problem = f"There is no {key!r}"
        if version:
            problem = f"{key!r} of {scope} has version {version}"
        hint = "Read it again, then decide anew."
        raise Conflict(f"{problem}, not {expected_version}.", hint=hint)
    return version


def _write(
    connection: sa.Connection,
    scope: str,
    key: str,
    value: str | None,
    author: Row | None,
    by: str = _PERSON,
) -> Note:
    task_id = None
    attempt_id = None
    if author:
        task_id = author["task_id"]
        attempt_id = author["id"]
    work_id = task_id
    if work_id is None and is_id("run", scope):
        work_id = scope
    kind = "note.written"
    if value is None:
        kind = "note.deleted"
    size = len(value or "")
    events.append(connection, kind, work_id, attempt_id, scope=scope, key=key, size=size)
    notify_watches(connection, {f"notes of {scope}", f"note {key} of {scope}"})
    connection.execute(notes.delete().where(notes.c.scope == scope, notes.c.key == key))
    values = {
        "scope": scope,
        "key": key,
        "value": value,
        "version": events.load_last_seq(connection),
        "author": attempt_id or by,
        "task_id": task_id,
        "updated_at": datetime.now(UTC),
    }
    connection.execute(notes.insert().values(values))
    return _read_note(values)


def _read_note(row: Row | dict[str, object]) -> Note:
    value = row["value"]
    size = 0
    if isinstance(value, str):
        size = len(value)
    return Note.model_validate({**row, "size": size, "deleted": value is None})


def _missing(scope: str, key: str) -> NotFound:
    return NotFound(f"There is no note {key!r} of {scope}.", hint="kapelle notes lists them.")


def search(
    connection: sa.Connection, terms: Sequence[Sequence[str]], project: str | None, limit: int
) -> list[Row]:
    """Return the newest notes that contain every term, in the scope of a project if given."""
    text = notes.c.key + " " + notes.c.value
    contains_all = [text.icontains(" ".join(words), autoescape=True) for words in terms]
    query = sa.select(notes).where(notes.c.value.is_not(None), *contains_all)
    if project is not None:
        query = query.where(notes.c.scope == _PROJECT + project)
    query = query.order_by(notes.c.updated_at.desc()).limit(limit)
    return list(connection.execute(query).mappings())
