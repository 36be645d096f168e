"""Questions of tasks and runs are rows; tasks say how far they are, attempts what they hand in."""

import sqlalchemy as sa
from alembic import op

from kapelle.store.tables import Instant, SafeJson

revision = "0011"
down_revision = "0010"

_NAMES = {
    "steps": ("run_id", "position", "kind", "label"),
    "tasks": ("id", "question", "reason", "waiting_for"),
}


def upgrade() -> None:
    op.add_column("tasks", sa.Column("report", sa.Text))
    op.add_column("attempts", sa.Column("handed_in", sa.JSON))
    questions = op.create_table(
        "questions",
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("task_id", sa.String(40)),
        sa.Column("run_id", sa.String(40)),
        sa.Column("attempt_id", sa.String(40)),
        sa.Column("told", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("choices", sa.JSON, nullable=False),
        sa.Column("default", sa.Text),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("answer", sa.Text),
        *(sa.Column(name, Instant, nullable=name != "asked_at") for name in _MOMENTS),
        sa.PrimaryKeyConstraint("token", name="pk_questions"),
        *(
            sa.ForeignKeyConstraint(
                [f"{kind}_id"], [f"{kind}s.id"], f"fk_questions_{kind}_id", ondelete="CASCADE"
            )
            for kind in ("task", "run")
        ),
    )
    for names in (("status", "asked_at"), ("task_id",), ("run_id",)):
        op.create_index(f"ix_questions_{'_'.join(names)}", "questions", names)
    steps = _table("steps", sa.column("data", SafeJson), sa.column("started_at", Instant))
    steps_open = steps.select().where(steps.c.kind == "ask", sa.column("ended_at").is_(None))
    tasks = _table("tasks", sa.column("created_at", Instant))
    waiting = tasks.select().where(tasks.c.waiting_for == "input")
    connection = op.get_bind()
    rows = [
        {"token": f"{row.run_id}:{row.position}", "run_id": row.run_id, "text": row.label,
         "default": row.data.get("default"), "asked_at": row.started_at}
        for row in connection.execute(steps_open)
    ] + [
        {"token": f"{row.id}:1", "task_id": row.id, "text": row.question or row.reason or "",
         "asked_at": row.created_at}
        for row in connection.execute(waiting)
    ]  # fmt: skip
    for values in rows:
        op.execute(questions.insert().values(choices=[], status="open", **values))


_MOMENTS = ("asked_at", "expires_at", "ended_at")


def _table(name: str, *more: sa.ColumnClause[object]) -> sa.TableClause:
    return sa.table(name, *map(sa.column, _NAMES[name]), *more)
