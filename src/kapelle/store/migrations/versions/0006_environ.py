"""Tasks and runs know the environment that they were asked for in, by its digest."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    for name in ("tasks", "runs"):
        op.add_column(name, sa.Column("shell", sa.String(64)))
