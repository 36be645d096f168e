"""Makes a workspace ready for an attempt: created or put back, set up, and remembered."""

import asyncio
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.engine.environment import (
    explain_omitted,
    list_copies_and_links,
    list_paths_into_checkout,
    paths_from_top,
)
from kapelle.engine.runs.workspace import run_workspace
from kapelle.engine.tasks.attempt import ActiveAttempt
from kapelle.engine.tasks.browser import last_words, serve
from kapelle.engine.tasks.protection import NO_GIT
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import attempts, processes, runs, steps

_SETUP = "setup"
_CONFLICTS = """\
{base} has moved on. It was just merged into your branch, and these files conflict:
{found}
They hold conflict markers (<<<<<<<, =======, >>>>>>>). Resolve each so that what you did and what
{base} did both hold, leave no marker behind, and see that the work still does what it was to do."""
_CLEAN = """\
{base} has moved on. It was just merged into your branch, without conflicts. See that the work still
does what it was to do, and mend it where it does not."""


async def prepare(attempt: ActiveAttempt) -> None:
    """Make the workspace as the attempt should find it."""
    if not attempt.is_worktree:
        await _prepare_in_place(attempt)
        return
    await (_share_worktree if attempt.is_shared else _make_worktree)(attempt)
    # A daemon that died amid checks left them aside.
    await attempt.parts.workspaces.bring_back(attempt.owner)
    command = attempt.settings.workspace.setup
    again = attempt.mode == "fresh" and not attempt.is_shared
    if command and (again or not await _was_set_up(attempt)):
        await _set_up(attempt, command)
        if attempt.asks_for_changes:
            await _remember_content(attempt)
    if attempt.is_read_only:
        await attempt.parts.workspaces.copy(attempt.owner, alone=True)
    if attempt.task["browser"]:
        await serve(attempt)
    for what, text in (await asyncio.to_thread(_warnings, attempt)).items():
        await attempt.warn(what, text)
    await _note_beginning(attempt)
    directory = Path(attempt.task["directory"])
    base = attempt.task["workspace_base"]
    await attempt.update(repository=await attempt.parts.workspaces.state(directory, base))


async def _note_beginning(attempt: ActiveAttempt) -> None:
    """Store when the worktree was ready for its agent: what git ignores and is older was set up."""
    if attempt.row["began_ns"] is None:
        began = await attempt.parts.workspaces.moment(attempt.owner)
        await attempt.update(began_ns=began.ns, began_inode=began.inode)


async def _prepare_in_place(attempt: ActiveAttempt) -> None:
    if not attempt.directory.is_dir():
        raise WorkspaceError(f"The directory {attempt.directory} does not exist any more.")
    if attempt.task["starting_tree"] is None and attempt.asks_for_changes:
        await _remember_content(attempt)
    if attempt.task["browser"]:
        await serve(attempt)
    if attempt.task["workspace_in_place_by_default"]:
        await attempt.warn("in_place", NO_GIT.format(directory=attempt.directory))


def _warnings(attempt: ActiveAttempt) -> dict[str, str]:
    """What is kept out of the worktree because it leads into the checkout."""
    settings = attempt.settings
    directory = Path(attempt.task["directory"])
    found = {}
    for how in ("link", "copy"):
        if back := list_paths_into_checkout(
            settings, paths_from_top(settings, how, directory), directory
        ):
            found[how] = (
                f"workspace.{how} is not done for {', '.join(back)}: code would come from your "
                "checkout. Let workspace.setup make it (`kapelle init` proposes how)."
            )
    if said := explain_omitted(attempt.place.variables.omitted):
        found["environment"] = said
    name = attempt.agent_name
    able = attempt.agent().capabilities
    if attempt.is_read_only and not able.read_only:
        found["read_only"] = (
            f"{name} has no read-only mode: it works in a copy that is thrown away."
        )
    if attempt.task["tools"] and name != attempt.task["agent"]:
        found["tools"] = f"The list of tools is {attempt.task['agent']}'s: {name} has all of its."
    return found


