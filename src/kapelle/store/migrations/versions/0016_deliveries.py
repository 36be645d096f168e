"""Where work is delivered to."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "deliveries",
        sa.Column("owner", sa.String(40), primary_key=True),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("force", sa.Boolean, nullable=False),
        sa.Column("draft", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("reason", "commit", "forge", "branch")),
        sa.Column("pushed", sa.JSON, nullable=False),
        sa.Column("number", sa.Integer),
        sa.Column("url", sa.Text),
        sa.Column("state", sa.String(10)),
        sa.Column("ci", sa.String(10)),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_at", sa.BigInteger),
        sa.Column("updated_at", sa.BigInteger),
    )
    op.create_index("ix_deliveries_status_next_at", "deliveries", ["status", "next_at"])
