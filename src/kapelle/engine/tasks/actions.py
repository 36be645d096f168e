"""The effect of each action on a task, inside one transaction.

An action returns None, or the (attempt id, stop request) of a running attempt to stop.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from kapelle.domain.errors import Conflict
from kapelle.domain.ids import read_kind
from kapelle.domain.run import Run
from kapelle.domain.specs import Money, Spec, Turns
from kapelle.domain.states import FINAL, RUN_FINAL, StopCause, Stopper, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.text import excerpt
from kapelle.store import accounts, attempts, deliveries, events, messages, runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row
from kapelle.store.rows import update_work

StopReason = tuple[str, str] | None
W = TypeVar("W", Task, Run)


class NewLimits(Spec):
    """Limits of a task from its next attempt on; None leaves a limit unchanged."""

    budget_usd: Money | None = None
    max_turns: Turns | None = None

    @property
    def changes(self) -> dict[str, float]:
        return self.model_dump(include=set(NewLimits.model_fields), exclude_none=True)


_UNCHANGED = NewLimits()
_AFRESH: dict[str, Any] = {
    "next_mode": "fresh",
    "next_message": None,
    "tries": 0,
    "uncounted": 0,
}


def submit(connection: Connection, values: dict[str, Any], depends_on: Sequence[str]) -> Task:
    """Store a task: blocked if it has dependencies, else queued."""
    task_id = values["id"]
    title = values["title"]
    if depends_on:
        status = TaskStatus.BLOCKED
    else:
        status = TaskStatus.QUEUED
    tasks.insert(connection, {**values, "status": status}, depends_on)
    events.append(connection, "task.created", task_id, title=title)
    if depends_on:
        tasks.settle_dependencies(connection, task_id)
    task = tasks.get(connection, task_id)
    if task.status is status:  # else its dependencies have settled it already
        events.append(connection, f"task.{status}", task_id, title=title, reason=task.reason)
    return task


def cancel(connection: Connection, task_id: str, cause: StopCause) -> StopReason:
    """Cancel a task. Raises Conflict if it has ended."""
    task = tasks.load_row(connection, task_id)
    status = TaskStatus(task["status"])
    if status in FINAL:
        raise Conflict(f"{task_id} is {status} already.")
    if status is TaskStatus.RUNNING or attempts.find_open(connection, task_id):
        return _stop(connection, task, "cancel", cause)
    tasks.move(connection, task, TaskStatus.CANCELLED, cause.reason, **cause.marks)
    return None


def retry(connection: Connection, task_id: str, limits: NewLimits = _UNCHANGED) -> StopReason:
    """Queue an ended task again, with a fresh workspace and the full number of tries."""
    require_ended(connection, task_id, "retried")
    messages.end_waiting(connection, task_id)
    tasks.enqueue_again(connection, task_id, **_AFRESH, **limits.changes)
    return None


def resume(
    connection: Connection,
    task_id: str,
    message: str | None,
    limits: NewLimits = _UNCHANGED,
    heard: list[str] | None = None,
    merge: bool = False,
    author: str = "person",
    said: str | None = None,
) -> StopReason:
    """Queue an ended task again, to continue with a message.

    heard are the ids of the comments of others that the message contains. said is the part of the
    message that the author wrote. With merge, the base is merged into the branch first, when the
    attempt is claimed.
    """
    require_ended(connection, task_id, "resumed")
    if heard is not None:
        deliveries.update(connection, task_id, heard=heard)
    if merge:
        mode = "merge"
    elif attempts.find_latest(connection, task_id):
        mode = "resume"
    else:
        mode = "fresh"
    # A limit may have kept the agent from reading an earlier message.
    message = _join(tasks.load_row(connection, task_id)["next_message"], message)
    tasks.enqueue_again(
        connection,
        task_id,
        next_mode=mode,
        next_message=message,
        tries=0,
        uncounted=0,
        **limits.changes,
    )
    if said:
        message_id = messages.add(connection, task_id, "resume", said, author=author)
        facts = {"message_id": message_id, "author": author, "text": excerpt(said)}
        events.append(connection, "task.said", task_id, **facts)
    return None


def _join(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None


def say(connection: Connection, task_id: str, text: str, author: str) -> tuple[str, Row | None]:
    """Store a message for the agent of a task.

    Returns its id and the running attempt that may read it; None if the next attempt will.
    """
    task = tasks.load_row(connection, task_id)
    attempt = attempts.find_open(connection, task_id)
    attempt_id = None
    if attempt:
        attempt_id = attempt["id"]
    else:
        _require_listener(task)
        tasks.update(connection, task_id, next_message=_join(task["next_message"], text))
    message_id = messages.add(
        connection, task_id, "say", text, attempt_id=attempt_id, author=author
    )
    facts = {"message_id": message_id, "author": author, "text": excerpt(text)}
    events.append(connection, "task.said", task_id, attempt_id, **facts)
    return message_id, attempt


def _require_listener(task: Row) -> None:
    """Raise Conflict unless a later attempt will read a message."""
    task_id = task["id"]
    if task["status"] in FINAL:
        hint = f'kapelle resume {task_id} "…" continues it.'
        raise Conflict(f"{task_id} has ended.", hint=hint)
    if task["waiting_for"] == "input":
        raise Conflict(f"{task_id} is waiting for an answer.", hint=f'kapelle answer {task_id} "…"')


def report(connection: Connection, task_id: str, attempt_id: str, text: str) -> None:
    """Store an agent's own report of its progress."""
    tasks.update(connection, task_id, report=text)
    events.append(connection, "task.reported", task_id, attempt_id, text=text)


