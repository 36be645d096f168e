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

from kapelle.domain.errors import Conflict, GitError, InvalidInput, WorkspaceError
from kapelle.domain.task import Workspace, WorkspaceView
from kapelle.workspaces import repository
from kapelle.workspaces.commit import archive_worktree, keep, require_commit, stage_all
from kapelle.workspaces.copy import remove_copy
from kapelle.workspaces.files import copy_inside, link_inside, relative_parts
from kapelle.workspaces.git import Git
from kapelle.workspaces.index import files_place, install_index
from kapelle.workspaces.leftovers import remove_aside
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import (
    ARCHIVE,
    BRANCHES,
    Refs,
    branch_of,
    branch_ref,
    is_text,
    plain_name,
)
from kapelle.workspaces.repository import Checkout, find_checkout, read_pointer
from kapelle.workspaces.worktree import Marker, delete_directory, is_real_directory


class WorkspaceLifecycle(WorkspaceGuard):
    """Worktrees of owners: made, put back, removed, recalled."""

    async def create(
        self,
        owner: str,
        directory: Path,
        base: str | None,
        copy: Sequence[str] = (),
        link: Sequence[str] = (),
    ) -> Workspace:
        """A worktree on the branch kapelle/<owner>; called again, it returns the same one, and what
        was half-made is made anew."""
        async with self._alone(owner):
            marker = self._markers.read(owner)
            await self._try_to_settle(marker)
            for path in (*copy, *link):
                relative_parts(path)
            if marker is not None and marker.present:
                self._markers.fulfilled(owner)
                commit = await marker.tip()
                return marker.as_workspace(None if commit == marker.base_commit else commit)
            await self._make_room(owner, marker)
            if os.path.lexists(top := self._markers.worktree(owner)):
                text = f"{top} exists and was not made by Kapelle."
                raise WorkspaceError(text, hint="Move it away, then try again.")
            # The branch it was made from may be gone by now; its own was kept, and so is the base.
            plan = await self._plan(owner, directory, marker.base_commit if marker else base)
            if marker is not None:
                plan = replace(plan, base=marker.base, left=marker.left)
            self._markers.intend(owner, plan.common_dir)
            start = await _place_branch(plan, afresh=marker is None)
            made = await _check_out(plan, start, plan.branch, copy, link)
            self._markers.write(made)
            self._markers.fulfilled(owner)
            return made.as_workspace(None if start == made.base_commit else start)

    async def create_aside(
        self, name: str, owner: str, commit: str, copy: Sequence[str], link: Sequence[str]
    ) -> Workspace:
        """A worktree of a commit of the owner's repository, without a branch; discard removes it
        and keeps nothing of it. It is never marked as complete, so that whatever a crash leaves of
        it is cleared."""
        async with self._alone(name):
            marker = self._markers.require(owner)
            self._markers.intend(name, marker.common_dir)
            top = self._markers.worktree(name)
            plan = replace(marker, task_id=name, toplevel=top, removed=False)
            return (await _check_out(plan, commit, None, copy, link)).as_workspace(commit)

    async def check_base(self, directory: Path, base: str) -> None:
        """Raise InvalidInput when the base is unknown in the repository around the directory."""
        checkout = find_checkout(directory)
        if checkout is not None:
            await _base_of(self._git, checkout, base)

    async def reset(self, owner: str, name: str, base: str | None = None) -> Workspace:
        """Archive, then go back to the base commit, or to the present commit of another base."""
        plain_name(name)
        async with self._known(owner) as marker:
            marker.make_ready()
            # What the user allows may be other than when the worktree was made.
            found = repository.checkout_at(marker.source)
            if found:
                tree = await repository.read_work_tree(self._git, found)
            else:
                tree = marker
            marker = goal = replace(marker, settings=tree.settings)
            if base is not None:
                name_of_it, commit = await _base_of(self._git, marker, base)
                goal = replace(marker, base=name_of_it, base_commit=commit)
            await restore_worktree(marker, name, goal.base_commit)
            self._markers.write(goal)
            return goal.as_workspace()

    async def restore(self, owner: str, commit: str, name: str) -> None:
        """Put branch, index and files to a commit; what would be lost is archived before.

        The base stays what it was, and ignored files stay where they are.
        """
        plain_name(name)
        async with self._known(owner) as marker:
            await require_commit(marker, commit)
            await restore_worktree(marker, name, commit)

    async def remove(self, owner: str, *, empty_branch: bool = False) -> None:
        """Archive, verify, remove; the branch and what is needed to show a diff stay.

        With empty_branch, a branch that holds nothing but the base goes as well.
        """
        async with self._alone(owner):
            half_made = self._markers.intended(owner) is not None
            marker = (self._markers.read if half_made else self._markers.require)(owner)
            await self._put_away(owner, marker, empty_branch=empty_branch)

    async def discard(self, owner: str, *, empty_branch: bool = False) -> None:
        """Like remove, be the worktree ready, half-made or unknown, and forget the owner."""
        async with self._alone(owner):
            await self._put_away(owner, self._markers.read(owner), empty_branch=empty_branch)
            self._markers.forget(owner)

    async def put_away_merged(self, owner: str, into: str, *, squashed: bool = False) -> bool:
        """Remove a worktree whose work a branch holds, if squashed by other commits, and its own
        branch with it; whether that is gone. Then the owner is forgotten: what its row says is
        enough to recall it."""
        async with self._alone(owner):
            await self._put_away(owner, self._markers.read(owner))
            marker = self._markers.read(owner)
            gone = marker is None or await self._drop_merged(marker, into, squashed=squashed)
            if gone:
                self._markers.forget(owner)
            return gone

    async def recall(self, owner: str, directory: Path, known: WorkspaceView) -> None:
        """Know a removed worktree again by what its task or run remembers of it."""
        if self._markers.read(owner) is not None or self._markers.intended(owner) is not None:
            return
        if known.base is None or known.base_commit is None or find_checkout(directory) is None:
            return
        plan = await self._plan(owner, directory, known.base_commit)
        self._markers.recall(replace(plan, base=known.base, removed=True, left=known.commit))

    async def traces(self) -> set[str]:
        """Owners of whom anything is known here, be their worktrees ready, half-made or removed."""
        return await asyncio.to_thread(self._markers.traces)

    async def _make_room(self, owner: str, marker: Marker | None) -> None:
        """Clear away what was half-made, and the entry in git of a worktree that somebody
        deleted."""
        is_there = os.path.lexists(self._markers.worktree(owner))
        begun_in = self._markers.intended(owner)
        if marker is not None and not marker.removed:
            if is_there:
                marker.require_present()
            # From here on, whatever comes to be at the path is half-made.
            self._markers.write(replace(marker, removed=True))
        if begun_in is None and marker is not None and not is_there:
            begun_in = marker.common_dir
        if begun_in is not None:
            await self._clear_half_made(owner, begun_in)

    async def _clear_half_made(self, owner: str, common_dir: Path) -> None:
        """Remove the remains of a worktree in which no agent ever ran."""
        await asyncio.to_thread(_clear, self._markers.worktree(owner), common_dir)
        (common_dir / f"{BRANCHES}{branch_of(owner)}.lock").unlink(missing_ok=True)

    async def _plan(self, owner: str, directory: Path, wanted: str | None) -> Marker:
        checkout = find_checkout(directory)
        if checkout is None:
            hint = "Run `git init` and commit there, or work in place."
            raise WorkspaceError(f"{directory} is not in a git repository.", hint=hint)
        base, commit = await _base_of(self._git, checkout, wanted)
        origin = await repository.read_work_tree(self._git, checkout)
        return Marker(
            **{**vars(origin), "toplevel": self._markers.worktree(owner), "gitdir": Path()},
            task_id=owner,
            source=origin.toplevel,
            branch=branch_of(owner),
            base=base,
            base_commit=commit,
            shadows=self._shadows,
        )

    async def _put_away(
        self, owner: str, marker: Marker | None, *, empty_branch: bool = False
    ) -> None:
        path = self._markers.worktree(owner)
        begun_in = self._markers.intended(owner)
        await asyncio.to_thread(remove_copy, path)
        await asyncio.to_thread(remove_aside, path)
        if marker is not None and not marker.removed:
            await _remove_worktree(marker)
            self._markers.write(replace(marker, removed=True))
        elif begun_in is not None:
            await self._clear_half_made(owner, begun_in)
            self._markers.fulfilled(owner)
        elif os.path.lexists(path):
            raise Conflict(f"{path} was not made by Kapelle.", hint="Remove it by hand.")
        if empty_branch and marker is not None:
            tip = await marker.tip()
            if tip is not None and await marker.objects.is_ancestor(tip, marker.base_commit):
                await marker.refs.delete((marker.ref, tip))

    async def _drop_merged(self, marker: Marker, into: str, *, squashed: bool) -> bool:
        """Delete every reference to a removed worktree that a branch holds, if squashed its own
        branch, which is archived; whether that is gone. A branch that somebody has checked out
        stays."""
        target = branch_ref(into)
        if target is None:
            held = None
        else:
            held = await marker.refs.read(target)
        tip = await marker.tip()
        if held is None or target == marker.ref:
            return tip is None
        places = [marker.ref, f"{ARCHIVE}{marker.task_id}/"]
        if squashed and tip is not None:
            await keep(marker, "final", tip)
            held = tip
            places = [marker.ref]
        told = "--format=%(refname) %(objectname) %(worktreepath)"
        output = await marker.refs.run("for-each-ref", f"--merged={held}", told, *places)
        lines = output.stdout.decode("utf-8", "replace").splitlines()
        found = [line.split(" ", 2) for line in lines]
        free = [(ref, commit) for ref, commit, place in found if not place]
        if tip is not None and (marker.ref, tip) in free:
            self._markers.write(replace(marker, left=tip))
        await marker.refs.delete(*free)
        return await marker.tip() is None


