"""Tasks and attempts say what was asked; runs, whether their tasks may ask."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for table in ("tasks", "attempts"):
        op.add_column(table, sa.Column("question", sa.Text))
    may_ask = sa.Column("may_ask", sa.Boolean, nullable=False, server_default=sa.true())
    op.add_column("runs", may_ask)
