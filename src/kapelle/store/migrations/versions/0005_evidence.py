"""Processes have secrets, and checks say what they were made on."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("directory", sa.String(40), nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("begun_at", sa.BigInteger, nullable=False),
        sa.Column("succeeded", sa.Boolean),
        sa.PrimaryKeyConstraint("owner", "name", name="pk_processes"),
        sa.UniqueConstraint("directory", name="uq_processes_directory"),
    )
    op.add_column("attempts", sa.Column("secret", sa.String(64)))
    op.add_column("attempts", sa.Column("checked_commit", sa.Text))
    for name in ("command", "commit", "directory"):
        op.add_column("checks", sa.Column(name, sa.Text))
    op.add_column("checks", sa.Column("exit_code", sa.Integer))
    for name in ("out_sha256", "err_sha256"):
        op.add_column("checks", sa.Column(name, sa.String(64)))
    attempts = sa.table("attempts", sa.column("id"), sa.column("status"), sa.column("secret"))
    running = sa.select(attempts.c.id).where(attempts.c.status == "running")
    for attempt_id in list(op.get_bind().execute(running).scalars()):
        mine = attempts.update().where(attempts.c.id == attempt_id)
        op.execute(mine.values(secret=secrets.token_hex(32)))