async def _base_of(git: Git, checkout: Checkout, base: str | None) -> tuple[str, str]:
    """What new work starts from, as it is called, and its commit: a branch first, then anything
    that git takes for a commit."""
    refs = Refs.at(git, checkout)
    if base is None:
        commit = await refs.head_commit()
        if commit is None:
            text = f"The repository at {checkout.toplevel} has no commit yet."
            hint = "Make a first commit: git add . && git commit -m 'Start'"
            raise WorkspaceError(text, hint=hint)
        return await refs.head_branch() or commit, commit
    ref = branch_ref(base)
    if ref is not None and (held := await refs.read(ref)) is not None:
        return ref.removeprefix(BRANCHES), held
    can_be = base and not base.startswith("-") and is_text(base)
    if can_be:
        commit = await refs.commit_of(base)
    else:
        commit = None
    if commit is None:
        text = f"{base!r} is neither a branch nor a commit of {checkout.toplevel}."
        raise InvalidInput(text, hint="`git branch --all` lists what there is.").about("base")
    return base, commit


def _clear(path: Path, common_dir: Path) -> None:
    if is_real_directory(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        raise WorkspaceError(f"{path} was not made by Kapelle.", hint="Remove it by hand.")
    # git appends a number to the name when it is taken.
    for admin in (common_dir / "worktrees").glob(f"{path.name}*"):
        suffix = admin.name.removeprefix(path.name)
        target = read_pointer(admin / "gitdir")
        is_its = not target or Path(target) == path / ".git"
        if (suffix == "" or suffix.isdigit()) and is_its:
            shutil.rmtree(admin)


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


async def _remove_worktree(marker: Marker) -> None:
    """Archive, verify the archive, and only then remove; the branch stays.

    What somebody put in the place of the worktree is not ours and stays as well.
    """
    if not marker.object_dir.is_dir() and not marker.present:
        # A person deleted both: there is neither anything to keep nor a place to keep it.
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
