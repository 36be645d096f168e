"""Who stopped work, what the tasks of a run are for, and which proofs are earlier ones, in columns
of their own.

Older versions told this by texts. What a limit or its own run stopped, the steps of built-in
patterns, and earlier proofs are recognized by the texts that those versions wrote. Who else stopped
work stays unknown, for anybody could type such a reason.
"""

import re
from typing import Any

import sqlalchemy as sa
from alembic import op

from kapelle.store.tables import SafeText

revision = "0006_state_in_fields"
down_revision = "0005_work_and_merges"

_STOPPERS = {"makes way for another agent: ": "rate_limit", "nobody is there to answer: ": "input"}
_SIDE = re.compile(r"Side (one|two) \(round (\d+)\)")
_PHASE = re.compile(r"(Assess|Review|Implement) \(cycle (\d+)\)")
_AGAIN = " (again)"
_ROLES: dict[str, dict[str, str]] = {
    "debate": {
        "Minutes": "minutes",
        "Action": "act",
        "Verification": "verify",
        "Refinement": "refine",
    },
    "team": {"Intake": "intake", "Plan": "plan", "Review": "review"},
    "workflow": {},
}

_runs = sa.table("runs", sa.column("id"), sa.column("pattern"))
_steps = sa.table(
    "steps",
    sa.column("run_id"),
    sa.column("position"),
    sa.column("kind"),
    sa.column("label"),
    sa.column("role"),
    sa.column("cycle"),
    sa.column("result", sa.JSON),
)


def upgrade() -> None:
    op.add_column("steps", sa.Column("role", SafeText))
    op.add_column("steps", sa.Column("cycle", sa.Integer))
    for name in ("tasks", "runs"):
        op.add_column(name, sa.Column("stopped_by", sa.String(20)))
        _name_stoppers(name)
    _mark_earlier_proofs()
    _name_roles(op.get_bind())
    _name_stoppers_in_results(op.get_bind())


def _mark_earlier_proofs() -> None:
    earlier = sa.Column("proved_earlier", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("checks", earlier)
    checks = sa.table("checks", sa.column("proof"), sa.column("proved_earlier"))
    told = checks.update().where(checks.c.proof.contains(" Remembered from "))
    op.execute(told.values(proved_earlier=sa.true()))


def _name_stoppers(name: str) -> None:
    columns = ("status", "stop", "reason", "limit_reached", "stopped_by")
    table = sa.table(name, *map(sa.column, columns))
    is_stopped = sa.or_(table.c.status == "cancelled", table.c.stop.is_not(None))
    by_limit = table.update().where(is_stopped, table.c.limit_reached.is_not(None))
    op.execute(by_limit.values(stopped_by="limit"))
    for words, stopper in _STOPPERS.items():
        by_run = table.update().where(is_stopped, table.c.reason.startswith(words))
        op.execute(by_run.values(stopped_by=stopper))


def _name_roles(connection: sa.Connection) -> None:
    query = sa.select(_steps.c.run_id, _steps.c.position, _steps.c.label, _runs.c.pattern)
    query = query.join_from(_steps, _runs, _runs.c.id == _steps.c.run_id)
    query = query.where(_steps.c.kind == "task", _runs.c.pattern.in_(_ROLES))
    for step in connection.execute(query).mappings().all():
        if values := _role_of(step):
            _update(connection, step, values)


def _update(connection: sa.Connection, step: Any, values: dict[str, Any]) -> None:
    own = (_steps.c.run_id == step["run_id"], _steps.c.position == step["position"])
    connection.execute(_steps.update().where(*own).values(values))


def _role_of(step: Any) -> dict[str, Any]:
    """Return the role that the title of a step names, and its cycle."""
    label = step["label"].removesuffix(_AGAIN)
    pattern = step["pattern"]
    if pattern == "debate" and (side := _SIDE.fullmatch(label)):
        return {"role": f"side_{side[1]}", "cycle": int(side[2])}
    if pattern == "workflow" and (phase := _PHASE.fullmatch(label)):
        return {"role": phase[1].lower(), "cycle": int(phase[2])}
    # The workers of a team are branches of the run, and their titles an agent's.
    if "." in step["position"] or label not in _ROLES[pattern]:
        return {}
    return {"role": _ROLES[pattern][label]}


def _name_stoppers_in_results(connection: sa.Connection) -> None:
    """A run that goes on is told again how its tasks ended."""
    text = sa.cast(_steps.c.result, sa.Text)
    for words, stopper in _STOPPERS.items():
        query = sa.select(_steps.c.run_id, _steps.c.position, _steps.c.result)
        query = query.where(_steps.c.kind == "task", text.contains(words))
        for step in connection.execute(query).mappings().all():
            result = step["result"]
            if result["status"] == "cancelled" and result["reason"].startswith(words):
                _update(connection, step, {"result": {**result, "stopped_by": stopper}})
