"""The first schema, which is made from the tables themselves: migrations begin after it."""

revision = "0001_first_schema"
down_revision = None


def upgrade() -> None:
    """Nothing: a database of this revision was made with its tables."""
