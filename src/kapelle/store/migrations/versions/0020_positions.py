"""How far those have come who follow the history across restarts."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "positions",
        sa.Column("reader", sa.String(20), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("reader", name="pk_positions"),
    )
