"""What makes a passed check worth nothing, and when the work on a worktree began."""

import sqlalchemy as sa
from alembic import op

revision = "0004_doubts_of_checks"
down_revision = "0003_pull_requests"

_LISTS = ("passes_only_with", "changed_meanwhile", "overlooks")


def upgrade() -> None:
    for name in _LISTS:
        op.add_column("checks", sa.Column(name, sa.JSON, nullable=False, server_default="[]"))
    doubted = sa.Column("doubted", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("checks", doubted)
    for name in ("began_ns", "began_inode"):
        op.add_column("attempts", sa.Column(name, sa.BigInteger))