def hand_in(
    connection: Connection, task_id: str, attempt_id: str, result: Any, success: bool
) -> None:
    """Store the result that an agent hands in; it counts once the attempt has ended."""
    attempts.update(connection, attempt_id, handed_in={"result": result, "success": success})
    events.append(connection, "task.handed_in", task_id, attempt_id, success=success)


def lift_pauses(connection: Connection, task_id: str, of_agents: Sequence[str]) -> None:
    """Lift the pauses of the agents of a task that waits for a rate limit.

    The request of a person outweighs a limit without a known end, or with a distant one.
    """
    if tasks.load_row(connection, task_id)["waiting_for"] == "rate_limit":
        for account in of_agents:
            accounts.release(connection, account)
        # The request itself moves this task next, and would refuse a task that is queued already.
        tasks.wake_waiting(connection, "rate_limit", datetime.now(UTC), but=task_id)


def requeue(connection: Connection, task_id: str, by: Stopper = Stopper.PERSON) -> StopReason:
    """Queue a task again from the present state of its base; a running attempt is stopped first."""
    task = tasks.load_row(connection, task_id)
    status = TaskStatus(task["status"])
    if status is TaskStatus.RUNNING or attempts.find_open(connection, task_id):
        return _stop(connection, task, "requeue", StopCause(by, "requeued by a person"))
    if status in {TaskStatus.QUEUED, TaskStatus.BLOCKED}:
        raise Conflict(f"{task_id} is {status} already.")
    require_ended(connection, task_id, "requeued")
    messages.end_waiting(connection, task_id)
    anew = {"workspace_base_commit": None, "starting_tree": None}
    tasks.enqueue_again(connection, task_id, **_AFRESH, **anew)
    return None


def depend(connection: Connection, task_id: str, depends_on: Sequence[str]) -> StopReason:
    """Replace the dependencies of a task that has not started."""
    task = tasks.load_row(connection, task_id)
    status = TaskStatus(task["status"])
    if status not in {TaskStatus.BLOCKED, TaskStatus.QUEUED}:
        raise Conflict(f"{task_id} is {status}; its dependencies can no longer be changed.")
    others = [tasks.resolve(connection, text) for text in depends_on]
    for other in others:
        tasks.load_row(connection, other)
    tasks.replace_dependencies(connection, task_id, others)
    if status is TaskStatus.QUEUED:
        tasks.move(connection, task, TaskStatus.BLOCKED)
    tasks.settle_dependencies(connection, task_id)
    return None


