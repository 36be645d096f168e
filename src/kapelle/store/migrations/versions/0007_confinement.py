"""How the processes of an attempt were confined."""

import sqlalchemy as sa
from alembic import op

revision = "0007_confinement"
down_revision = "0006_state_in_fields"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("confinement", sa.String(20)))
