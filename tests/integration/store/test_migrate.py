"""The schema: made anew, brought up from an older one with a copy made before, or refused."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.rows import COMPARED, task_row

from kapelle.daemon import _open_database
from kapelle.domain.errors import Unavailable
from kapelle.home import Home
from kapelle.settings import Settings
from kapelle.store import attempts, backup, migrate, steps, tables, tasks
from kapelle.store.database import connect
from kapelle.store.tables import metadata

# Each database as its first version made it; a migration leads on from there.
_FIRST = Path(__file__).parents[2] / "data" / "homes"
_NEWEST = migrate.list_revisions()[-1]
_NEXT = f"""
import sqlalchemy as sa
from alembic import op

revision = "0099_moods"
down_revision = "{_NEWEST}"


def upgrade() -> None:
    op.create_table("moods", sa.Column("name", sa.Text, primary_key=True))
    op.add_column("tasks", sa.Column("mood", sa.Text))
    op.execute("UPDATE tasks SET mood = title")
"""


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    made = connect(database_url)
    yield made
    made.dispose()


def _add_migration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str = _NEXT) -> None:
    """Have one more migration."""
    scripts = shutil.copytree(migrate.SCRIPTS, tmp_path / "migrations")
    (scripts / "versions" / "0099_moods.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(migrate, "SCRIPTS", scripts)


def _make_first(engine: sa.Engine) -> None:
    """Make the database as its first version did."""
    statements = (_FIRST / f"0001_{engine.dialect.name}.sql").read_text(encoding="utf-8")
    with engine.begin() as connection:
        for statement in statements.split(";\n"):
            connection.exec_driver_sql(statement)


# SQLAlchemy cannot read the indexes of the ends of ids back from SQLite.
@pytest.mark.filterwarnings("ignore:(Skipped unsupported|autogenerate skipping).*expression-based")
@pytest.mark.parametrize("made", ["anew", "by its first version"])
def test_a_database_has_exactly_the_tables(engine: sa.Engine, made: str) -> None:
    """A change of a table without a migration is found here."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    if made != "anew":
        _make_first(engine)
    migrate.migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=COMPARED)
        assert compare_metadata(context, metadata) == []
    assert migrate.read_revision(engine) == migrate.list_revisions()[-1]
    migrate.migrate(engine, lambda: pytest.fail("a copy of what is not changed"))


def test_every_migration_is_reached_from_the_first_one() -> None:
    from alembic.script import ScriptDirectory

    scripts = [*ScriptDirectory(str(migrate.SCRIPTS)).walk_revisions()]
    assert [script.revision for script in reversed(scripts)] == migrate.list_revisions()


