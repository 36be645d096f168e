"""What each action does to a task, inside one transaction.

Each returns None, or the (attempt id, stop request) of a running attempt that is to be stopped.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from kapelle.domain.errors import Conflict
from kapelle.domain.ids import kind_of
from kapelle.domain.run import Run
from kapelle.domain.specs import Money, Spec, Turns
from kapelle.domain.states import FINAL, RUN_FINAL, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.text import excerpt
from kapelle.runner.shim import files
from kapelle.store import accounts, attempts, deliveries, events, runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row, update_work

Stop = tuple[str, str] | None
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
    "next_mode": "fresh", "next_message": None, "next_said": None, "next_said_at": None, "tries": 0,
}  # fmt: skip


def submit(connection: Connection, values: dict[str, Any], depends_on: Sequence[str]) -> Task:
    task_id, title = values["id"], values["title"]
    status = TaskStatus.BLOCKED if depends_on else TaskStatus.QUEUED
    tasks.insert(connection, {**values, "status": status}, depends_on)
    events.append(connection, "task.created", task_id, title=title)
    if depends_on:
        tasks.settle_dependencies(connection, task_id)
    task = tasks.get(connection, task_id)
    if task.status is status:  # else its dependencies have settled it already
        events.append(connection, f"task.{status}", task_id, title=title, reason=task.reason)
    return task


def cancel(
    connection: Connection, task_id: str, reason: str, limit_reached: str | None = None
) -> Stop:
    """End a task; limit_reached is what its run has used up, where that is the cause."""
    task = tasks.row(connection, task_id)
    status = TaskStatus(task["status"])
    if status in FINAL:
        raise Conflict(f"{task_id} is {status} already.")
    if status is TaskStatus.RUNNING or attempts.live(connection, task_id):
        return _stop(connection, task_id, "cancel", reason, limit_reached)
    tasks.move(connection, task, TaskStatus.CANCELLED, reason, limit_reached=limit_reached)
    return None


def retry(connection: Connection, task_id: str, limits: NewLimits = _UNCHANGED) -> Stop:
    require_ended(connection, task_id, "retried")
    tasks.enqueue_again(connection, task_id, **_AFRESH, **limits.given)
    return None


def resume(
    connection: Connection,
    task_id: str,
    message: str | None,
    limits: NewLimits = _UNCHANGED,
    heard_at: datetime | None = None,
    merge: bool = False,
    said: str | None = None,
) -> Stop:
    """Have it go on with a message, in which it is told the comments of others up to a time; with
    merge its base is merged into its branch first, when the attempt is claimed. Said is what a
    person wrote of the message."""
    require_ended(connection, task_id, "resumed")
    if heard_at is not None:
        deliveries.update(connection, task_id, heard_at=heard_at)
    mode = "resume" if attempts.latest(connection, task_id) else "fresh"
    mode = "merge" if merge else mode
    # A message that a limit kept from being read is still to be read.
    message = _joined(tasks.row(connection, task_id)["next_message"], message)
    tasks.enqueue_again(
        connection, task_id, next_mode=mode, next_message=message, tries=0, **limits.given
    )
    if said:
        _keep_said(connection, task_id, said)
        events.append(connection, "task.said", task_id, text=excerpt(said))
    return None


def _keep_said(connection: Connection, task_id: str, text: str) -> None:
    """Store what a person said for the next attempt of a task."""
    said = _joined(tasks.row(connection, task_id)["next_said"], text)
    tasks.update(connection, task_id, next_said=said, next_said_at=datetime.now(UTC))


def _joined(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None


def say(connection: Connection, task_id: str, text: str, place: Path) -> Row | None:
    """Leave a text for the agent of a task; the attempt at work that may read it, None where the
    next one will."""
    task, attempt = tasks.row(connection, task_id), attempts.live(connection, task_id)
    facts = {"text": excerpt(text)}
    if attempt is not None:
        folder = place / attempt["id"]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        message_id = str(time.time_ns())
        files.replace(str(folder / f"{message_id}.txt"), text.encode(), durable=True)
        # The history is where messages to running agents are read from later: all of the text.
        facts = {"text": text, "message": message_id}
    elif task["status"] in FINAL:
        hint = f'kapelle resume {task_id} "…" goes on with it.'
        raise Conflict(f"{task_id} has ended; nobody is there to hear.", hint=hint)
    elif task["waiting_for"] == "input":
        raise Conflict(f"{task_id} asks something.", hint=f'kapelle answer {task_id} "…"')
    else:
        tasks.update(connection, task_id, next_message=_joined(task["next_message"], text))
        _keep_said(connection, task_id, text)
    events.append(connection, "task.said", task_id, attempt["id"] if attempt else None, **facts)
    return attempt


def unread_ids(place: Path, attempt_id: str) -> list[str]:
    """The ids of the messages to an attempt that it has not read, the oldest first."""
    return sorted(path.stem for path in (place / attempt_id).glob("*.txt"))


def unread(place: Path, attempt_id: str) -> str | None:
    """What was said to an attempt and not read by it."""
    found = sorted((place / attempt_id).glob("*.txt"))
    return _joined(*(path.read_text("utf-8", "replace") for path in found))


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


def requeue(connection: Connection, task_id: str) -> Stop:
    status = TaskStatus(tasks.row(connection, task_id)["status"])
    if status is TaskStatus.RUNNING or attempts.live(connection, task_id):
        return _stop(connection, task_id, "requeue", "requeued by a person")
    if status in {TaskStatus.QUEUED, TaskStatus.BLOCKED}:
        raise Conflict(f"{task_id} is {status} already.")
    require_ended(connection, task_id, "requeued")
    anew = {"workspace_base_commit": None, "starting_tree": None}
    tasks.enqueue_again(connection, task_id, **_AFRESH, **anew)
    return None


def depend(connection: Connection, task_id: str, depends_on: Sequence[str]) -> Stop:
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
    family = runs.family(connection, work.id) if isinstance(work, Run) else list[str]()
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
    run_id, status = task["run_id"], TaskStatus(task["status"])
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


def _stop(
    connection: Connection, task_id: str, stop: str, reason: str, limit_reached: str | None = None
) -> Stop:
    tasks.update(connection, task_id, stop=stop, reason=reason, limit_reached=limit_reached)
    events.append(connection, "task.stopping", task_id, reason=reason)
    running = attempts.latest(connection, task_id)
    return None if running is None else (running["id"], stop)
