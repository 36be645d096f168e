"""Forgetting what ended longer ago than it is kept; branches and refs stay."""

import asyncio
import shutil
from datetime import UTC, datetime, timedelta

from kapelle.domain.errors import KapelleError
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.states import FINAL
from kapelle.domain.task import Task
from kapelle.engine.parts import Stage
from kapelle.engine.setbacks import Setbacks
from kapelle.store import events, runs, schedules, tasks
from kapelle.store.database import Connection

_AT_A_TIME = 100
_EVENTS_AT_A_TIME = 10_000


def _limit(stage: Stage) -> datetime | None:
    """What ended before this is forgotten; None keeps everything."""
    days = stage.settings().tasks.retention_days
    return datetime.now(UTC) - timedelta(days=days) if days else None


async def forget_old_tasks(stage: Stage, setbacks: Setbacks) -> None:
    """Delete some of the tasks that are too old; those that cannot be are passed over."""
    limit = _limit(stage)
    if limit is None:
        return
    for task_id in await stage.db.read(tasks.ended_before, limit, _AT_A_TIME + len(setbacks)):
        if not setbacks.may_try(task_id):
            continue
        try:
            await forget(stage, task_id, limit)
        except (KapelleError, OSError) as error:
            setbacks.note(task_id, error)
        else:
            setbacks.overcome(task_id)


async def forget_old_runs(stage: Stage, setbacks: Setbacks) -> None:
    """The same for runs, whose tasks are forgotten for themselves."""
    limit = _limit(stage)
    if limit is None:
        return
    for run_id in await stage.db.read(runs.ended_before, limit, _AT_A_TIME + len(setbacks)):
        if not setbacks.may_try(run_id):
            continue
        try:
            run = await stage.db.read(runs.get, run_id)
            if run.workspace.kind is WorkspaceKind.WORKTREE and run.workspace.owner is None:
                await stage.workspaces.discard(run_id)
            await asyncio.to_thread(shutil.rmtree, stage.home.runs / run_id, True)
            (stage.home.secrets / f"{run_id}.json").unlink(missing_ok=True)
            await stage.db.write(runs.delete, run_id)
        except (KapelleError, OSError) as error:
            setbacks.note(run_id, error)
        else:
            setbacks.overcome(run_id)


async def forget_old_history(stage: Stage) -> None:
    """The same for schedules, and for the events of all that is forgotten."""
    limit = _limit(stage)
    if limit is not None:
        await stage.db.write(schedules.delete_ended, limit, _AT_A_TIME)
        await stage.db.write(events.delete_oldest, limit, _EVENTS_AT_A_TIME)


async def forget(stage: Stage, task_id: str, limit: datetime) -> None:
    """Delete a task with all that belongs to it, unless it was taken up again meanwhile."""
    task = await stage.db.write(_put_away, task_id, limit)
    if task is None:
        return
    if task.workspace.kind is WorkspaceKind.WORKTREE and task.workspace.owner is None:
        await stage.workspaces.discard(task_id)
    for attempt in task.attempts:
        await asyncio.to_thread(shutil.rmtree, stage.process_directory(attempt.id), True)
    (stage.home.secrets / f"{task_id}.json").unlink(missing_ok=True)
    await stage.db.write(tasks.delete_archived, task_id)


def _put_away(connection: Connection, task_id: str, limit: datetime) -> Task | None:
    """Archive a task that is still over, so that nobody can take it up again."""
    task = tasks.get(connection, task_id)
    if task.status not in FINAL or task.ended_at is None or task.ended_at >= limit:
        return None
    if task.archived_at is None:
        tasks.update(connection, task_id, archived_at=datetime.now(UTC))
        events.append(connection, "task.archived", task_id, title=task.title)
    return task
