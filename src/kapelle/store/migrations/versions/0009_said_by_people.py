"""Tasks and attempts hold what a person said, apart from what Kapelle adds to a message."""

import sqlalchemy as sa
from alembic import op

from kapelle.store.tables import Instant, SafeText

revision = "0009_said_by_people"
down_revision = "0001_first_schema"


def upgrade() -> None:
    """Add the columns; what was said before is not known."""
    for table, name in (("tasks", "next_said"), ("attempts", "said")):
        op.add_column(table, sa.Column(name, SafeText))
        op.add_column(table, sa.Column(f"{name}_at", Instant))
