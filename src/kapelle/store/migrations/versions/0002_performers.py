"""Attempts and runs name who performs them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for table in ("attempts", "runs"):
        op.add_column(table, sa.Column("performer", sa.Text))
