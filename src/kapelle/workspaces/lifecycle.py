"""The life of a worktree: create, reset, restore, remove and recall it.

A worktree is complete only when its marker says so. Before it is reset or removed, everything that
would be lost is archived.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kapelle.domain.errors import Conflict, InvalidInput, WorkspaceError
from kapelle.domain.task import Workspace, WorkspaceView
from kapelle.workspaces import repository
from kapelle.workspaces.clone import read_template, write_repository
from kapelle.workspaces.commit import (
    archive_commit,
    archive_worktree,
    bring_over,
    require_commit,
    stage_all,
)
from kapelle.workspaces.copy import remove_copy, remove_tree
from kapelle.workspaces.files import copy_inside, link_inside, split_path
from kapelle.workspaces.git import Git
from kapelle.workspaces.index import install_index, make_files_location
from kapelle.workspaces.leftovers import remove_aside
from kapelle.workspaces.linked import remove_linked
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import (
    ANCHORS,
    ARCHIVE,
    BRANCHES,
    Refs,
    is_text,
    make_branch_name,
    make_branch_ref,
    require_plain_name,
)
from kapelle.workspaces.repository import Checkout, find_checkout
from kapelle.workspaces.shadow import fresh_path, intake_path
from kapelle.workspaces.worktree import Marker, delete_directory, is_real_directory


class WorkspaceLifecycle(WorkspaceGuard):
    """Create, reset, restore, remove and recall the worktrees of owners."""

    async def create(
        self,
        owner: str,
        directory: Path,
        base: str | None,
        copy: Sequence[str] = (),
        link: Sequence[str] = (),
    ) -> Workspace:
        """Create a worktree on the branch kapelle/<owner>, or return the existing one.

        After a crash, a partly created worktree is created again. The branch appears in the
        repository with the first commit.
        """
        await self._bring_over_around(directory)
        await self._refresh_branch(base)
        async with self._lock_owner(owner):
            marker = await self._adopt(self._markers.read(owner))
            is_settled = await self._try_to_settle(marker)
            for path in (*copy, *link):
                split_path(path)
            if marker is not None and marker.is_present:
                self._markers.remove_intent(owner)
                if is_settled:
                    await self._catch_up(marker)
                commit = await marker.tip()
                return marker.as_workspace(None if commit == marker.base_commit else commit)
            await self._make_room(owner, marker)
            if marker is None:
                plan = await self._make_plan(owner, directory, base)
            else:
                # The branch it was made from may be gone. The owner's own branch was kept, and so
                # is the base.
                plan = await self._make_plan(owner, directory, marker.base_commit)
                plan = replace(plan, base=marker.base, left=marker.left)
            return await self._make(plan, copy, link, afresh=marker is None)

    async def _make(
        self, plan: Marker, copy: Sequence[str], link: Sequence[str], *, afresh: bool
    ) -> Workspace:
        """Create a worktree where there is none."""
        owner = plan.task_id
        if os.path.lexists(top := self._markers.worktree(owner)):
            text = f"{top} exists and was not made by Kapelle."
            raise WorkspaceError(text, hint="Move it away, then try again.")
        # If a crash follows, the next call clears what was created so far.
        self._markers.write_intent(owner, plan.common_dir)
        start = await _place_anchor(plan, afresh=afresh)
        new_marker = await _check_out(plan, start, plan.ref, copy, link)
        self._markers.write(new_marker)
        self._markers.remove_intent(owner)
        return new_marker.as_workspace(None if start == new_marker.base_commit else start)

    async def _bring_over_around(self, directory: Path) -> None:
        """Bring over what an agent committed, if the directory is inside of its workspace."""
        checkout = find_checkout(directory)
        if checkout is None or checkout.toplevel.parent != self._markers.directory:
            return
        await self._refresh(checkout.toplevel.name)

    async def _catch_up(self, marker: Marker) -> None:
        """Check out what a person committed on the branch in the user's repository meanwhile."""
        if not marker.is_intact:
            return
        await bring_over(marker)
        tip = await marker.tip()
        if tip is not None and tip != marker.own_branch():
            await restore_worktree(marker, f"before-{tip[:12]}", tip)

    async def create_aside(
        self, name: str, owner: str, commit: str, copy: Sequence[str], link: Sequence[str]
    ) -> Workspace:
        """Create a temporary worktree of a commit of the owner's repository, on no branch.

        `discard` removes it without archiving it. It never gets a marker, so anything that a crash
        leaves is cleared.
        """
        async with self._lock_owner(name):
            marker = self._markers.require(owner)
            self._markers.write_intent(name, marker.common_dir)
            top = self._markers.worktree(name)
            plan = replace(marker, task_id=name, toplevel=top, removed=False)
            return (await _check_out(plan, commit, None, copy, link)).as_workspace(commit)

    async def check_base(self, directory: Path, base: str) -> None:
        """Raise InvalidInput if the base is unknown in the repository around the directory."""
        checkout = find_checkout(directory)
        if checkout is not None:
            await _resolve_base(self._git, checkout, base)

    async def reset(self, owner: str, name: str, base: str | None = None) -> Workspace:
        """Archive the worktree, then reset it to its base commit, or to that of another base."""
        require_plain_name(name)
        await self._refresh_branch(base)
        async with self._lock_marker(owner) as marker:
            await marker.make_ready()
            await bring_over(marker)
            # The user's filters and conversions may have changed since the worktree was created.
            checkout = repository.read_checkout(marker.source)
            if checkout:
                tree = await repository.read_work_tree(self._git, checkout)
            else:
                tree = marker
            marker = goal = replace(marker, settings=tree.settings)
            if base is not None:
                base_name, commit = await _resolve_base(self._git, marker, base)
                goal = replace(marker, base=base_name, base_commit=commit)
            await place_anchor(goal)
            await restore_worktree(marker, name, goal.base_commit)
            self._markers.write(goal)
            return goal.as_workspace()

    async def restore(self, owner: str, commit: str, name: str) -> None:
        """Reset branch, index and files to a commit; archive what would be lost.

        The base stays the same, and ignored files stay.
        """
        require_plain_name(name)
        async with self._lock_marker(owner) as marker:
            await require_commit(marker, commit)
            await restore_worktree(marker, name, commit)

    async def remove(self, owner: str, *, empty_branch: bool = False) -> None:
        """Archive the worktree, verify the archive, and remove the worktree.

        The branch stays, and so does the information needed to show a diff. With `empty_branch`, a
        branch without commits of its own is deleted.
        """
        async with self._lock_owner(owner):
            half_made = self._markers.read_intent(owner) is not None
            marker = (self._markers.read if half_made else self._markers.require)(owner)
            await self._put_away(owner, await self._adopt(marker), empty_branch=empty_branch)

    async def discard(self, owner: str, *, empty_branch: bool = False) -> None:
        """Remove a complete, partly created or unknown worktree, and forget the owner."""
        async with self._lock_owner(owner):
            marker = await self._adopt(self._markers.read(owner))
            begun_in = self._markers.read_intent(owner)
            await self._put_away(owner, marker, empty_branch=empty_branch)
            await self._drop_anchor(owner, marker.common_dir if marker else begun_in)
            self._markers.forget(owner)

    async def put_away_merged(self, owner: str, into: str, *, is_squashed: bool = False) -> bool:
        """Remove a worktree and its branch after a merge; return whether the branch is gone.

        `into` is the branch that contains the work; with `is_squashed`, as other commits.
        Afterwards the owner is forgotten: its row in the database is enough to recall it.
        """
        async with self._lock_owner(owner):
            await self._put_away(owner, await self._adopt(self._markers.read(owner)))
            marker = self._markers.read(owner)
            is_gone = marker is None or await self._drop_merged(
                marker, into, is_squashed=is_squashed
            )
            if is_gone:
                await self._drop_anchor(owner, marker.common_dir if marker else None)
                self._markers.forget(owner)
            return is_gone

    async def recall(self, owner: str, directory: Path, view: WorkspaceView) -> None:
        """Remember a removed worktree from the facts in the row of its task or run."""
        if self._markers.read(owner) is not None or self._markers.read_intent(owner) is not None:
            return
        if view.base is None or view.base_commit is None or find_checkout(directory) is None:
            return
        plan = await self._make_plan(owner, directory, view.base_commit)
        is_empty = view.commit is None
        marker = replace(plan, base=view.base, left=view.commit, removed=True, is_empty=is_empty)
        self._markers.recall(marker)

    async def traces(self) -> set[str]:
        """Return owners of complete, partly created and removed worktrees."""
        return await asyncio.to_thread(self._markers.traces)

    async def _make_room(self, owner: str, marker: Marker | None) -> None:
        """Remove a partly created worktree, and git's entry of one that a person deleted."""
        is_there = os.path.lexists(self._markers.worktree(owner))
        begun_in = self._markers.read_intent(owner)
        if marker is not None and not marker.removed:
            if is_there:
                marker.require_present()
            # From here on, anything at the path counts as partly created.
            self._markers.write(replace(marker, removed=True))
        if begun_in is not None:
            await self._clear_half_made(owner, begun_in)

    async def _clear_half_made(self, owner: str, common_dir: Path) -> None:
        """Remove the remains of a worktree in which no agent ever ran."""
        path = self._markers.worktree(owner)
        await asyncio.to_thread(_clear_directory, path)
        await asyncio.to_thread(remove_linked, path, common_dir)
        for ref in (f"{BRANCHES}{make_branch_name(owner)}", f"{ANCHORS}{owner}"):
            (common_dir / f"{ref}.lock").unlink(missing_ok=True)

    async def _drop_anchor(self, owner: str, common_dir: Path | None) -> None:
        """Delete the reference that kept the base commit of a workspace."""
        if common_dir is None or not (common_dir / "objects").is_dir():
            return
        refs = Refs.of(self._git, common_dir)
        commit = await refs.read(ANCHORS + owner)
        if commit is not None:
            await refs.delete((ANCHORS + owner, commit))

    async def _make_plan(self, owner: str, directory: Path, revision: str | None) -> Marker:
        """Return the marker of a worktree that is to be created."""
        checkout = find_checkout(directory)
        if checkout is None:
            hint = "Run `git init` and commit there, or work in place."
            raise WorkspaceError(f"{directory} is not in a git repository.", hint=hint)
        base, commit = await _resolve_base(self._git, checkout, revision)
        origin = await repository.read_work_tree(self._git, checkout)
        top = self._markers.worktree(owner)
        return Marker(
            **{**vars(origin), "toplevel": top, "gitdir": top / ".git"},
            task_id=owner,
            source=origin.toplevel,
            branch=make_branch_name(owner),
            base=base,
            base_commit=commit,
            shadows=self._shadows,
        )

    async def _put_away(
        self, owner: str, marker: Marker | None, *, empty_branch: bool = False
    ) -> None:
        """Remove the worktree of an owner, whatever state it is in."""
        path = self._markers.worktree(owner)
        begun_in = self._markers.read_intent(owner)
        await asyncio.to_thread(remove_copy, path)
        await asyncio.to_thread(remove_aside, path)
        if marker is not None and not marker.removed:
            await _remove_worktree(marker)
            is_empty = False
            if marker.object_dir.is_dir():
                is_empty = await marker.tip() is None and marker.left is None
            self._markers.write(replace(marker, removed=True, is_empty=is_empty))
        elif begun_in is not None:
            await self._clear_half_made(owner, begun_in)
            self._markers.remove_intent(owner)
        elif os.path.lexists(path):
            raise Conflict(f"{path} was not made by Kapelle.", hint="Remove it by hand.")
        await asyncio.to_thread(remove_intake, path)
        if empty_branch and marker is not None:
            tip = await marker.tip()
            if tip is not None and await marker.objects.is_ancestor(tip, marker.base_commit):
                await marker.refs.delete((marker.ref, tip))

    async def _drop_merged(self, marker: Marker, into: str, *, is_squashed: bool) -> bool:
        """Delete every reference to a removed worktree that a branch contains.

        With `is_squashed`, its own branch is archived and deleted. Returns whether that branch is
        gone. A branch that somebody has checked out stays.
        """
        target = make_branch_ref(into)
        if target is None:
            target_commit = None
        else:
            target_commit = await marker.refs.read(target)
        tip = await marker.tip()
        if target_commit is None or target == marker.ref:
            return tip is None
        places = [marker.ref, f"{ARCHIVE}{marker.task_id}/"]
        if is_squashed and tip is not None:
            await archive_commit(marker, "final", tip)
            target_commit = tip
            places = [marker.ref]
        format_option = "--format=%(refname) %(objectname) %(worktreepath)"
        output = await marker.refs.run(
            "for-each-ref", f"--merged={target_commit}", format_option, *places
        )
        lines = output.stdout.decode("utf-8", "replace").splitlines()
        free: list[tuple[str, str]] = []
        for line in lines:
            ref, commit, place = line.split(" ", 2)
            if not place:
                free.append((ref, commit))
        if tip is not None and (marker.ref, tip) in free:
            self._markers.write(replace(marker, left=tip))
        await marker.refs.delete(*free)
        return await marker.tip() is None


