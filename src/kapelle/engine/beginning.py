"""Gives queued tasks their next attempt, by the agent that can make it."""

from collections.abc import Sequence
from datetime import UTC, datetime

from kapelle.domain.ids import new_id
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.engine.accounts import Candidate
from kapelle.engine.choosing import Paused, choose
from kapelle.engine.runs.limits import SPENT, too_many_calls
from kapelle.store import accounts, attempts, events, tasks
from kapelle.store.database import Connection

Choice = tuple[str, Sequence[Candidate]]


def begin(connection: Connection, ready: Sequence[Choice], performer: str) -> list[str]:
    """Give each task that is still queued a new attempt; at most one, whoever asks.

    One whose agents are all limited waits for the first of them.
    """
    paused = accounts.paused(connection, datetime.now(UTC))
    begun = []
    for task_id, among in ready:
        task = tasks.row(connection, task_id)
        if task["status"] != TaskStatus.QUEUED or tasks.is_held(connection, task):
            continue
        if problem := _not_allowed(connection, task):
            tasks.move(connection, task, TaskStatus.CANCELLED, problem)
            continue
        chosen = choose(connection, task_id, among, paused)
        if chosen is None:
            _wait(connection, task, among, paused)
        else:
            begun.append(_begin(connection, task, chosen, performer))
    return begun


def _not_allowed(connection: Connection, task: tasks.Row) -> str | None:
    """Why the run that a task is part of may call no more agents."""
    if task["run_id"] is None:
        return None
    problem = too_many_calls(connection, task["run_id"], one_more=True)
    return SPENT + problem if problem else None


def _wait(
    connection: Connection, task: tasks.Row, among: Sequence[Candidate], paused: Paused
) -> None:
    until, reason = min(paused[candidate.account] for candidate in among)
    if len(among) > 1:
        reason = f"all of its agents are limited; first, {reason}"
    tasks.move(
        connection,
        task,
        TaskStatus.WAITING,
        f"{reason} until {until:%Y-%m-%d %H:%M:%S} UTC",
        waiting_for="rate_limit",
        not_before=until,
    )


def _begin(connection: Connection, task: tasks.Row, chosen: Candidate, performer: str) -> str:
    last = attempts.latest(connection, task["id"])
    attempt_id = new_id("attempt")
    now = datetime.now(UTC)
    number = (last["number"] if last else 0) + 1
    attempts.insert(
        connection,
        id=attempt_id,
        task_id=task["id"],
        number=number,
        status=AttemptStatus.RUNNING,
        mode=task["next_mode"],
        message=task["next_message"],
        agent=chosen.agent,
        account=chosen.account,
        performer=performer,
        warnings=[],
        started_at=now,
    )
    tasks.move(
        connection,
        task,
        TaskStatus.RUNNING,
        started_at=task["started_at"] or now,
        not_before=None,
        next_mode="fresh",
        next_message=None,
        tries=task["tries"] + 1,
    )
    events.append(
        connection, "attempt.started", task["id"], attempt_id, number=number, agent=chosen.agent
    )
    return attempt_id
