"""A worktree from its making to its removal.

It is complete only when it is marked so, and neither put back to a commit nor removed before what
would be lost is kept.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kapelle.domain.errors import GitError, InvalidInput, WorkspaceError
from kapelle.domain.task import Workspace
from kapelle.workspaces import repository
from kapelle.workspaces.commit import archive_worktree, keep, stage_all
from kapelle.workspaces.files import copy_inside, link_inside, relative_parts
from kapelle.workspaces.git import Git
from kapelle.workspaces.index import files_place, install_index
from kapelle.workspaces.refs import ARCHIVE, BRANCHES, Refs, Resolved, branch_of, branch_ref
from kapelle.workspaces.repository import Checkout, find_checkout, read_pointer
from kapelle.workspaces.worktree import Marker, Markers, delete_directory, is_real_directory


async def create_worktree(
    markers: Markers,
    task_id: str,
    directory: Path,
    base: str | None,
    copy: Sequence[str],
    link: Sequence[str],
) -> Workspace:
    """Make the worktree, or return the one that is there; what was half-made is made anew."""
    for path in (*copy, *link):
        relative_parts(path)
    marker = markers.read(task_id)
    if marker is not None and marker.present:
        markers.fulfilled(task_id)
        commit = await marker.tip()
        return marker.as_workspace(None if commit == marker.base_commit else commit)
    await _make_room(markers, task_id, marker)
    if os.path.lexists(markers.worktree(task_id)):
        text = f"{markers.worktree(task_id)} exists and was not made by Kapelle."
        raise WorkspaceError(text, hint="Move it away, then try again.")
    if marker is None:
        plan = await _plan(markers, task_id, directory, base)
    else:
        # The branch it was made from may be gone by now; its own was kept, and so is the base.
        plan = await _plan(markers, task_id, directory, marker.base_commit)
        plan = replace(plan, base=marker.base, left=marker.left)
    return await _make(markers, plan, copy, link, afresh=marker is None)


async def _make_room(markers: Markers, task_id: str, marker: Marker | None) -> None:
    """Clear away what was half-made, and the entry in git of a worktree that somebody deleted."""
    path = markers.worktree(task_id)
    common_dir = markers.intended(task_id)
    if marker is not None and not marker.removed:
        if os.path.lexists(path):
            marker.require_present()
        # From here on, whatever comes to be at the path is half-made.
        markers.write(replace(marker, removed=True))
    if common_dir is not None:
        await clear_half_made(markers, task_id, common_dir)
    elif marker is not None and not os.path.lexists(path):
        await clear_half_made(markers, task_id, marker.common_dir)


async def base_of(git: Git, checkout: Checkout, base: str | None) -> Resolved:
    """The branch and commit that new work starts from."""
    refs = Refs.at(git, checkout)
    if base is not None:
        resolved = await refs.resolve(base)
        if resolved is None:
            text = f"{base!r} is neither a branch nor a commit of {checkout.toplevel}."
            raise InvalidInput(text, hint="`git branch --all` lists what there is.")
        return resolved
    commit = await refs.head_commit()
    if commit is None:
        hint = "Make a first commit: git add . && git commit -m 'Start'"
        raise WorkspaceError(f"The repository at {checkout.toplevel} has no commit yet.", hint=hint)
    return Resolved(await refs.head_branch(), commit)


async def clear_half_made(markers: Markers, task_id: str, common_dir: Path) -> None:
    """Remove the remains of a worktree in which no agent ever ran."""
    path = markers.worktree(task_id)
    await asyncio.to_thread(_clear, path, common_dir)
    (common_dir / f"{BRANCHES}{branch_of(task_id)}.lock").unlink(missing_ok=True)


def _clear(path: Path, common_dir: Path) -> None:
    if is_real_directory(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        raise WorkspaceError(f"{path} was not made by Kapelle.", hint="Remove it by hand.")
    # git appends a number to the name when it is taken.
    for admin in (common_dir / "worktrees").glob(f"{path.name}*"):
        suffix, target = admin.name.removeprefix(path.name), read_pointer(admin / "gitdir")
        is_its = not target or Path(target) == path / ".git"
        if (suffix == "" or suffix.isdigit()) and is_its:
            shutil.rmtree(admin)


async def _plan(markers: Markers, task_id: str, directory: Path, wanted: str | None) -> Marker:
    checkout = find_checkout(directory)
    if checkout is None:
        hint = "Run `git init` and commit there, or work in place."
        raise WorkspaceError(f"{directory} is not in a git repository.", hint=hint)
    base = await base_of(markers.shadows.git, checkout, wanted)
    origin = await repository.read_work_tree(markers.shadows.git, checkout)
    return Marker(
        toplevel=markers.worktree(task_id),
        gitdir=Path(),
        common_dir=origin.common_dir,
        object_format=origin.object_format,
        settings=origin.settings,
        ignore=origin.ignore,
        task_id=task_id,
        source=origin.toplevel,
        branch=branch_of(task_id),
        base=base.branch or wanted or base.commit,
        base_commit=base.commit,
        shadows=markers.shadows,
    )


async def _make(
    markers: Markers, plan: Marker, copy: Sequence[str], link: Sequence[str], *, afresh: bool
) -> Workspace:
    markers.intend(plan.task_id, plan.common_dir)
    start = await _place_branch(plan, afresh=afresh)
    marker = await _check_out(plan, start, plan.branch, copy, link)
    markers.write(marker)
    markers.fulfilled(marker.task_id)
    return marker.as_workspace(None if start == marker.base_commit else start)


async def make_aside(
    markers: Markers, name: str, of: Marker, commit: str, copy: Sequence[str], link: Sequence[str]
) -> Workspace:
    """A worktree of a commit of another one's repository, without a branch. It is never marked as
    complete, so that whatever a crash leaves of it is cleared."""
    markers.intend(name, of.common_dir)
    plan = replace(of, task_id=name, toplevel=markers.worktree(name), removed=False)
    return (await _check_out(plan, commit, None, copy, link)).as_workspace(commit)


async def _check_out(
    plan: Marker, start: str, branch: str | None, copy: Sequence[str], link: Sequence[str]
) -> Marker:
    """Have git link a worktree, and put a commit's files into it and what is to be beside them."""
    options = ["--quiet", "--no-checkout", "--lock", "--reason", "kapelle"]
    options += [] if branch else ["--detach"]
    await plan.refs.run("worktree", "add", *options, "--", str(plan.toplevel), branch or start)
    gitdir = repository.linked_gitdir(plan.toplevel / ".git")
    if gitdir is None or gitdir.parent.parent != plan.common_dir:
        raise WorkspaceError(f"git did not link {plan.toplevel} to {plan.common_dir}.")
    marker = replace(plan, gitdir=gitdir, inode=os.lstat(plan.toplevel).st_ino, left=None)
    files = files_place(marker.objects, marker, marker.index)
    await files.run("read-tree", "--reset", "-u", start)
    excluded = []
    for put, paths in ((copy_inside, copy), (link_inside, link)):
        for path in paths:
            if await asyncio.to_thread(put, marker.source, marker.toplevel, path):
                excluded.append("/".join(relative_parts(path)))
    return replace(marker, excluded=tuple(excluded))


