"""Which of a task's agents makes the next attempt."""

from collections.abc import Sequence
from datetime import datetime

from kapelle.domain.failures import POLICIES, FailureClass, Response
from kapelle.engine.accounts import Candidate
from kapelle.store import attempts
from kapelle.store.database import Connection

Paused = dict[str, tuple[datetime, str]]


def choose(
    connection: Connection, task_id: str, among: Sequence[Candidate], paused: Paused
) -> Candidate | None:
    """The first that is not paused and has not just shown that it cannot; None if all pause."""
    able = [candidate for candidate in among if candidate.account not in paused]
    if len(able) < 2:
        return able[0] if able else None
    tired = given_up(connection, task_id)
    return next((candidate for candidate in able if candidate.agent not in tired), able[0])


def given_up(connection: Connection, task_id: str) -> set[str]:
    """The agents whose last attempt at this task ended so that another one should take over."""
    last = {row["agent"]: row["failure"] for row in attempts.of_task(connection, task_id)}
    return {agent for agent, failure in last.items() if failure and _is_over(FailureClass(failure))}


def _is_over(failure: FailureClass) -> bool:
    # Whoever was limited may work again as soon as the pause of the account is over.
    policy = POLICIES[failure]
    return policy.switches and policy.response is not Response.WAIT_FOR_RESET