def remove_intake(worktree: Path) -> None:
    """Remove what was copied from a workspace's repository, or made to replace it."""
    remove_tree(intake_path(worktree).parent)
    remove_tree(fresh_path(worktree))


async def _resolve_base(git: Git, checkout: Checkout, base: str | None) -> tuple[str, str]:
    """Return the name and the commit of the base: a branch, else any revision."""
    refs = Refs.at(git, checkout)
    if base is None:
        commit = await refs.head_commit()
        if commit is None:
            text = f"The repository at {checkout.toplevel} has no commit yet."
            hint = "Make a first commit: git add . && git commit -m 'Start'"
            raise WorkspaceError(text, hint=hint)
        return await refs.head_branch() or commit, commit
    ref = make_branch_ref(base)
    if ref is not None and (branch_commit := await refs.read_branch(ref)) is not None:
        return ref.removeprefix(BRANCHES), branch_commit
    can_be = base and not base.startswith("-") and is_text(base)
    if can_be:
        commit = await refs.commit_of(base)
    else:
        commit = None
    if commit is None:
        text = f"{base!r} is neither a branch nor a commit of {checkout.toplevel}."
        raise InvalidInput(text, hint="`git branch --all` lists the branches.").about("base")
    return base, commit


def _clear_directory(path: Path) -> None:
    """Remove a directory that no agent worked in."""
    if is_real_directory(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        raise WorkspaceError(f"{path} was not made by Kapelle.", hint="Remove it by hand.")


async def _check_out(
    plan: Marker, start: str, branch: str | None, copy: Sequence[str], link: Sequence[str]
) -> Marker:
    """Make the repository, check a commit out, and copy and link additional files."""
    template = await read_template(plan.git, plan.common_dir)
    plan.toplevel.mkdir()
    make = partial(write_repository, plan.toplevel / ".git", template, owner=plan.task_id)
    await asyncio.to_thread(make, branch=branch, commit=start)
    inode = os.lstat(plan.toplevel).st_ino
    marker = replace(plan, gitdir=plan.toplevel / ".git", inode=inode, left=None, is_empty=False)
    files = make_files_location(marker.objects, marker, marker.index)
    await files.run("read-tree", "--reset", "-u", start)
    excluded_paths = []
    for place_file, paths in ((copy_inside, copy), (link_inside, link)):
        for path in paths:
            if await asyncio.to_thread(place_file, marker.source, marker.toplevel, path):
                excluded_paths.append("/".join(split_path(path)))
    return replace(marker, excluded=tuple(excluded_paths))


async def _place_anchor(plan: Marker, *, afresh: bool) -> str:
    """Keep the base commit by a reference; return the commit that the workspace starts from."""
    if await plan.refs.has_branch_in_the_way():
        raise plan.make_name_error()
    tip = await plan.tip()
    start = plan.left or plan.base_commit
    if tip is not None:
        # The branch of an earlier workspace of this owner is continued.
        start = tip
        if afresh and tip != plan.base_commit:
            await archive_commit(plan, "found", tip)
            start = plan.base_commit
            await plan.refs.move(plan.ref, start, tip, "kapelle: begin")
    await place_anchor(plan)
    return start


async def place_anchor(marker: Marker) -> None:
    """Keep the base commit of a workspace, whatever becomes of the branch that it is from."""
    await marker.refs.anchor(ANCHORS + marker.task_id, marker.base_commit)


async def restore_worktree(marker: Marker, name: str, commit: str) -> None:
    """Archive the worktree, then reset it to the commit; do nothing if it is there already."""
    await marker.make_ready()
    if await _stands_at(marker, commit):
        return
    await archive_worktree(marker, name, commit)
    await _restore_files(marker, commit)
    tip = await marker.tip()
    if commit != (tip or marker.base_commit):
        await marker.move_branch(commit, tip, "kapelle: restore")
    await marker.set_branch(commit)
    await marker.own.point_head(marker.ref)
    marker.clear_operations()


async def _stands_at(marker: Marker, commit: str) -> bool:
    """Tell whether branch and files hold exactly the commit; then the index does too."""
    heads = await marker.heads()
    is_elsewhere = (heads.tip or marker.base_commit) != commit or marker.own_branch() != commit
    if is_elsewhere or marker.is_amid_operation() or not await marker.stands_on_branch():
        return False
    with marker.staging(await marker.receive()) as staging:
        if await staging.stage(commit) != await marker.objects.tree_of(commit):
            return False
        if await staging.find_nested_repositories(as_staged=True):
            return False
        install_index(staging.index, marker.index)
    return True


async def _restore_files(marker: Marker, commit: str) -> None:
    """Check a commit out over all files, untracked ones included.

    They are in the index first, so that read-tree removes them.
    """
    heads = await marker.heads()
    with marker.staging(await marker.receive()) as staging:
        await staging.stage(heads.parent)
        files = make_files_location(marker.objects, marker, staging.index)
        marker.require_present()
        await files.run("read-tree", "--reset", "-u", commit)
        for nested_repository in await staging.find_nested_repositories():
            # Its files are archived; the rest is a repository that the agent made.
            await asyncio.to_thread(shutil.rmtree, nested_repository, ignore_errors=True)
        install_index(staging.index, marker.index)


async def _remove_worktree(marker: Marker) -> None:
    """Archive, verify the archive, and only then remove the worktree; the branch stays.

    A directory that was put in the place of the worktree stays as well.
    """
    if not marker.object_dir.is_dir() and not marker.is_present:
        # A person deleted both the repository and the worktree, so there is nothing to archive.
        return
    marker.require_origin()
    if marker.is_present:
        await marker.make_ready()
        await bring_over(marker)
    archive = await archive_worktree(marker, "final")
    await _verify_archive(marker, archive)
    # By the descriptor: a link may be planted at the last moment.
    if marker.is_present:
        await asyncio.to_thread(delete_directory, marker.toplevel, marker.inode)


async def _verify_archive(marker: Marker, archive: tuple[str, str] | None) -> None:
    """Raise WorkspaceError unless the archive holds exactly the present files."""
    commit: str | None = marker.base_commit
    if archive is not None:
        commit = await marker.refs.read(archive[0], believe_files=False)
    if commit is None or (archive is not None and commit != archive[1]):
        raise WorkspaceError(f"The archive of {marker.task_id} could not be verified.")
    if not marker.is_present:
        return
    content = await stage_all(marker, await marker.receive(), await marker.heads())
    if content != await marker.objects.tree_of(commit, use_cache=False):
        hint = "End the processes that still write there, then try again."
        raise WorkspaceError(f"{marker.toplevel} changed while it was being archived.", hint=hint)
