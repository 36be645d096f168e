"""Brings a database to the newest schema; refuses one that is newer than this program."""

from pathlib import Path

import sqlalchemy as sa

from kapelle.domain.errors import Unavailable

HEAD = "0001"
_SCRIPTS = Path(__file__).parent / "migrations"


def current(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(
            sa.text("SELECT version_num FROM alembic_version")
        ).scalar()
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
        return  # spares the daemon the import of alembic at every start
    if found is not None and found > HEAD:
        raise Unavailable(
            f"The database has schema {found}, but this version of Kapelle knows only {HEAD}.",
            hint="Install the newer version again, or restore a backup made by this one.",
        )
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
