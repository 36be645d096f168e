"""How often a run may call agents, held where attempts begin."""

from kapelle.store import runs
from kapelle.store.database import Connection

# By this a run tells a task that ended for its sake from one that somebody cancelled.
SPENT = "the run has nothing left: "


def too_many_calls(connection: Connection, run_id: str, *, one_more: bool) -> str | None:
    """Why a run, or one around it, may not have called that often; one_more counts one to come."""
    around: str | None = run_id
    while around is not None:
        run = runs.row(connection, around)
        limit = run["spec"].get("max_agent_calls")
        if limit is not None:
            if one_more:
                called = runs.attempts_made(connection, around) + 1
            else:
                called = runs.calls(connection, around)
            if called > limit:
                who = "It" if around == run_id else f"{around}, around it,"
                return f"{who} may call agents {limit} times, and has."
        around = run["parent_id"]
    return None
