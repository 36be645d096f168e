"""Tasks and runs know the task whose attempt asked for them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    for name in ("tasks", "runs"):
        op.add_column(name, sa.Column("parent_task_id", sa.String(40)))
        op.create_index(f"ix_{name}_parent_task_id", name, ["parent_task_id"])
    conducts = sa.Column("coordinate", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tasks", conducts)
