"""Makes a workspace ready for an attempt: created or put back, set up, and remembered."""

from pathlib import Path
from typing import Any

from kapelle.domain.errors import NotFound, WorkspaceError
from kapelle.engine.failpoints import failpoint
from kapelle.engine.parts import Parts
from kapelle.engine.runs.workspace import run_workspace
from kapelle.engine.tasks.launch import launch_command
from kapelle.engine.tasks.work import Work, load_work
from kapelle.runner.output import tail_text
from kapelle.runner.process_dir import read_exit as read_verdict
from kapelle.store import attempts, runs, steps, tasks


async def prepare(parts: Parts, work: Work) -> Work:
    """Make the workspace as the attempt should find it, and return the work as it then is."""
    if work.is_shared:
        return await _shared(parts, work)
    if work.is_worktree:
        return await _worktree(parts, work)
    return await _in_place(parts, work)


async def _worktree(parts: Parts, work: Work) -> Work:
    task, wanted = work.task, work.settings.workspace
    # Once the set-up has begun the workspace is as it should be, also after a crash.
    ready = (work.process_dir / "setup").exists()
    earlier = await _continued(parts, task)
    base = task["requested_base"] or (earlier and earlier["workspace_branch"])
    workspace = await parts.workspaces.create(
        work.task_id, Path(task["directory"]), base, wanted.copy_, wanted.link
    )
    failpoint("prepare_after_workspace")
    if work.number > 1 and work.mode == "fresh" and not ready:
        # A requeued task starts from where its base is now; a retry from where it began.
        newest = base or workspace.base if task["workspace_base_commit"] is None else None
        workspace = await parts.workspaces.reset(work.task_id, work.attempt_id, newest)
    # What continues another task's branch is merged where that one would be.
    base_branch = earlier["workspace_base"] if earlier else workspace.base
    await parts.db.write(
        tasks.update,
        work.task_id,
        workspace_path=workspace.path,
        workspace_branch=workspace.branch,
        workspace_base=base_branch,
        workspace_base_commit=workspace.base_commit,
        workspace_commit=None if work.mode == "fresh" else task["workspace_commit"],
        starting_tree=None if work.mode == "fresh" else task["starting_tree"],
    )
    return await _made_ready(parts, await load_work(parts, work.attempt_id))


async def _shared(parts: Parts, work: Work) -> Work:
    """In a run's worktree a task begins where the one before it ended."""
    task, ready = work.task, (work.process_dir / "setup").exists()
    if not await parts.db.read(steps.is_open, task["run_id"], work.task_id):
        raise WorkspaceError(
            f"{work.owner} has gone on in the worktree that {work.task_id} shared with it.",
            hint="Start a new run, or a task that continues from this one.",
        )
    run = await parts.db.read(runs.row, work.owner)
    workspace = await run_workspace(parts, run)
    failpoint("prepare_after_workspace")
    # Also one that is put back into the queue begins there, not where it left off.
    began = task["requested_base"] or await parts.workspaces.tip(work.owner)
    if work.number > 1 and work.mode == "fresh" and not ready:
        await parts.workspaces.restore(work.owner, began, work.attempt_id)
    await parts.db.write(
        tasks.update,
        work.task_id,
        workspace_path=workspace.path,
        workspace_branch=workspace.branch,
        workspace_base=workspace.base,
        requested_base=began,
        workspace_base_commit=began,
        workspace_commit=None if work.mode == "fresh" else task["workspace_commit"],
    )
    return await _made_ready(parts, await load_work(parts, work.attempt_id))


async def _made_ready(parts: Parts, work: Work) -> Work:
    """Have the set-up command run where it has not yet been."""
    wanted = work.settings.workspace
    again = work.mode == "fresh" and not work.is_shared
    if wanted.setup and (again or not await _was_set_up(parts, work)):
        await _set_up(parts, work, wanted.setup)
        if work.asks_for_changes:
            return await _remember_content(parts, work)
    return work


async def _continued(parts: Parts, task: Any) -> Any:
    """The row of the task that this one continues, if its branch is to be built upon."""
    if task["continue_from"] is None or task["requested_base"] is not None:
        return None
    try:
        earlier = await parts.db.read(tasks.row, task["continue_from"])
    except NotFound:
        return None  # it was forgotten meanwhile
    same = earlier["workspace_branch"] and earlier["directory"] == task["directory"]
    return earlier if same else None


async def _in_place(parts: Parts, work: Work) -> Work:
    if not work.directory.is_dir():
        raise WorkspaceError(f"The directory {work.directory} does not exist any more.")
    if work.starting_tree is None and work.asks_for_changes:
        return await _remember_content(parts, work)
    return work


async def _remember_content(parts: Parts, work: Work) -> Work:
    """Keep what is there before the agent begins, to tell its work from the rest."""
    tree = await parts.workspaces.snapshot(work.directory)
    await parts.db.write(tasks.update, work.task_id, starting_tree=tree)
    return await load_work(parts, work.attempt_id)


async def _was_set_up(parts: Parts, work: Work) -> bool:
    """Whether the set-up of an earlier attempt in this workspace succeeded."""
    earlier = await parts.db.read(attempts.in_workspace, work.owner)
    return any(_succeeded(parts.process_directory(attempt_id) / "setup") for attempt_id in earlier)


async def _set_up(parts: Parts, work: Work, command: str) -> None:
    seconds = work.settings.workspace.setup_timeout_s
    launch = launch_command(parts, work, "setup", command, seconds)
    ended = await parts.execute(work.attempt_id, work.task_id, launch)
    if ended.exit.kind != "exited" or ended.exit.code != 0:
        words = tail_text(launch.process_dir / "err.log", 500) or tail_text(
            launch.process_dir / "out.log", 500
        )
        how = (
            "timed out" if ended.ended_by == "timeout" else f"failed (exit code {ended.exit.code})"
        )
        raise WorkspaceError(f"The workspace's setup command {how}: {words.strip()}")


def _succeeded(process_dir: Path) -> bool:
    ended = read_verdict(process_dir)
    return ended is not None and ended.exit.code == 0
