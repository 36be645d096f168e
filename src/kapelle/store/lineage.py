"""Which runs belong to something that has not ended."""

import sqlalchemy as sa

from kapelle.domain.states import RUN_FINAL, RunStatus
from kapelle.store.tables import runs

_OPEN = [status for status in RunStatus if status not in RUN_FINAL]


def _going() -> sa.Select[tuple[str]]:
    tops = sa.select(runs.c.id).where(runs.c.status.in_(_OPEN)).cte("going", recursive=True)
    going = tops.union(sa.select(runs.c.id).join(tops, runs.c.parent_id == tops.c.id))
    return sa.select(going.c.id)


# The open runs and all runs inside of them, ended ones too.
GOING = _going()
