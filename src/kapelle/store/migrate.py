"""Brings a database to the newest schema; refuses one that is newer than this program.

A new database is made from the tables as they are; a migration only changes one that is there.
"""

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from kapelle.domain.errors import Unavailable
from kapelle.store.tables import metadata

HEAD = "0023"
_SCRIPTS = Path(__file__).parent / "migrations"
_versions = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)


def current(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(sa.select(_versions)).scalar()
        return version


def migrate(engine: sa.Engine, before: Callable[[], object] = lambda: None) -> None:
    """Apply what is missing in one transaction; before that, have a copy of an older one made."""
    try:
        found = current(engine)
    except sa.exc.OperationalError as error:
        raise Unavailable(
            f"The database cannot be reached: {str(error.orig).strip()}",
            hint="Look at KAPELLE_DATABASE_URL or the setting database_url.",
        ) from error
    if found == HEAD:
        return
    if found is None:
        _create(engine)
        return
    if found > HEAD:
        raise Unavailable(
            f"The database has schema {found}, but this version of Kapelle knows only {HEAD}.",
            hint="Install the newer version again, or restore a backup made by this one.",
        )
    before()
    try:
        _upgrade(engine)
    except sa.exc.DBAPIError as error:
        raise _too_old(found, str(error.orig)) from error


def _upgrade(engine: sa.Engine) -> None:
    # Imported here, for it costs a daemon that has nothing to migrate 10 MB.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        tables = sa.inspect(connection)
        for table in metadata.sorted_tables:
            present = {column["name"] for column in tables.get_columns(table.name)}
            if lacking := {*table.columns.keys()} - present:
                raise _too_old("0001", f"{table.name} has no {min(lacking)}")


def _too_old(found: str, problem: str) -> Unavailable:
    # Before there were versions, several schemas were all called 0001.
    return Unavailable(
        f"The database has an early form of schema {found} that this version of Kapelle cannot "
        f"bring to {HEAD}: {problem}.",
        hint="Nothing was changed. Move kapelle.db away to begin with an empty history; branches "
        "and refs/kapelle/archive in your repositories stay as they are.",
    )


def _create(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        foreign = set(sa.inspect(connection).get_table_names()) & set(metadata.tables)
        if foreign:
            raise Unavailable(
                f"The database has a table {min(foreign)} that Kapelle did not make.",
                hint="Give Kapelle a database of its own.",
            )
        metadata.create_all(connection, checkfirst=False)
        _versions.create(connection)
        connection.execute(_versions.insert(), {"version_num": HEAD})
