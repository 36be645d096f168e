"""Tasks and runs know their repository, and ids are found by their ends."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for name in ("tasks", "runs"):
        op.add_column(name, sa.Column("repository", sa.Text))
        op.execute(f"UPDATE {name} SET repository = directory")
        op.create_index(f"ix_{name}_repository_id", name, ["repository", "id"])
    for name in ("tasks", "runs", "schedules"):
        op.create_index(f"ix_{name}_end", name, [sa.text(f"substr(id, {len(name) + 22})")])
