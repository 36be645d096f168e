"""Notes on both databases: versions, compare-and-set, limits, scopes, and waiting for one."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.rows import task_row

from kapelle.domain.errors import Conflict, Forbidden, InvalidInput, LimitReached, NotFound
from kapelle.domain.ids import new_id
from kapelle.domain.note import MAX_NOTES, Note, NoteFilter, NoteSpec, NoteWatch
from kapelle.service.caller import OWNER, Caller
from kapelle.service.notes import NoteService
from kapelle.store import attempts, events, tables
from kapelle.store.database import Connection, Database


@pytest.fixture
def notes(db: Database) -> NoteService:
    return NoteService(db)


async def write(notes: NoteService, key: str, value: str = "x", **more: Any) -> Note:
    caller = Caller(attempt_id=more.pop("by", None))
    return await notes.put(NoteSpec(key=key, value=value, **more), caller)


async def test_a_version_is_never_used_twice(notes: NoteService) -> None:
    first = await write(notes, "a", "1", expected_version=0)
    with pytest.raises(Conflict, match=f"has version {first.version}, not 0"):
        await write(notes, "a", "2", expected_version=0)
    second = await write(notes, "a", "2", expected_version=first.version)
    assert second.version > first.version
    gone = await notes.delete("a", OWNER, None, second.version)
    assert (gone.deleted, gone.version > second.version) == (True, True)
    for call in (notes.get("a", OWNER), notes.delete("a", OWNER)):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(Conflict, match="There is no 'a', not"):
        await write(notes, "a", "3", expected_version=second.version)
    again = await write(notes, "a", "3", expected_version=0)
    assert again.version > gone.version
    assert (await notes.get("a", OWNER)).value == "3"


async def test_of_many_who_compare_and_set_one_wins_each_time(notes: NoteService) -> None:
    """A counter that fifty raise, each from what it has read, counts them all."""
    await write(notes, "count", "0")

    async def raise_it() -> None:
        while True:
            seen = await notes.get("count", OWNER)
            value = str(int(seen.value or "") + 1)
            try:
                await write(notes, "count", value, expected_version=seen.version)
            except Conflict:
                continue
            return

    await asyncio.gather(*(raise_it() for _ in range(50)))
    assert (await notes.get("count", OWNER)).value == "50"


async def test_lists_go_by_prefix_and_page_without_values(notes: NoteService) -> None:
    for key in ("a/1", "a/2", "A/1", "a_1", "b", "ä", "😀"):
        await write(notes, key)
    page = await notes.page(NoteFilter(prefix="a/", limit=1), OWNER)
    assert [(note.key, note.value, note.size) for note in page.notes] == [("a/1", None, 1)]
    page = await notes.page(NoteFilter(prefix="a/", cursor=page.next_cursor), OWNER)
    assert ([note.key for note in page.notes], page.next_cursor) == (["a/2"], None)
    everything = (await notes.page(NoteFilter(), OWNER)).notes
    assert len(everything) == 7


async def test_a_scope_takes_so_many_and_no_more(notes: NoteService, db: Database) -> None:
    def fill(connection: Connection) -> None:
        row = {"value": "", "version": 1, "author": "person", "updated_at": datetime.now(UTC)}
        rows = [{**row, "scope": "global", "key": f"{n}"} for n in range(MAX_NOTES)]
        connection.execute(tables.notes.insert(), rows)

    await db.write(fill)
    with pytest.raises(LimitReached, match="1,000 notes"):
        await write(notes, "new")
    await write(notes, "1", "another")
    await notes.delete("2", OWNER)
    await write(notes, "new")
    await write(notes, "new", scope="project:another")


async def test_whoever_waits_is_told_of_what_is_there_changes_or_equals(notes: NoteService) -> None:
    async def watch(**wanted: Any) -> Any:
        return await notes.watch(NoteWatch(**wanted), OWNER)

    assert (await watch(keys=["a"], timeout_s=0)).met is False
    both = asyncio.create_task(watch(keys=["a", "b"]))
    under = asyncio.create_task(watch(prefix="b"))
    first = await write(notes, "a", "1")
    await write(notes, "b", "2")
    assert [note.value for note in (await both).notes] == ["1", "2"]
    assert [note.key for note in (await under).notes] == ["b"]
    changed = asyncio.create_task(watch(keys=["a"], after=first.version))
    equal = asyncio.create_task(watch(keys=["a"], equals="done"))
    second = await write(notes, "a", "nearly")
    assert [note.value for note in (await changed).notes] == ["nearly"]
    await write(notes, "a", "done")
    assert [note.value for note in (await equal).notes] == ["done"]
    gone = asyncio.create_task(watch(keys=["b"], after=second.version))
    await notes.delete("b", OWNER)
    assert [note.deleted for note in (await gone).notes] == [True]
    assert (await watch(keys=["b"], timeout_s=0)).met is False


async def test_an_attempt_writes_for_its_family_and_project_alone(
    notes: NoteService, db: Database
) -> None:
    run, inner = new_id("run"), new_id("run")
    own, sibling, stranger = (task_row(run_id=id_, project="p") for id_ in (inner, run, None))
    working, ended = new_id("attempt"), new_id("attempt")

    def fill(connection: Connection) -> None:
        common = {"pattern": "p", "spec": {}, "progress": {}, "title": "t", "directory": "/",
                  "status": "running", "workspace_kind": "in_place", "workspace_path": "/",
                  "created_at": datetime.now(UTC)}  # fmt: skip
        rows = [{**common, "id": run, "parent_id": None}, {**common, "id": inner, "parent_id": run}]
        connection.execute(tables.runs.insert(), rows)
        for task in (own, sibling, stranger):
            connection.execute(tables.tasks.insert().values(task))
        for number, id_ in enumerate((working, ended)):
            attempts.insert(
                connection, id=id_, task_id=own["id"], number=number, status="running",
                mode="fresh", agent="rehearsal", warnings=[], started_at=datetime.now(UTC),
                ended_at=datetime.now(UTC) if id_ == ended else None,
            )  # fmt: skip

    await db.write(fill)
    made = await write(notes, "a", by=working)
    assert (made.scope, made.author, made.task_id) == (run, working, own["id"])
    for scope in (run, inner, own["id"], sibling["id"]):
        assert (await notes.get("a", Caller(attempt_id=working), scope)).version == made.version
        assert (await notes.get("a", OWNER, scope)).version == made.version
    assert (await write(notes, "a", scope="project:p", by=working)).scope == "project:p"
    for scope in ("global", "project:q", stranger["id"], new_id("run")):
        with pytest.raises(Forbidden):
            await write(notes, "a", scope=scope, by=working)
    with pytest.raises(InvalidInput):
        await write(notes, "a", scope="nonsense", by=working)
    await write(notes, "told", "by a person")
    assert (await notes.get("told", Caller(attempt_id=working), "global")).value == "by a person"
    for by in (ended, new_id("attempt")):
        with pytest.raises(Forbidden, match="while the attempt runs"):
            await notes.get("a", Caller(attempt_id=by))
    told = await db.read(events.list_after, 0)
    assert "by a person" not in str(told)
    assert [event.run_id for event in told if event.task_id] == [inner, inner]
    assert await db.read(lambda c: c.execute(sa.select(sa.func.count(tables.notes.c.key))).scalar())
