"""Brings a database to the newest schema; refuses one that this program does not know.

A new database is made from the tables as they are; a migration only changes one that is there.
It is a file in migrations/versions, whose name is its revision: number and words, in order.
"""

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from kapelle.domain.errors import Unavailable
from kapelle.store.tables import metadata

SCRIPTS = Path(__file__).parent / "migrations"
_versions = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)


def list_revisions() -> list[str]:
    """Every schema that there was, the newest last."""
    return sorted(path.stem for path in SCRIPTS.glob("versions/0*.py"))


def read_revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(sa.select(_versions)).scalar()
        return version


def migrate(engine: sa.Engine, before: Callable[[], object] = lambda: None) -> None:
    """Apply what is missing in one transaction; before that, have a copy of an older one made."""
    try:
        found = read_revision(engine)
        known = list_revisions()
    except sa.exc.OperationalError as error:
        raise Unavailable(
            f"The database cannot be reached: {str(error.orig).strip()}",
            hint="Look at KAPELLE_DATABASE_URL or the setting database_url.",
        ) from error
    if found is None:
        _create(engine, known[-1])
    elif found not in known:
        raise Unavailable(
            f"The database has schema {found}; this version of Kapelle knows those from {known[0]} "
            f"to {known[-1]}.",
            hint="Nothing was changed. Start the version that made it, or restore a backup made by "
            "this one. To begin with an empty history, move kapelle.db away or name an empty "
            "database; branches and refs/kapelle/archive in your repositories stay as they are.",
        )
    elif found != known[-1]:
        before()
        try:
            _upgrade(engine)
        except sa.exc.DBAPIError as error:
            raise Unavailable(
                f"The database cannot be brought from schema {found} to {known[-1]}: {error.orig}.",
                hint="Nothing was changed. Start the version that made it.",
            ) from error


def _upgrade(engine: sa.Engine) -> None:
    # Imported here, for it costs a daemon that has nothing to migrate 10 MB.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _create(engine: sa.Engine, revision: str) -> None:
    with engine.begin() as connection:
        foreign = set(sa.inspect(connection).get_table_names()) & set(metadata.tables)
        if foreign:
            raise Unavailable(
                f"The database has a table {min(foreign)} that Kapelle did not make.",
                hint="Give Kapelle a database of its own.",
            )
        metadata.create_all(connection, checkfirst=False)
        _versions.create(connection)
        connection.execute(_versions.insert(), {"version_num": revision})
