"""Learnings, with their full-text index, and what attempts were told of them."""

import sqlalchemy as sa
from alembic import op

from kapelle.store.tables import create_index

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "learnings",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("scope", sa.String(10), nullable=False),
        sa.Column("project", sa.Text),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("task_id", sa.String(40)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("reviewed_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_learnings"),
    )
    op.create_index("ix_learnings_project_id", "learnings", ["project", "id"])
    op.create_index("ix_learnings_task_id", "learnings", ["task_id"])
    op.create_index("ix_learnings_status_reviewed_at", "learnings", ["status", "reviewed_at"])
    op.create_index("ix_learnings_end", "learnings", [sa.text("substr(id, 31)")])
    create_index(op.get_bind())
    op.add_column("attempts", sa.Column("memory", sa.JSON))
