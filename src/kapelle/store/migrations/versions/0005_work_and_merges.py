"""Work in place by default; what a merge moved, and that it was undone."""

import sqlalchemy as sa
from alembic import op

from kapelle.store.tables import Instant, SafeText

revision = "0005_work_and_merges"
down_revision = "0004_doubts_of_checks"


def upgrade() -> None:
    for table in ("tasks", "runs"):
        by_default = sa.Column(
            "workspace_in_place_by_default",
            sa.Boolean,
            nullable=False,
            server_default=sa.false(),
        )
        op.add_column(table, by_default)
        for name in ("merged_into", "merge_commit", "merge_parent", "merged_tip"):
            op.add_column(table, sa.Column(name, SafeText))
        op.add_column(table, sa.Column("merge_undone_at", Instant))