def record_change(connection: Connection, work: Task | Run, change: str, /, **data: str) -> None:
    """Store that a task or run was merged or archived, in the row and in the history."""
    update_work(connection, work.id, **{f"{change}_at": datetime.now(UTC)})
    events.append(connection, f"{read_kind(work.id)}.{change}", work.id, **data)


def mark(connection: Connection, work_id: str, values: dict[str, datetime | None]) -> None:
    """Store the marks of a person on a task or run. A look at it is not worth an event."""
    update_work(connection, work_id, **values)
    if changes := {name: at and at.isoformat() for name, at in values.items() if name != "seen_at"}:
        events.append(connection, f"{read_kind(work_id)}.marked", work_id, **changes)


def archive(connection: Connection, get: Callable[[Connection, str], W], text: str) -> W:
    """Archive an ended task or run, and return it as it was before.

    Raises Conflict if it, or a task of the run, has not ended.
    """
    work = get(connection, text)
    if work.status not in FINAL | RUN_FINAL:
        raise Conflict(
            f"{work.id} is {work.status}; only an ended {read_kind(work.id)} can be archived.",
            hint=f"kapelle cancel {work.id} ends it.",
        )
    family: list[str] = []
    if isinstance(work, Run):
        family = runs.list_family(connection, work.id)
    if open_rows := runs.list_open_tasks(connection, family):
        task_id = open_rows[0]["id"]
        raise Conflict(
            f"{task_id} of {work.id} has not ended.", hint=f"kapelle cancel {task_id} ends it."
        )
    if work.archived_at is None:
        record_change(connection, work, "archived", title=work.title)
    return work


def require_ended(connection: Connection, task_id: str, verb: str) -> None:
    """Raise Conflict unless a task has ended, or waits, and may run again in its workspace."""
    task = tasks.load_row(connection, task_id)
    if task["archived_at"] is not None:
        raise Conflict(
            f"{task_id} is archived and cannot be {verb}.",
            hint=f"kapelle run --continue-from {task_id} starts a new task that builds on it.",
        )
    run_id = task["run_id"]
    status = TaskStatus(task["status"])
    is_shared = task["workspace_owner"] is not None
    if run_id and is_shared and not steps.is_open(connection, run_id, task_id):
        raise Conflict(
            f"{run_id} has continued in the worktree that it shared with {task_id}; "
            f"it cannot be {verb}.",
            hint=f"kapelle run --continue-from {task_id} starts a new task that builds on it.",
        )
    if attempts.find_open(connection, task_id) and status is TaskStatus.WAITING:
        raise Conflict(
            f"{task_id} and its agent wait for an answer; it cannot be {verb}.",
            hint=f'kapelle answer {task_id} "…"',
        )
    if status not in FINAL | {TaskStatus.WAITING}:
        raise Conflict(
            f"{task_id} is {status}; it cannot be {verb} before it has ended.",
            hint=f"kapelle cancel {task_id} ends it.",
        )


def _stop(connection: Connection, task: Row, stop: str, cause: StopCause) -> StopReason:
    """Store a request to stop, and return the attempt that it is for."""
    task_id: str = task["id"]
    cause = cause.behind(task)
    tasks.update(connection, task_id, stop=stop, reason=cause.reason, **cause.marks)
    facts = {"reason": cause.reason, "stopped_by": cause.by}
    events.append(connection, "task.stopping", task_id, **facts)
    running = attempts.find_latest(connection, task_id)
    if running is None:
        return None
    return (running["id"], stop)
