"""What each action does to a task, inside one transaction.

Each returns None, or the (attempt id, stop request) of a running attempt that is to be stopped.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from kapelle.domain.errors import Conflict
from kapelle.domain.ids import kind_of
from kapelle.domain.run import Run
from kapelle.domain.specs import Money, Spec, Turns
from kapelle.domain.states import FINAL, RUN_FINAL, StopCause, Stopper, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.text import excerpt
from kapelle.store import accounts, attempts, deliveries, events, messages, runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row, update_work

StopReason = tuple[str, str] | None
W = TypeVar("W", Task, Run)


class NewLimits(Spec):
    """Limits of a task that are to hold from its next attempt on; None leaves one as it is."""

    budget_usd: Money | None = None
    max_turns: Turns | None = None

    @property
    def given(self) -> dict[str, float]:
        return self.model_dump(include=set(NewLimits.model_fields), exclude_none=True)


_UNCHANGED = NewLimits()
_AFRESH: dict[str, Any] = {
    "next_mode": "fresh", "next_message": None, "tries": 0, "uncounted": 0,
}  # fmt: skip


def submit(connection: Connection, values: dict[str, Any], depends_on: Sequence[str]) -> Task:
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
    """End a task."""
    task = tasks.row(connection, task_id)
    status = TaskStatus(task["status"])
    if status in FINAL:
        raise Conflict(f"{task_id} is {status} already.")
    if status is TaskStatus.RUNNING or attempts.live(connection, task_id):
        return _stop(connection, task, "cancel", cause)
    tasks.move(connection, task, TaskStatus.CANCELLED, cause.reason, **cause.marks)
    return None


def retry(connection: Connection, task_id: str, limits: NewLimits = _UNCHANGED) -> StopReason:
    require_ended(connection, task_id, "retried")
    messages.end_waiting(connection, task_id)
    tasks.enqueue_again(connection, task_id, **_AFRESH, **limits.given)
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
    """Have it go on with a message, in which it is told the comments of others with these ids; with
    merge its base is merged into its branch first, when the attempt is claimed. Said is what the
    author wrote of the message."""
    require_ended(connection, task_id, "resumed")
    if heard is not None:
        deliveries.update(connection, task_id, heard=heard)
    if attempts.latest(connection, task_id):
        mode = "resume"
    else:
        mode = "fresh"
    mode = "merge" if merge else mode
    # A message that a limit kept from being read is still to be read.
    message = _joined(tasks.row(connection, task_id)["next_message"], message)
    tasks.enqueue_again(
        connection,
        task_id,
        next_mode=mode,
        next_message=message,
        tries=0,
        uncounted=0,
        **limits.given,
    )
    if said:
        message_id = messages.add(connection, task_id, "resume", said, author=author)
        facts = {"message_id": message_id, "author": author, "text": excerpt(said)}
        events.append(connection, "task.said", task_id, **facts)
    return None


def _joined(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None


def say(connection: Connection, task_id: str, text: str, author: str) -> tuple[str, Row | None]:
    """Store a message for the agent of a task.

    Returns its id and the running attempt that may read it, None where the next attempt will.
    """
    task = tasks.row(connection, task_id)
    attempt = attempts.live(connection, task_id)
    if attempt is None:
        _require_listener(task)
        tasks.update(connection, task_id, next_message=_joined(task["next_message"], text))
    if attempt:
        attempt_id = attempt["id"]
    else:
        attempt_id = None
    message_id = messages.add(
        connection, task_id, "say", text, attempt_id=attempt_id, author=author
    )
    facts = {"message_id": message_id, "author": author, "text": excerpt(text)}
    events.append(connection, "task.said", task_id, attempt_id, **facts)
    return message_id, attempt


def _require_listener(task: Row) -> None:
    """Raise Conflict unless a later attempt will read what is said now."""
    task_id = task["id"]
    if task["status"] in FINAL:
        hint = f'kapelle resume {task_id} "…" goes on with it.'
        raise Conflict(f"{task_id} has ended.", hint=hint)
    if task["waiting_for"] == "input":
        raise Conflict(f"{task_id} asks something.", hint=f'kapelle answer {task_id} "…"')


def report(connection: Connection, task_id: str, attempt_id: str, text: str) -> None:
    """Note how far an agent is, in its own words."""
    tasks.update(connection, task_id, report=text)
    events.append(connection, "task.reported", task_id, attempt_id, text=text)


def hand_in(
    connection: Connection, task_id: str, attempt_id: str, result: Any, success: bool
) -> None:
    """Keep what an agent hands in as its result, which counts when its attempt has ended."""
    attempts.update(connection, attempt_id, handed_in={"result": result, "success": success})
    events.append(connection, "task.handed_in", task_id, attempt_id, success=success)


def lift_pauses(connection: Connection, task_id: str, of_agents: Sequence[str]) -> None:
    """A person who says go on knows more than a limit did that named no end, or a far one."""
    if tasks.row(connection, task_id)["waiting_for"] == "rate_limit":
        for account in of_agents:
            accounts.release(connection, account)
        # The person's own request moves this one next; queued before that, it would refuse it.
        tasks.wake(connection, "rate_limit", datetime.now(UTC), but=task_id)


def requeue(connection: Connection, task_id: str, by: Stopper = Stopper.PERSON) -> StopReason:
    task = tasks.row(connection, task_id)
    status = TaskStatus(task["status"])
    if status is TaskStatus.RUNNING or attempts.live(connection, task_id):
        return _stop(connection, task, "requeue", StopCause(by, "requeued by a person"))
    if status in {TaskStatus.QUEUED, TaskStatus.BLOCKED}:
        raise Conflict(f"{task_id} is {status} already.")
    require_ended(connection, task_id, "requeued")
    messages.end_waiting(connection, task_id)
    anew = {"workspace_base_commit": None, "starting_tree": None}
    tasks.enqueue_again(connection, task_id, **_AFRESH, **anew)
    return None


def depend(connection: Connection, task_id: str, depends_on: Sequence[str]) -> StopReason:
    task = tasks.row(connection, task_id)
    status = TaskStatus(task["status"])
    if status not in {TaskStatus.BLOCKED, TaskStatus.QUEUED}:
        raise Conflict(f"{task_id} is {status}; what it waits for cannot be changed any more.")
    others = [tasks.resolve(connection, text) for text in depends_on]
    for other in others:
        tasks.row(connection, other)
    tasks.replace_dependencies(connection, task_id, others)
    if status is TaskStatus.QUEUED:
        tasks.move(connection, task, TaskStatus.BLOCKED)
    tasks.settle_dependencies(connection, task_id)
    return None


def record_change(connection: Connection, work: Task | Run, change: str, /, **data: str) -> None:
    """Store that a task or run was merged or archived, and tell the history."""
    update_work(connection, work.id, **{f"{change}_at": datetime.now(UTC)})
    events.append(connection, f"{kind_of(work.id)}.{change}", work.id, **data)


def mark(connection: Connection, work_id: str, values: dict[str, datetime | None]) -> None:
    """Store what a person marks a task or run with; that it was seen is not worth an event."""
    update_work(connection, work_id, **values)
    if told := {name: at and at.isoformat() for name, at in values.items() if name != "seen_at"}:
        events.append(connection, f"{kind_of(work_id)}.marked", work_id, **told)


def archive(connection: Connection, get: Callable[[Connection, str], W], text: str) -> W:
    """Put an ended task or run away; returns it as it was before."""
    work = get(connection, text)
    if work.status not in FINAL | RUN_FINAL:
        raise Conflict(
            f"{work.id} is {work.status}; only an ended {kind_of(work.id)} can be archived.",
            hint=f"kapelle cancel {work.id} ends it.",
        )
    if isinstance(work, Run):
        family = runs.family(connection, work.id)
    else:
        family = list[str]()
    if going := runs.open_tasks(connection, family):
        task_id = going[0]["id"]
        raise Conflict(
            f"{task_id} of {work.id} has not ended.", hint=f"kapelle cancel {task_id} ends it."
        )
    if work.archived_at is None:
        record_change(connection, work, "archived", title=work.title)
    return work


def require_ended(connection: Connection, task_id: str, verb: str) -> None:
    task = tasks.row(connection, task_id)
    if task["archived_at"] is not None:
        raise Conflict(
            f"{task_id} is archived and cannot be {verb}.",
            hint=f"kapelle run --continue-from {task_id} starts a new task that builds on it.",
        )
    run_id = task["run_id"]
    status = TaskStatus(task["status"])
    shared = task["workspace_owner"] is not None
    if run_id and shared and not steps.is_open(connection, run_id, task_id):
        raise Conflict(
            f"{run_id} has gone on in the worktree that {task_id} shared with it; "
            f"it cannot be {verb}.",
            hint=f"kapelle run --continue-from {task_id} starts a new task that builds on it.",
        )
    if attempts.live(connection, task_id) and status is TaskStatus.WAITING:
        raise Conflict(
            f"{task_id} waits for an answer, and its agent with it; it cannot be {verb}.",
            hint=f'kapelle answer {task_id} "…"',
        )
    if status not in FINAL | {TaskStatus.WAITING}:
        raise Conflict(
            f"{task_id} is {status}; it cannot be {verb} before it has ended.",
            hint=f"kapelle cancel {task_id} ends it.",
        )


def _stop(connection: Connection, task: Row, stop: str, cause: StopCause) -> StopReason:
    task_id: str = task["id"]
    cause = cause.behind(task)
    tasks.update(connection, task_id, stop=stop, reason=cause.reason, **cause.marks)
    facts = {"reason": cause.reason, "stopped_by": cause.by}
    events.append(connection, "task.stopping", task_id, **facts)
    running = attempts.latest(connection, task_id)
    if running is None:
        return None
    return (running["id"], stop)
