"""Notes that agents and people share."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "notes",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("author", sa.String(40), nullable=False),
        sa.Column("task_id", sa.String(40)),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
