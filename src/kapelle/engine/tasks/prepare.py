"""Prepare the workspace of an attempt: create or restore it, set it up, record its content."""

import asyncio
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.engine.processes.environment import (
    explain_omitted,
    list_copies_and_links,
    list_paths_into_checkout,
    paths_from_top,
)
from kapelle.engine.runs.workspace import run_workspace
from kapelle.engine.tasks.attempt import ActiveAttempt
from kapelle.engine.tasks.browser import last_words, start_application
from kapelle.engine.tasks.protection import NO_GIT
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import attempts, processes, runs, steps

_SETUP = "setup"
_CONFLICTS = """\
{base} has changed. It was merged into your branch, and these files conflict:
{names}
1. Resolve each conflict (<<<<<<<, =======, >>>>>>>). Keep your changes and those of {base}.
2. Leave no conflict marker behind.
3. Check that the work still meets its task."""
_CLEAN = """\
{base} has changed. It was merged into your branch without conflicts.
1. Check that the work still meets its task.
2. Fix it where it does not."""


async def prepare(attempt: ActiveAttempt) -> None:
    """Create or restore the workspace of an attempt. Every step may run again after a crash."""
    if not attempt.is_worktree:
        await _prepare_in_place(attempt)
        return
    if attempt.is_shared:
        await _share_worktree(attempt)
    else:
        await _make_worktree(attempt)
    # A daemon that died during the checks left ignored files put aside.
    await attempt.parts.workspaces.bring_back(attempt.owner)
    command = attempt.settings.workspace.setup
    must_repeat = attempt.mode == "fresh" and not attempt.is_shared
    if command and (must_repeat or not await _was_set_up(attempt)):
        await _set_up(attempt, command)
        if attempt.asks_for_changes:
            await _remember_content(attempt)
    if attempt.is_read_only:
        await attempt.parts.workspaces.copy(attempt.owner, is_alone=True)
    if attempt.task["browser"]:
        await start_application(attempt)
    for what, text in (await asyncio.to_thread(_warnings, attempt)).items():
        await attempt.warn(what, text)
    await _note_beginning(attempt)
    directory = Path(attempt.task["directory"])
    base = attempt.task["workspace_base"]
    await attempt.update(repository=await attempt.parts.workspaces.state(directory, base))


async def _note_beginning(attempt: ActiveAttempt) -> None:
    """Store when the worktree was ready: ignored files older than that come from the set-up."""
    if attempt.row["began_ns"] is None:
        began = await attempt.parts.workspaces.moment(attempt.owner)
        await attempt.update(began_ns=began.ns, began_inode=began.inode)


async def _prepare_in_place(attempt: ActiveAttempt) -> None:
    """Check the directory and record its content. Raises WorkspaceError if it is gone."""
    if not attempt.directory.is_dir():
        raise WorkspaceError(f"The directory {attempt.directory} no longer exists.")
    if attempt.task["starting_tree"] is None and attempt.asks_for_changes:
        await _remember_content(attempt)
    if attempt.task["browser"]:
        await start_application(attempt)
    if attempt.task["workspace_in_place_by_default"]:
        await attempt.warn("in_place", NO_GIT.format(directory=attempt.directory))


def _warnings(attempt: ActiveAttempt) -> dict[str, str]:
    """Return warnings about paths left out of the worktree, and about missing abilities."""
    settings = attempt.settings
    directory = Path(attempt.task["directory"])
    warnings = {}
    for how in ("link", "copy"):
        if paths := list_paths_into_checkout(
            settings, paths_from_top(settings, how, directory), directory
        ):
            warnings[how] = (
                f"workspace.{how} is skipped for {', '.join(paths)}: code would come from your "
                "checkout. Let workspace.setup create it (`kapelle init` proposes how)."
            )
    if explanation := explain_omitted(attempt.place.variables.omitted):
        warnings["environment"] = explanation
    name = attempt.agent_name
    capabilities = attempt.agent().capabilities
    if attempt.is_read_only and not capabilities.read_only:
        warnings["read_only"] = f"{name} has no read-only mode, so it works in a temporary copy."
    if attempt.task["tools"] and name != attempt.task["agent"]:
        warnings["tools"] = (
            f"The list of tools is for {attempt.task['agent']}; {name} has all of its tools."
        )
    return warnings


