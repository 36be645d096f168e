"""Checks are proved to look at the work, and attempts know what the repository was like."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("repository", sa.JSON))
    op.add_column("checks", sa.Column("proved", sa.Boolean))
    op.add_column("checks", sa.Column("proof", sa.Text))
    op.create_table(
        "proofs",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("proved", sa.Boolean),
        sa.Column("proof", sa.Text, nullable=False),
    )
