"""What a person asked of a pull request, and the comments on it that an agent was told."""

import sqlalchemy as sa
from alembic import op

from kapelle.store.tables import SafeJson

revision = "0010_pull_requests"
down_revision = "0001_first_schema"


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("ready", sa.Boolean()))
    op.add_column("deliveries", sa.Column("heard", SafeJson()))