async def _make_worktree(attempt: ActiveAttempt) -> None:
    """Create the task's own worktree at its base, or at the branch that it continues."""
    task = attempt.task
    workspaces = attempt.parts.workspaces
    earlier = None
    if not task["requested_base"]:
        earlier = await attempt.load_continued_task()
    if earlier and not (earlier.workspace.branch and earlier.directory == task["directory"]):
        earlier = None  # it has no branch to build on
    base = task["requested_base"]
    if earlier:
        # After a merge the branch may be gone, but not the commit.
        commit = earlier.merged_at and earlier.workspace.commit
        base = commit or earlier.workspace.branch
    # The worktree may have been archived since the last attempt.
    await workspaces.recall(attempt.task_id, Path(task["directory"]), attempt.workspace)
    arguments = (
        Path(task["directory"]),
        base,
        *list_copies_and_links(attempt.settings, task["directory"], attempt.place.rung),
    )
    workspace = await workspaces.create(attempt.task_id, *arguments)
    message = None
    if attempt.mode == "merge":
        message = await _take_in_base(attempt)
    failpoint("prepare_after_workspace")
    if message is not None:
        # From here on, the attempt is an ordinary resumed one.
        attempt.mode = "resume"
        attempt.message = message
        await attempt.update(mode="resume", message=message)
        workspace = await workspaces.create(attempt.task_id, *arguments)
    if _starts_over(attempt):
        # A requeued task starts from the present base; a retry from where the task began.
        newest = None
        if task["workspace_base_commit"] is None:
            newest = base or workspace.base
        workspace = await workspaces.reset(attempt.task_id, attempt.id, newest)
    is_fresh = attempt.mode == "fresh"
    await attempt.update_task(
        workspace_path=workspace.path,
        workspace_branch=workspace.branch,
        # Work that continues another task is merged into the base of that task.
        workspace_base=earlier.workspace.base if earlier else workspace.base,
        workspace_base_commit=workspace.base_commit,
        workspace_commit=None if is_fresh else task["workspace_commit"],
        starting_tree=None if is_fresh else task["starting_tree"],
    )


async def _take_in_base(attempt: ActiveAttempt) -> str:
    """Merge the base of a task into its branch, and return the message for its agent.

    Conflicts leave markers in the files. After a crash, a repetition has the same result.
    """
    base = attempt.task["workspace_base"]
    message = f"Merge {base}\n\nTask: {attempt.task_id}"
    conflicts = await attempt.parts.workspaces.take_in(attempt.task_id, base, message, as_base=True)
    names = "\n".join(f"- {name}" for name in conflicts)
    if conflicts:
        instructions = _CONFLICTS.format(base=base, names=names)
    else:
        instructions = _CLEAN.format(base=base)
    return f"{instructions}\n\n{attempt.message or ''}".strip()


async def _share_worktree(attempt: ActiveAttempt) -> None:
    """Start a task in its run's worktree, at the end of the task before it."""
    parts = attempt.parts
    task = attempt.task
    owner = attempt.owner
    if not await parts.db.read(steps.is_open, task["run_id"], attempt.task_id):
        raise WorkspaceError(
            f"{owner} has continued in the worktree that it shared with {attempt.task_id}.",
            hint="Start a new run, or a task that continues from this one.",
        )
    workspace = await run_workspace(parts, await parts.db.read(runs.load_row, owner))
    failpoint("prepare_after_workspace")
    # A requeued task starts there too, not at its own end.
    start = task["requested_base"] or await parts.workspaces.tip(owner)
    if _starts_over(attempt):
        await parts.workspaces.restore(owner, start, attempt.id)
    await attempt.update_task(
        workspace_path=workspace.path,
        workspace_branch=workspace.branch,
        workspace_base=workspace.base,
        requested_base=start,
        workspace_base_commit=start,
        workspace_commit=None if attempt.mode == "fresh" else task["workspace_commit"],
    )


def _starts_over(attempt: ActiveAttempt) -> bool:
    """Return whether the result of an earlier attempt has to be put away."""
    # Once the set-up has begun, the workspace is clean already, also after a crash.
    return attempt.number > 1 and attempt.mode == "fresh" and _SETUP not in attempt.processes


async def _remember_content(attempt: ActiveAttempt) -> None:
    """Record the content before the agent begins, to tell the agent's work apart."""
    tree = await attempt.parts.workspaces.snapshot(attempt.directory)
    await attempt.update_task(starting_tree=tree)


async def _was_set_up(attempt: ActiveAttempt) -> bool:
    """Return whether the set-up of an earlier attempt in this workspace succeeded."""
    parts = attempt.parts
    earlier = await parts.db.read(attempts.list_in_workspace, attempt.owner)
    return await parts.db.read(processes.has_succeeded, earlier, _SETUP)


async def _set_up(attempt: ActiveAttempt, command: str) -> None:
    """Run the set-up command of the workspace. Raises WorkspaceError if it fails."""
    settings = attempt.settings
    directory = attempt.task["directory"]
    timeout_s = settings.workspace.setup_timeout_s
    place = attempt.place.at(directory, settings.directory_of("workspace.setup", directory))
    process, end = await attempt.execute_command(
        _SETUP, command, timeout_s, place, keeps_changes=True
    )
    if not end.succeeded:
        output = await asyncio.to_thread(attempt.place.with_hints, last_words(process), command)
        how = end.describe_end(timeout_s)
        raise WorkspaceError(f"The workspace's setup command failed ({how}):\n{output}")
    # Only a noted success keeps later attempts from setting up again.
    await attempt.write(processes.record_success, attempt.id, _SETUP)
