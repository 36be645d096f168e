"""Tasks know whether their agent has a browser."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    column = sa.Column("browser", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tasks", column)