async def _place_branch(plan: Marker, *, afresh: bool) -> str:
    """Put the task's branch at the base, and say which commit it then holds."""
    tip = await plan.tip()
    if tip is not None:
        if tip == plan.base_commit or not afresh:
            return tip
        await keep(plan, "found", tip)
    start = plan.left or plan.base_commit
    try:
        await plan.refs.move(plan.ref, start, tip, "kapelle: begin")
    except GitError:
        if await plan.refs.read(f"{BRANCHES}kapelle") is None:
            raise
        text = f"{plan.source} has a branch named kapelle, so git allows none like {plan.branch}."
        hint = "Rename it: git branch -m kapelle kapelle-old"
        raise WorkspaceError(text, hint=hint) from None
    return start


async def reset_worktree(
    markers: Markers, marker: Marker, name: str, base: str | None
) -> Workspace:
    """Put a worktree back to its base, or to another base."""
    marker.make_ready()
    # What the user allows may be other than when the worktree was made.
    found = repository.checkout_at(marker.source)
    tree = await repository.read_work_tree(marker.git, found) if found else marker
    marker = goal = replace(marker, settings=tree.settings)
    if base is not None:
        resolved = await base_of(marker.git, marker, base)
        goal = replace(marker, base=resolved.branch or base, base_commit=resolved.commit)
    await restore_worktree(marker, name, goal.base_commit)
    markers.write(goal)
    return goal.as_workspace()


async def restore_worktree(marker: Marker, name: str, commit: str) -> None:
    """Archive, then put branch, index and files to the commit; nothing is done where it stands."""
    marker.make_ready()
    if await _stands_at(marker, commit):
        return
    await archive_worktree(marker, name, commit)
    await _restore_files(marker, commit)
    tip = await marker.tip()
    if tip != commit:
        await marker.refs.move(marker.ref, commit, tip, "kapelle: restore")
    await marker.own.point_head(marker.ref)
    marker.clear_operations()


