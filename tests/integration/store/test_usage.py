"""Usage added up, on SQLite and PostgreSQL alike."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.integration.rows import task_row

from kapelle.domain.ids import new_id
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import CheckResult
from kapelle.domain.usage import By, UsageFilter
from kapelle.store import attempts, tasks, usage
from kapelle.store.database import Connection, Database

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


async def add(db: Database, project: str | None = None) -> str:
    row = task_row(agent="a", project=project, status=TaskStatus.COMPLETED, created_at=NOON)
    await db.write(tasks.insert, row, [])
    return str(row["id"])


async def use(db: Database, task_id: str, number: int, **values: Any) -> None:
    def work(connection: Connection) -> None:
        attempts.insert(
            connection,
            task_id=task_id,
            number=number,
            status=AttemptStatus.COMPLETED,
            mode="fresh",
            warnings=[],
            **{
                "id": new_id("attempt"),
                "agent": "a",
                "started_at": NOON,
                "ended_at": NOON,
                **values,
            },
        )

    await db.write(work)


@pytest.fixture
async def used(db: Database) -> Database:
    first = await add(db, "p")
    second = await add(db)
    counted = {"output_tokens": 10, "cached_tokens": 50, "turns": 1}
    await use(db, first, 1, input_tokens=100, cost_usd=0.5, model="m", **counted)
    await use(db, first, 2, input_tokens=100, agent="b", **counted)
    await use(db, second, 1, started_at=NOON + timedelta(days=1))
    await use(db, second, 2, exit_kind="not_started")
    return db


async def sums(db: Database, by: By, **filters: Any) -> dict[Any, tuple[Any, ...]]:
    since, until = (filters.pop(name, None) for name in ("since", "until"))
    rows = await db.read(usage.sum_by_key, UsageFilter(by=by, **filters), since, until)
    names = ("attempts", "input_tokens", "cost_usd", "unknown_cost", "unreported")
    return {row["key"]: tuple(row[name] for name in names) for row in rows}


async def test_known_and_unknown_costs_are_told_apart(used: Database) -> None:
    assert await sums(used, "agent") == {"a": (3, 100, 0.5, 0, 1), "b": (1, 100, None, 1, 0)}


async def test_answers_without_a_token_are_not_told_as_nothing_used(used: Database) -> None:
    nothing = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0}
    await use(used, await add(used), 1, agent="quiet", turns=3, **nothing)
    await use(used, await add(used), 1, agent="refused", turns=0, **nothing)
    found = await sums(used, "agent")
    assert (found["quiet"][-1], found["refused"][-1]) == (1, 0)


async def test_each_property_makes_its_groups(used: Database) -> None:
    assert set(await sums(used, "model")) == {"m", None}
    assert await sums(used, "project") == {"p": (2, 200, 0.5, 1, 0), None: (2, 0, None, 0, 1)}
    assert len(await sums(used, "task")) == 2
    day = (NOON.date() - datetime(1970, 1, 1, tzinfo=UTC).date()).days
    assert {key: row[0] for key, row in (await sums(used, "day")).items()} == {day: 3, day + 1: 1}


async def test_the_beginning_of_a_time_counts_and_its_end_does_not(used: Database) -> None:
    later = NOON + timedelta(days=1)
    assert sum(row[0] for row in (await sums(used, "agent", since=later)).values()) == 1
    assert sum(row[0] for row in (await sums(used, "agent", until=later)).values()) == 3
    assert await sums(used, "agent", since=NOON, until=NOON) == {}


async def test_filters_go_together(used: Database) -> None:
    assert set(await sums(used, "model", agent="a", project="p")) == {"m"}
    assert await sums(used, "model", agent="b", model="m") == {}


async def test_a_blind_check_speaks_of_its_own_attempt_alone(db: Database) -> None:
    async def checked(**check: Any) -> None:
        task_id, attempt_id = await add(db), new_id("attempt")
        await use(db, task_id, 1, id=attempt_id)
        made = CheckResult(name="x", passed=True, output="", duration_s=0.1, **check)
        await db.write(attempts.add_check, attempt_id, 0, made)

    await checked(command="make test")
    await checked(command="true", proved=False)
    await checked()  # a built-in one, that something was changed
    [row] = await db.read(usage.sum_by_key, UsageFilter(by="agent"), None, None)
    assert row["verified"] == 1
