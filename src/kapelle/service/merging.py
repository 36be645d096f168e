"""Merging the branch of a task or a run, and writing that down."""

from datetime import UTC, datetime

from kapelle.domain.errors import Conflict
from kapelle.domain.run import Run
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.task import Task
from kapelle.domain.views import MergeView
from kapelle.engine.parts import Stage
from kapelle.store import events, runs, tasks
from kapelle.store.database import Connection


def require_branch(work: Task | Run) -> None:
    """Raise Conflict unless a task or run has a branch that is its own."""
    if work.workspace.owner is not None:
        raise Conflict(
            f"{work.id} works in the worktree of {work.workspace.owner}.",
            hint=f"kapelle merge {work.workspace.owner}",
        )
    if work.workspace.kind is not WorkspaceKind.WORKTREE or work.workspace.branch is None:
        raise Conflict(f"{work.id} has no branch of its own, so there is nothing to merge.")


def require_verified(work: Task | Run) -> None:
    """Raise Conflict unless it has completed."""
    if work.status != "completed":
        raise Conflict(
            f"{work.id} is {work.status}: only verified work is merged.",
            hint="--force merges it all the same.",
        )


async def merge(stage: Stage, work: Task | Run, into: str | None, force: bool) -> MergeView:
    """Merge what was verified, or with force what is there; merged is what git says is."""
    noun, commit = type(work).__name__, work.workspace.commit
    if force:
        # What failed was never committed, and is what is wanted here.
        message = f"{work.title}\n\n{noun}: {work.id}, {work.status}"
        commit = await stage.workspaces.commit(work.id, message)
    if commit is None or commit == work.workspace.base_commit:
        raise Conflict(f"{work.id} changed nothing, so there is nothing to merge.")
    target, message = into or work.workspace.base, f"Merge {work.title}\n\n{noun}: {work.id}"
    merged = await stage.workspaces.merge(work.id, target, message, expected=commit)
    if not merged.already or work.merged_at is None:
        await stage.db.write(_record, work, merged.base, merged.commit)
    updated = merged.checkout_updated
    return MergeView(
        id=work.id,
        base=merged.base,
        commit=merged.commit,
        already=merged.already,
        checkout_updated=str(updated) if updated else None,
    )


def _record(connection: Connection, work: Task | Run, base: str, commit: str) -> None:
    if isinstance(work, Task):
        tasks.update(connection, work.id, merged_at=datetime.now(UTC))
        events.append(connection, "task.merged", work.id, base=base, commit=commit)
    else:
        runs.update(connection, work.id, merged_at=datetime.now(UTC))
        events.append(connection, "run.merged", run_id=work.id, base=base, commit=commit)
