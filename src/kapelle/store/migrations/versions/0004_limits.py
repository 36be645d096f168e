"""Tasks and runs say which limit of the run around them ended them."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_PREFIX = "the run has nothing left: "


def upgrade() -> None:
    for name in ("tasks", "runs"):
        op.add_column(name, sa.Column("limit_reached", sa.Text))
        table = sa.table(name, sa.column("reason", sa.Text), sa.column("limit_reached", sa.Text))
        sentence = sa.func.substr(table.c.reason, len(_PREFIX) + 1)
        ended = table.update().where(table.c.reason.startswith(_PREFIX))
        op.execute(ended.values(limit_reached=sentence))