async def _stands_at(marker: Marker, commit: str) -> bool:
    """Whether branch and files hold the commit and nothing else; then the index does after it."""
    heads = await marker.heads()
    if heads.tip != commit or marker.is_amid_operation() or not await marker.stands_on_branch():
        return False
    with marker.staging() as staging:
        if await staging.stage(commit) != await marker.objects.tree_of(commit):
            return False
        if await staging.nested_repositories(as_staged=True):
            return False
        install_index(staging.index, marker.index)
    return True


async def _restore_files(marker: Marker, commit: str) -> None:
    """With an index that knows the untracked files, read-tree removes them as well."""
    heads = await marker.heads()
    with marker.staging() as staging:
        await staging.stage(heads.parent)
        files = files_place(marker.objects, marker, staging.index)
        marker.require_present()
        await files.run("read-tree", "--reset", "-u", commit)
        for nested in await staging.nested_repositories():
            # Its files are archived; what is left is a repository of the agent's own making.
            await asyncio.to_thread(shutil.rmtree, nested, ignore_errors=True)
        install_index(staging.index, marker.index)


async def remove_worktree(markers: Markers, marker: Marker) -> None:
    """Archive, verify the archive, and only then remove; the branch stays.

    What somebody put in the place of the worktree is not ours and stays as well.
    """
    if marker.removed:
        return
    if not marker.object_dir.is_dir() and not marker.present:
        # A person deleted both: there is neither anything to keep nor a place to keep it.
        markers.write(replace(marker, removed=True))
        return
    marker.ensure_gitdir()
    if marker.present:
        marker.restore_dot_git()
    marker.clear_stale_locks()
    archived = await archive_worktree(marker, "final")
    await _verify(marker, archived)
    # Not `git worktree remove`, which follows a link that is put there at the last moment.
    if marker.present:
        await asyncio.to_thread(delete_directory, marker.toplevel, marker.inode)
    await asyncio.to_thread(shutil.rmtree, marker.gitdir)
    markers.write(replace(marker, removed=True))


async def _verify(marker: Marker, archived: tuple[str, str] | None) -> None:
    held: str | None = marker.base_commit
    if archived is not None:
        held = await marker.refs.read(archived[0], believe_files=False)
    if held is None or (archived is not None and held != archived[1]):
        raise WorkspaceError(f"The archive of {marker.task_id} could not be verified.")
    if not marker.present:
        return
    content = await stage_all(marker, await marker.heads())
    if content != await marker.objects.tree_of(held, remembered=False):
        hint = "See that nothing works there any more, then try again."
        raise WorkspaceError(f"{marker.toplevel} changed while it was being archived.", hint=hint)


async def drop_empty_branch(marker: Marker) -> None:
    """Delete the branch of a removed worktree when all that it holds is in its base."""
    tip = await marker.tip()
    if tip is not None and await marker.objects.is_ancestor(tip, marker.base_commit):
        await marker.refs.delete((marker.ref, tip))


async def drop_merged(markers: Markers, marker: Marker, into: str, *, squashed: bool) -> bool:
    """Delete every reference to a removed worktree that a branch holds, if squashed its own branch,
    which is archived; whether that is gone. A branch that somebody has checked out stays."""
    target = branch_ref(into)
    held = None if target is None else await marker.refs.read(target)
    tip = await marker.tip()
    if held is None or target == marker.ref:
        return tip is None
    places = [marker.ref, f"{ARCHIVE}{marker.task_id}/"]
    if squashed and tip is not None:
        await keep(marker, "final", tip)
        held, places = tip, [marker.ref]
    told = "--format=%(refname) %(objectname) %(worktreepath)"
    output = await marker.refs.run("for-each-ref", f"--merged={held}", told, *places)
    found = [line.split(" ", 2) for line in output.stdout.decode("utf-8", "replace").splitlines()]
    free = [(ref, commit) for ref, commit, place in found if not place]
    if tip is not None and (marker.ref, tip) in free:
        markers.write(replace(marker, left=tip))
    await marker.refs.delete(*free)
    return await marker.tip() is None


async def recalled(
    markers: Markers, task_id: str, directory: Path, known: Workspace
) -> Marker | None:
    """The marker of a removed worktree as its task or run remembers it."""
    if known.base is None or known.base_commit is None or find_checkout(directory) is None:
        return None
    plan = await _plan(markers, task_id, directory, known.base_commit)
    return replace(plan, base=known.base, removed=True, left=known.commit)