def test_an_older_schema_is_brought_to_the_newest_with_what_it_holds(
    engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.migrate(engine)
    row = task_row(title="An old task")
    with engine.begin() as connection:
        tasks.insert(connection, row, [])
    _add_migration(monkeypatch, tmp_path)
    copied: list[str | None] = []
    migrate.migrate(engine, lambda: copied.append(migrate.read_revision(engine)))
    assert copied == [_NEWEST]
    assert migrate.read_revision(engine) == "0099_moods"
    with engine.connect() as connection:
        moods = sa.text("SELECT mood FROM tasks")
        assert connection.execute(moods).scalar() == "An old task"
        assert tasks.get(connection, row["id"]).title == "An old task"
    assert "moods" in sa.inspect(engine).get_table_names()


_STOPPED = {
    "limit": {"reason": "the run has nothing left", "limit_reached": "Its budget is spent."},
    "rate_limit": {"reason": "makes way for another agent: one is rate-limited"},
    "input": {"reason": "nobody is there to answer: Red or blue?"},
    # Anybody could type these.
    "person": {"reason": "cancelled by a person"},
    "attempt": {"reason": "cancelled by task_0"},
}


@pytest.mark.filterwarnings("ignore:Skipped unsupported.*expression-based")
def test_what_older_versions_told_by_texts_is_in_fields(engine: sa.Engine) -> None:
    _make_first(engine)
    old = sa.MetaData()
    old.reflect(engine, only=["tasks", "attempts", "checks", "runs", "steps"])
    shared = {
        "title": "",
        "directory": "/",
        "workspace_path": "/",
        "workspace_kind": "in_place",
        "created_at": 0,
    }
    with engine.begin() as connection:
        for stopper, values in _STOPPED.items():
            task = task_row(id=stopper, status="cancelled", created_at=0, **values)
            connection.execute(old.tables["tasks"].insert(), task)
        attempt: dict[str, Any] = {
            "id": "attempt",
            "task_id": "limit",
            "number": 1,
            "status": "completed",
        }
        facts = {"mode": "fresh", "agent": "x", "warnings": [], "started_at": 0}
        connection.execute(old.tables["attempts"].insert(), {**attempt, **facts})
        for number, proof in enumerate(("It fails.", "It fails. Remembered from task_1, now.")):
            check: dict[str, Any] = {"attempt_id": "attempt", "position": number}
            check |= {"name": "", "output": ""}
            made = {"passed": True, "duration_s": 1.0, "proof": proof}
            connection.execute(old.tables["checks"].insert(), {**check, **made})
        for pattern, labels in _LABELS.items():
            run = {**shared, "id": pattern, "status": "running", "pattern": pattern}
            connection.execute(old.tables["runs"].insert(), {**run, "spec": {}, "progress": {}})
            for label, (position, _, _) in labels.items():
                result = {"status": "cancelled", **_STOPPED["rate_limit"]}
                step: dict[str, Any] = {"run_id": pattern, "position": position}
                step |= {"kind": "task", "label": label}
                step |= {"data": {}, "result": result, "started_at": 0}
                connection.execute(old.tables["steps"].insert(), step)
    migrate.migrate(engine)
    with engine.connect() as connection:
        stoppers = dict(
            connection.execute(sa.select(tables.tasks.c.id, tables.tasks.c.stopped_by)).all()
        )
        assert stoppers == {
            "limit": "limit",
            "rate_limit": "rate_limit",
            "input": "input",
            "person": None,
            "attempt": None,
        }
        proofs = attempts.load_checks(connection, "attempt").values()
        assert [one.proved_earlier for one in proofs] == [False, True]
        for pattern, labels in _LABELS.items():
            for row in steps.load_by_position(connection, pattern).values():
                assert (row["position"], row["role"], row["cycle"]) == labels[row["label"]]
                assert row["result"]["stopped_by"] == "rate_limit"


# By pattern and title: the place of a step, its role and its cycle.
_LABELS: dict[str, dict[str, tuple[str, str | None, int | None]]] = {
    "debate": {
        "Side one (round 2)": ("0001.1.0001", "side_one", 2),
        "Side two (round 12) (again)": ("0001.2.0002", "side_two", 12),
        "Refinement": ("0002", "refine", None),
    },
    "workflow": {"Review (cycle 3)": ("0001", "review", 3)},
    "team": {
        "Plan (again)": ("0002", "plan", None),
        "Plan": ("0003.1.0001", None, None),
        "Write it": ("0003.2.0001", None, None),
    },
    "own": {"Plan": ("0001", None, None)},
}


def test_a_migration_that_fails_changes_nothing(
    engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.migrate(engine)
    _add_migration(monkeypatch, tmp_path, f"{_NEXT}    op.execute('SELECT nothing')\n")
    with pytest.raises(Unavailable, match=rf"{_NEWEST} to 0099_moods: .*nothing"):
        migrate.migrate(engine)
    assert migrate.read_revision(engine) == _NEWEST
    assert "moods" not in sa.inspect(engine).get_table_names()


def test_a_daemon_copies_an_older_home_before_it_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.create()
    _open_database(home, Settings()).close()
    _add_migration(monkeypatch, tmp_path)
    _open_database(home, Settings()).close()
    [copy] = backup.list_backups(home.backups)
    for path, schema in ((copy / "kapelle.db", _NEWEST), (home.database, "0099_moods")):
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            assert found == (schema,)


# From before versions were published, and from a version to come.
@pytest.mark.parametrize("schema", ["0001", "0023", "9999_future"])
def test_a_schema_that_is_not_known_is_refused_unchanged(engine: sa.Engine, schema: str) -> None:
    migrate.migrate(engine)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{schema}'"))
    with pytest.raises(Unavailable, match=f"has schema {schema};") as refused:
        migrate.migrate(engine, lambda: pytest.fail("a copy of what is not changed"))
    assert "Start the version that created it" in (refused.value.hint or "")
    assert "move kapelle.db away" in (refused.value.hint or "")
    assert migrate.read_revision(engine) == schema


def test_a_database_of_another_program_is_refused(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE tasks (mine TEXT)"))
    with pytest.raises(Unavailable, match="a table tasks that Kapelle did not create"):
        migrate.migrate(engine)
    assert sa.inspect(engine).get_table_names() == ["tasks"]
