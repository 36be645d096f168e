"""Homes that earlier versions left: brought to the present schema, or refused with a sentence."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from kapelle.store import backup
from kapelle.store.migrate import HEAD, current, migrate
from kapelle.store.tables import metadata
from tests.e2e.instance import Instance
from tests.integration.rows import COMPARED

_HOMES = Path(__file__).parents[1] / "data" / "homes"
_TASK = "task_01k40000000000000000000000"


def _old_home(instance: Instance, name: str) -> None:
    """A home with the database that an earlier version made, as it dumped it."""
    instance.home.create()
    with closing(sqlite3.connect(instance.home.database)) as connection:
        connection.executescript((_HOMES / name).read_text(encoding="utf-8"))


def test_a_home_of_schema_0001_is_migrated_with_a_copy_made_before(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    _old_home(instance, "0001.sql")
    try:
        instance.start()
        task = instance.task(_TASK)
        assert (task["title"], task["status"]) == ("An old task", "completed")
        again = instance.submit("hello")
        assert instance.wait(again)["status"] == "completed"
        copy = backup.existing(instance.home.backups)[0] / "kapelle.db"
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (
                "0001",
            )
    finally:
        instance.destroy()


@pytest.mark.filterwarnings("ignore:(Skipped unsupported|autogenerate skipping).*expression-based")
def test_the_migrations_lead_from_the_first_schema_to_exactly_the_tables(tmp_path: Path) -> None:
    """A change of a table without a migration is found here."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    path = tmp_path / "kapelle.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((_HOMES / "0001.sql").read_text(encoding="utf-8"))
    engine = sa.create_engine(f"sqlite:///{path}")
    migrate(engine)
    assert current(engine) == HEAD
    with engine.connect() as connected:
        context = MigrationContext.configure(connected, opts=COMPARED)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_a_home_from_before_there_were_versions_is_refused_unchanged(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    _old_home(instance, "0001_early.sql")
    before = _dump(instance.home.database)
    try:
        with pytest.raises(AssertionError, match="an early form of schema 0001"):
            instance.start()
        assert "Traceback" not in instance.log_tail()
        assert "Move kapelle.db away" in instance.log_tail()
        assert _dump(instance.home.database) == before
    finally:
        instance.destroy()


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())
