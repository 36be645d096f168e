"""Templates, and what tasks were told by theirs."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "templates",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("guidelines", sa.Text, nullable=False),
        sa.Column("agent", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("directory", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_templates"),
    )
    op.add_column("tasks", sa.Column("template", sa.Text))
    op.add_column("tasks", sa.Column("guidelines", sa.Text))
    op.create_index("ix_tasks_template", "tasks", ["template"])
