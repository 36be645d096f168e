"""A home whose schema this version does not know is refused with a sentence."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance


def test_a_home_from_before_the_first_schema_is_refused_unchanged(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    instance.home.create()
    with closing(sqlite3.connect(instance.home.database)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('0023')")
        connection.execute("CREATE TABLE tasks (id TEXT)")
        connection.commit()
    before = _dump(instance.home.database)
    try:
        with pytest.raises(AssertionError, match="has schema 0023; this version of Kapelle knows"):
            instance.start()
        assert "Traceback" not in instance.log_tail()
        assert "move kapelle.db away" in instance.log_tail()
        assert _dump(instance.home.database) == before
    finally:
        instance.destroy()


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())
