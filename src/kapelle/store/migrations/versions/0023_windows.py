"""Accounts know what their providers told of their limits."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("accounts", sa.Column("windows", sa.JSON))
