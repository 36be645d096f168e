"""Projects, those that work, schedules or learnings name, and where they are the current ones."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("directories", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("archived_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    named = " UNION ".join(f"SELECT project FROM {one}" for one in ("tasks", "runs", "schedules"))
    op.execute(
        "INSERT INTO projects (name, directories, created_at) SELECT project, '[]', "
        f"{time.time_ns() // 1000} FROM ({named}) AS named WHERE project IS NOT NULL"
    )
