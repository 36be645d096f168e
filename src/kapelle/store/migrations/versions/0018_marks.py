"""Tasks and runs know what a person has seen of them, flagged, or put off."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    for table in ("tasks", "runs"):
        for name in ("seen_at", "flagged_at", "snoozed_until"):
            op.add_column(table, sa.Column(name, sa.BigInteger))
