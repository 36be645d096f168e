"""What persons and parents do to runs: pause, resume, cancel, answer. Each reaches the children."""

from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.states import RUN_FINAL, RunStatus, TaskStatus
from kapelle.engine import actions
from kapelle.engine.stage import Stage
from kapelle.store import events, runs, steps
from kapelle.store.database import Connection

# Nobody performs these, and none of their tasks is at work: they are ended on the spot.
_AT_REST = frozenset({RunStatus.QUEUED, RunStatus.WAITING, RunStatus.PAUSED})


async def cancel(stage: Stage, run_id: str, reason: str, *, with_tasks: bool = True) -> None:
    """End a run and the runs inside it; its tasks are ended too, or left to go on."""
    wish = "cancel" if with_tasks else "abandon"
    wishes, family = await stage.db.write(_cancel, run_id, reason, wish)
    for attempt_id, stop in wishes:
        stage.stop(attempt_id, stop)
    for member in family:
        stage.stop(member, reason)  # its checks


def _cancel(
    connection: Connection, run_id: str, reason: str, wish: str
) -> tuple[list[tuple[str, str]], list[str]]:
    _require_open(connection, run_id)
    family = runs.family(connection, run_id)
    stops = []
    if wish == "cancel":
        for task in runs.open_tasks(connection, family):
            stop = actions.cancel(connection, task["id"], reason)
            if stop is not None:
                stops.append(stop)
    # Children first: a parent that is told of a child's end must see the wish for itself as well.
    for member in reversed(family):
        status = RunStatus(runs.row(connection, member)["status"])
        if status in _AT_REST:
            runs.change(connection, member, RunStatus.CANCELLED, reason)
        elif status not in RUN_FINAL:
            _wish(connection, member, wish, reason)
    return stops, family


def give_up(connection: Connection, run_id: str, reason: str) -> list[tuple[str, str]]:
    """End a run that cannot go on as failed, and all that it has started."""
    stops, _ = _cancel(connection, run_id, reason, "cancel")
    if runs.row(connection, run_id)["status"] not in RUN_FINAL:
        runs.change(connection, run_id, RunStatus.FAILED, reason)
    return stops


async def pause(stage: Stage, run_id: str, reason: str, *, now: bool = False) -> None:
    """Have a run start nothing more; what is at work ends first, or now goes back to its queue."""
    for attempt_id, stop in await stage.db.write(_pause, run_id, reason, now):
        stage.stop(attempt_id, stop)


def _pause(connection: Connection, run_id: str, reason: str, now: bool) -> list[tuple[str, str]]:
    row = _require_open(connection, run_id)
    if row["status"] == RunStatus.PAUSED or (row["stop"] == "pause" and not now):
        raise Conflict(f"{run_id} is paused already.", hint=f"kapelle runs resume {run_id}")
    _require_no_end(row)
    family = runs.family(connection, run_id)
    for member in family:
        status = RunStatus(runs.row(connection, member)["status"])
        if status in {RunStatus.QUEUED, RunStatus.WAITING}:
            runs.change(connection, member, RunStatus.PAUSED, reason)
        elif status is RunStatus.RUNNING:
            _wish(connection, member, "pause", reason)
    stops = []
    for task in runs.open_tasks(connection, family) if now else ():
        # One that a person has cancelled does not come back.
        if task["status"] == TaskStatus.RUNNING and task["stop"] is None:
            stop = actions.requeue(connection, task["id"])
            if stop is not None:
                stops.append(stop)
    return stops


def resume(connection: Connection, run_id: str) -> None:
    """Let a paused run go on, with the runs inside it; one that was only to pause goes on too."""
    row = _require_open(connection, run_id)
    if row["status"] != RunStatus.PAUSED and row["stop"] != "pause":
        hint = f"kapelle runs answer {run_id}" if row["status"] == RunStatus.WAITING else None
        raise Conflict(f"{run_id} is not paused; it is {row['status']}.", hint=hint)
    for member in runs.family(connection, run_id):
        found = runs.row(connection, member)
        if found["stop"] == "pause":
            runs.update(connection, member, stop=None, reason=None)
            events.append(connection, "run.resumed", run_id=member, title=found["title"])
        if found["status"] == RunStatus.PAUSED:
            runs.change(connection, member, RunStatus.QUEUED, "resumed")


def answer(connection: Connection, run_id: str, token: str | None, text: str) -> None:
    """Answer a run's question; with no token the only one that is open."""
    if not text.strip():
        raise InvalidInput("The answer is empty.", hint='kapelle runs answer ID "…"')
    row = _require_open(connection, run_id)
    asked = steps.questions(connection, run_id)
    if token is None:
        if len(asked) != 1:
            many = "has several questions" if asked else "asks nothing"
            hint = "Name one by its token." if asked else _who_asks(connection, row)
            raise Conflict(f"{run_id} {many}.", hint=hint)
        token = asked[0].token
    asker, _, position = token.rpartition(":")
    if asker not in {"", run_id}:
        raise Conflict(f"{token} is the token of a question of another run.")
    steps.answer(connection, run_id, position, text)
    events.append(connection, "run.answered", run_id=run_id, title=row["title"], answer=text)
    if row["status"] == RunStatus.WAITING:
        runs.change(connection, run_id, RunStatus.QUEUED, "answered")


def _who_asks(connection: Connection, row: runs.Row) -> str:
    for task in runs.open_tasks(connection, [row["id"]]):
        if task["waiting_for"] == "input":
            return f'Its task does: kapelle resume {task["id"]} "…"'
    return f"It is {row['status']}."


def _wish(connection: Connection, run_id: str, wish: str, reason: str) -> None:
    runs.update(connection, run_id, stop=wish, reason=reason)
    kind = "run.pausing" if wish == "pause" else "run.stopping"
    events.append(connection, kind, run_id=run_id, reason=reason)


def _require_open(connection: Connection, run_id: str) -> runs.Row:
    row = runs.row(connection, run_id)
    if row["status"] in RUN_FINAL:
        raise Conflict(f"{run_id} is {row['status']} already.")
    return row


def _require_no_end(row: runs.Row) -> None:
    if row["stop"] in {"cancel", "abandon"}:
        raise Conflict(f"{row['id']} is being cancelled.")
