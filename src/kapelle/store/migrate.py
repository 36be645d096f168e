"""Migrations: upgrade a database to the newest schema, and refuse an unknown schema.

A new database is created from the present tables; migrations only change existing databases.
Each migration is a file in migrations/versions. Its name, a number and words, is its revision.
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
    """Return all revisions of the schema, the newest last."""
    return sorted(path.stem for path in SCRIPTS.glob("versions/0*.py"))


def read_revision(engine: sa.Engine) -> str | None:
    """Return the revision of a database; None for an empty one."""
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(sa.select(_versions)).scalar()
        return version


def migrate(engine: sa.Engine, before: Callable[[], object] = lambda: None) -> None:
    """Create or upgrade a database in one transaction; call `before` before an upgrade.

    Raise Unavailable, without a change, if the database cannot be reached or upgraded.
    """
    revisions = list_revisions()
    newest = revisions[-1]
    try:
        revision = read_revision(engine)
    except sa.exc.OperationalError as error:
        raise Unavailable(
            f"The database cannot be reached: {str(error.orig).strip()}",
            hint="Look at KAPELLE_DATABASE_URL or the setting database_url.",
        ) from error
    if revision is None:
        _create(engine, newest)
    elif revision not in revisions:
        raise Unavailable(
            f"The database has schema {revision}; this version of Kapelle knows the schemas from "
            f"{revisions[0]} to {newest}.",
            hint="Nothing was changed. Start the version that created it, or restore a backup of "
            "this version. To start with an empty history, move kapelle.db away or name an empty "
            "database; branches and refs/kapelle/archive in your repositories stay as they are.",
        )
    elif revision != newest:
        before()
        try:
            _upgrade(engine)
        except sa.exc.DBAPIError as error:
            raise Unavailable(
                f"The upgrade from schema {revision} to {newest} failed: {error.orig}.",
                hint="Nothing was changed. Start the version that created it.",
            ) from error


def _upgrade(engine: sa.Engine) -> None:
    # Imported on first use: it takes 10 MB, and a daemon rarely has something to migrate.
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
                f"The database has a table {min(foreign)} that Kapelle did not create.",
                hint="Use a separate database for Kapelle.",
            )
        metadata.create_all(connection, checkfirst=False)
        _versions.create(connection)
        connection.execute(_versions.insert(), {"version_num": revision})
