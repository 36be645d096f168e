"""Brings a database to the newest schema; refuses one that is newer than this program.

A new database is made from the tables as they are; a migration only changes one that is there.
"""

from pathlib import Path

import sqlalchemy as sa

from kapelle.domain.errors import Unavailable
from kapelle.store.tables import metadata

HEAD = "0006"
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


def migrate(engine: sa.Engine) -> None:
    """Apply what is missing, each migration in one transaction."""
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
    # Imported here, for it costs a daemon that has nothing to migrate 10 MB.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


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
