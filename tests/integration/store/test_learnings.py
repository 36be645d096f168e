"""Learnings on both databases: found by their words, each project its own."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.ids import new_id
from kapelle.domain.learning import Learning, LearningFilter
from kapelle.domain.text import split_search_terms
from kapelle.store import learnings
from kapelle.store.database import Connection, Database
from kapelle.store.tables import INDEX


def learning(title: str, content: str = "text", **changes: Any) -> Learning:
    now = datetime.now(UTC)
    values = {
        "id": new_id("learning"), "title": title, "content": content, "tags": [],
        "scope": "project", "project": "one", "status": "kept", "author": "claude",
        "task_id": None, "created_at": now, "changed_at": now, **changes,
    }  # fmt: skip
    return Learning.model_validate(values)


async def store(db: Database, *made: Learning) -> None:
    def write(connection: Connection) -> None:
        for one in made:
            learnings.insert(connection, one, None)

    await db.write(write)


async def found(db: Database, query: str, project: str | None = "one") -> list[str]:
    hits = await db.read(learnings.search, split_search_terms(query), project, 10)
    return [one.title for one in hits]


async def test_the_best_come_first_and_each_project_has_its_own(db: Database) -> None:
    await store(
        db,
        learning("Cache", "the redis server must be running for the cache"),
        learning("Redis", "start redis with make redis"),
        learning("Other", "nothing of that kind, with a lot of words that say nothing at all"),
        learning("Tagged", tags=["redis", 'quo"te']),
        learning("Redis of another", "redis", project="two"),
        learning("Everywhere", "redis is global", scope="global", project="two"),
        learning("Redis reported", "redis", status="reported"),
    )
    assert (await found(db, "redis"))[0] == "Redis"
    assert {*await found(db, "REDIS")} == {"Redis", "Cache", "Tagged", "Everywhere"}
    assert await found(db, "run servers") == ["Cache"]
    assert await found(db, '"make redis"') == ["Redis"]
    assert {*await found(db, "redis", "two")} == {"Redis of another", "Everywhere"}
    assert len(await found(db, "redis", None)) == 5
    for typed in (
        "",
        '"',
        "redis)",
        "a:b",
        "NEAR(",
        "'; DROP TABLE x; --",
        "\0",
        "*",
        "&|!",
    ):
        await found(db, typed)
    page, _ = await db.read(learnings.list_page, LearningFilter(tag='quo"te'), "one")
    assert [one.title for one in page] == ["Tagged"]


async def test_the_index_follows_what_is_changed_and_deleted(db: Database) -> None:
    first, second = learning("Alpha", "beta"), learning("Gamma", "beta")
    await store(db, first, second)
    await db.write(learnings.update, first.id, content="delta", tags=["epsilon"])
    await db.write(learnings.delete, second.id)
    assert await found(db, "beta") == []
    assert await found(db, "epsilon") == ["Alpha"]
    assert await found(db, "delta gamma") == ["Alpha"]
    assert await db.read(learnings.has_any)
    await db.write(learnings.delete, first.id)
    assert not await db.read(learnings.has_any)


async def test_a_prompt_is_told_what_has_its_words_and_then_the_newest(db: Database) -> None:
    old = [learning(f"Old {number}", "about something else") for number in range(3)]
    matching = learning("Match", "about the parser", scope="global", project="two")
    await store(db, *old, matching, learning("Unrelated and global", scope="global"))
    told = await db.read(learnings.list_relevant, split_search_terms("mend the parser"), "one")
    assert [one.title for one in told] == ["Match", "Old 2", "Old 1", "Old 0"]


async def test_what_no_database_can_keep_is_replaced(db: Database) -> None:
    await store(db, learning("Nul \0", "half \ud800 word", tags=["\0"]))
    assert await found(db, "word") == ["Nul \ufffd"]


def test_without_an_index_parts_of_words_are_found(sqlite_template: Any, tmp_path: Any) -> None:
    import shutil

    from kapelle.store.database import sqlite_url

    async def act() -> None:
        path = tmp_path / "kapelle.db"
        shutil.copy(sqlite_template, path)
        db = Database(sqlite_url(path))
        await db.write(lambda connection: connection.execute(sa.text(f"DROP TABLE {INDEX}")))
        await store(db, learning("Redis", "100% sure"))
        assert await found(db, "redi") == ["Redis"]
        assert await found(db, "0%") == ["Redis"]
        [one], _ = await db.read(learnings.list_page, LearningFilter(), None)
        await db.write(learnings.delete, one.id)
        db.close()

    asyncio.run(act())
