"""Tasks whose agent a person talks to in a terminal."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    column = sa.Column("interactive", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tasks", column)
