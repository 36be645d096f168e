"""Tasks know the only tools of their agent, and whether it only reports."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("tools", sa.JSON, nullable=False, server_default="[]"))
    only_reports = sa.Column("read_only", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tasks", only_reports)
