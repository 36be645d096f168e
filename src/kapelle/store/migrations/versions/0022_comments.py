"""Deliveries know which comments on their pull request an agent was told."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("heard_at", sa.BigInteger))
