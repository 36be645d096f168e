"""Locks on files that agents share."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "locks",
        sa.Column("checkout", sa.Text, primary_key=True),
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("owner", sa.String(40), primary_key=True),
        sa.Column("task_id", sa.String(40)),
        sa.Column("reason", sa.Text),
        sa.Column("ttl_s", sa.Float, nullable=False),
        sa.Column("taken_at", sa.BigInteger, nullable=False),
    )
