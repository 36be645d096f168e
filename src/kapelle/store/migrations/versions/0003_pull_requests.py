"""What a person asked of a pull request, and the comments on it that an agent was told."""

import sqlalchemy as sa
from alembic import op

from kapelle.store.tables import SafeJson

revision = "0003_pull_requests"
down_revision = "0002_messages"


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("ready", sa.Boolean()))
    op.add_column("deliveries", sa.Column("heard", SafeJson()))
