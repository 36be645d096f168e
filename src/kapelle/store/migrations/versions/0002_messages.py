"""Add messages of people, and what the daemon knows about the end of an agent."""

import sqlalchemy as sa
from alembic import op

revision = "0002_messages"
down_revision = "0001_first_schema"


def upgrade() -> None:
    op.create_table(
        "messages",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("task_id", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(40)),
        sa.Column("attempt_id", sa.String(40)),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("delivered_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_messages"),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name="fk_messages_task_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_messages_task_id_id", "messages", ["task_id", "id"])
    op.create_index("ix_messages_run_id_id", "messages", ["run_id", "id"])
    op.create_index("ix_messages_attempt_id", "messages", ["attempt_id"])
    op.add_column("attempts", sa.Column("ended_for", sa.JSON))
    op.add_column("attempts", sa.Column("side_log", sa.JSON))
    op.add_column("processes", sa.Column("side_log", sa.JSON))
    op.add_column("tasks", sa.Column("uncounted", sa.Integer, nullable=False, server_default="0"))