async def _make_worktree(attempt: ActiveAttempt) -> None:
    """In its own worktree a task begins at its base, or at the branch that it continues."""
    task = attempt.task
    workspaces = attempt.parts.workspaces
    if task["requested_base"]:
        earlier = None
    else:
        earlier = await attempt.continued()
    if earlier and not (earlier.workspace.branch and earlier.directory == task["directory"]):
        earlier = None  # it has no branch that could be built upon
    base = task["requested_base"]
    if earlier:
        # A merged one's branch is gone, and its commit is not.
        commit = earlier.merged_at and earlier.workspace.commit
        base = commit or earlier.workspace.branch
    await workspaces.recall(attempt.task_id, Path(task["directory"]), attempt.workspace)
    given = (
        Path(task["directory"]),
        base,
        *list_copies_and_links(attempt.settings, task["directory"]),
    )
    workspace = await workspaces.create(attempt.task_id, *given)
    if attempt.mode == "merge":
        merged = await _take_in_base(attempt)
    else:
        merged = None
    failpoint("prepare_after_workspace")
    if merged is not None:
        # From here on it is an ordinary one that goes on.
        attempt.mode = "resume"
        attempt.message = merged
        await attempt.update(mode="resume", message=merged)
        workspace = await workspaces.create(attempt.task_id, *given)
    if _starts_over(attempt):
        # A requeued task starts from where its base is now; a retry from where it began.
        if task["workspace_base_commit"] is None:
            newest = base or workspace.base
        else:
            newest = None
        workspace = await workspaces.reset(attempt.task_id, attempt.id, newest)
    fresh = attempt.mode == "fresh"
    await attempt.update_task(
        workspace_path=workspace.path,
        workspace_branch=workspace.branch,
        # What continues another task's branch is merged where that one would be.
        workspace_base=earlier.workspace.base if earlier else workspace.base,
        workspace_base_commit=workspace.base_commit,
        workspace_commit=None if fresh else task["workspace_commit"],
        starting_tree=None if fresh else task["starting_tree"],
    )


async def _take_in_base(attempt: ActiveAttempt) -> str:
    """Merge its base into its branch, where they conflict with markers in the files; what its
    agent is told of that. Done again after a crash, it finds the same."""
    base = attempt.task["workspace_base"]
    message = f"Merge {base}\n\nTask: {attempt.task_id}"
    conflicts = await attempt.parts.workspaces.take_in(attempt.task_id, base, message, as_base=True)
    found = "\n".join(f"- {name}" for name in conflicts)
    if conflicts:
        told = _CONFLICTS.format(base=base, found=found)
    else:
        told = _CLEAN.format(base=base)
    return f"{told}\n\n{attempt.message or ''}".strip()


async def _share_worktree(attempt: ActiveAttempt) -> None:
    """In a run's worktree a task begins where the one before it ended."""
    parts = attempt.parts
    task = attempt.task
    owner = attempt.owner
    if not await parts.db.read(steps.is_open, task["run_id"], attempt.task_id):
        raise WorkspaceError(
            f"{owner} has gone on in the worktree that {attempt.task_id} shared with it.",
            hint="Start a new run, or a task that continues from this one.",
        )
    workspace = await run_workspace(parts, await parts.db.read(runs.row, owner))
    failpoint("prepare_after_workspace")
    # Also one that is put back into the queue begins there, not where it left off.
    began = task["requested_base"] or await parts.workspaces.tip(owner)
    if _starts_over(attempt):
        await parts.workspaces.restore(owner, began, attempt.id)
    await attempt.update_task(
        workspace_path=workspace.path,
        workspace_branch=workspace.branch,
        workspace_base=workspace.base,
        requested_base=began,
        workspace_base_commit=began,
        workspace_commit=None if attempt.mode == "fresh" else task["workspace_commit"],
    )


def _starts_over(attempt: ActiveAttempt) -> bool:
    """Whether what an earlier attempt left is put away."""
    # Once the set-up has begun the workspace is as it should be, also after a crash.
    return attempt.number > 1 and attempt.mode == "fresh" and _SETUP not in attempt.processes


async def _remember_content(attempt: ActiveAttempt) -> None:
    """Keep what is there before the agent begins, to tell its work from the rest."""
    tree = await attempt.parts.workspaces.snapshot(attempt.directory)
    await attempt.update_task(starting_tree=tree)


async def _was_set_up(attempt: ActiveAttempt) -> bool:
    """Whether the set-up of an earlier attempt in this workspace succeeded."""
    parts = attempt.parts
    earlier = await parts.db.read(attempts.in_workspace, attempt.owner)
    return await parts.db.read(processes.succeeded, earlier, _SETUP)


async def _set_up(attempt: ActiveAttempt, command: str) -> None:
    settings = attempt.settings
    directory = attempt.task["directory"]
    timeout_s = settings.workspace.setup_timeout_s
    place = attempt.place.at(directory, settings.directory_of("workspace.setup", directory))
    process, ended = await attempt.execute_command(_SETUP, command, timeout_s, place)
    if not ended.succeeded:
        words = await asyncio.to_thread(attempt.place.with_hints, last_words(process), command)
        how = ended.ending(timeout_s)
        raise WorkspaceError(f"The workspace's setup command failed ({how}):\n{words}")
    await attempt.write(processes.note_success, attempt.id, _SETUP)
