"""What both databases keep alike, and what is shown when one refuses."""

import math
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.integration.engine.test_run_control import add_run

from kapelle.store import events, runs, steps, tables
from kapelle.store.database import Connection, Database
from kapelle.store.statements import Statement


async def test_numbers_that_json_does_not_know_are_null(db: Database) -> None:
    run_id = await add_run(db)
    facts = {"loss": math.nan, "worst": [math.inf, {"best": -math.inf}], "fine": 0.5}
    await db.write(runs.update, run_id, progress=facts)
    shown = (await db.read(runs.get, run_id)).progress
    assert shown == {"loss": None, "worst": [None, {"best": None}], "fine": 0.5}
    await db.write(lambda c: events.append(c, "run.progress", run_id, loss=math.nan))
    assert (await db.read(events.list_after, 0))[-1].data == {"loss": None}


async def test_a_step_may_be_nested_as_deep_as_anybody_likes(db: Database) -> None:
    run_id, position = await add_run(db), ".".join(["0001"] * 100)
    await db.write(steps.begin, run_id, position, "task", "deep")
    assert list(await db.read(steps.load_by_position, run_id)) == [position]


async def test_an_error_of_the_database_does_not_tell_what_was_stored(db: Database) -> None:
    run_id = await add_run(db)
    with pytest.raises(sa.exc.IntegrityError) as failed:
        await add_run(db, id=run_id, title="s3cret")
    assert "s3cret" not in str(failed.value)


async def test_old_events_are_forgotten_by_their_date_where_the_clock_was_wrong(
    db: Database,
) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    moments = [now - 30 * day, now + 9000 * day, now - 29 * day, now - 2 * day, now - 9999 * day]
    await db.write(_append_at, moments)
    await db.write(events.delete_oldest, now - 7 * day, 4)
    kept = [event.at for event in await db.read(events.list_after, 0)]
    assert kept == [moments[1], moments[3], moments[4]]
    await db.write(events.delete_oldest, now - 7 * day, 4)
    assert [event.at for event in await db.read(events.list_after, 0)] == [moments[1], moments[3]]


def _append_at(connection: Connection, moments: list[datetime]) -> None:
    rows = [{"kind": "tick", "at": moment, "data": {}} for moment in moments]
    connection.execute(tables.events.insert(), rows)


async def test_a_statement_finds_and_writes_what_sqlalchemy_does(db: Database) -> None:
    run_id, columns = await add_run(db), tables.runs.c
    by_id = tables.runs.update().where(columns.id == sa.bindparam("row_id"))
    open_ones = sa.select(tables.runs, sa.func.length(columns.title).label("letters"))
    open_ones = open_ones.where(columns.status.in_(["queued", "running"]))
    open_ones = open_ones.where(columns.created_at <= sa.bindparam("now"))
    told = tables.events.insert().returning(tables.events.c.data)

    def compare(connection: Connection) -> None:
        now = datetime.now(UTC)
        changed = {"title": "half \ud800", "progress": {"loss": math.nan}, "started_at": now}
        assert Statement(by_id).write(connection, row_id=run_id, **changed) == 1
        assert Statement(by_id).write(connection, row_id="run_none", title="x") == 0
        found = Statement(open_ones).rows(connection, now=now)
        plain = connection.execute(open_ones, {"now": now}).mappings().all()
        assert [dict(row) for row in found] == [dict(row) for row in plain]
        assert (found[0]["started_at"], found[0]["progress"]) == (now, {"loss": None})
        given = {"kind": "tick", "at": now, "data": [{"deep": "\0"}]}
        assert Statement(told).scalar(connection, **given) == [{"deep": "\ufffd"}]
        assert Statement(open_ones).first(connection, now=now - timedelta(days=9)) is None

    await db.write(compare)
