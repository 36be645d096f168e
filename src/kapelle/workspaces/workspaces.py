"""All operations on git repositories and worktrees, as one class."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.task import Workspace
from kapelle.settings.models import ForgeSettings as ForgeSettings
from kapelle.workspaces import commit as commits
from kapelle.workspaces import repository
from kapelle.workspaces.commit import Commit
from kapelle.workspaces.copy import WorkspaceCopies
from kapelle.workspaces.diff import WorkspaceDiffs
from kapelle.workspaces.files import read_inside, write_inside
from kapelle.workspaces.forge import (
    Login,
    Remote,
    contains,
    find_remote,
    find_upstream,
    read_branch,
)
from kapelle.workspaces.git import RefMoved
from kapelle.workspaces.leftovers import WorkspaceLeftovers
from kapelle.workspaces.lifecycle import WorkspaceLifecycle
from kapelle.workspaces.merge import WorkspaceMerges
from kapelle.workspaces.refs import BRANCHES, Refs, make_branch_ref
from kapelle.workspaces.relocation import WorkspaceRelocations
from kapelle.workspaces.repository import find_checkout, read_work_tree
from kapelle.workspaces.undo import WorkspaceUndos

_MANY_OBJECTS = 250
_MOST_TEXT = 5_000_000


@dataclass(frozen=True)
class Repository:
    """The git work tree around a directory."""

    toplevel: Path
    common_dir: Path
    head_commit: str | None


class Workspaces(
    WorkspaceLifecycle,
    WorkspaceDiffs,
    WorkspaceMerges,
    WorkspaceUndos,
    WorkspaceCopies,
    WorkspaceLeftovers,
    WorkspaceRelocations,
):
    """Worktrees of one home, and snapshots of directories that are worked on in place.

    An owner is the id of a task or a run. Every operation may be repeated after a crash at any
    moment, with the same result.
    """

    def close(self) -> None:
        """End the threads that wait for git."""
        self._git.close()

    async def locate(self, directory: Path) -> Repository | None:
        """Return the repository around a directory; None outside of one."""
        checkout = find_checkout(directory)
        if checkout is None:
            return None
        head_commit = await Refs.at(self._git, checkout).head_commit()
        return Repository(checkout.toplevel, checkout.common_dir, head_commit)

    async def state(self, directory: Path, base: str | None) -> dict[str, str]:
        """Return the state of the repository around a directory, for changes_of.

        This is the base branch, HEAD, configuration and hooks; empty outside of a repository.
        """
        checkout = find_checkout(directory)
        if checkout is None:
            return {}
        refs = Refs.of(self._git, checkout.common_dir)
        branch = make_branch_ref(base or "")
        if branch:
            tip = await refs.read(branch)
        else:
            tip = None
        digests = await asyncio.to_thread(repository.compute_digests, checkout)
        return digests | ({branch: tip} if branch and tip else {})

    async def changes_of(self, directory: Path, before: dict[str, str]) -> list[str]:
        """Return what changed in a repository's state, except by Kapelle's merges."""
        branch = next((name for name in before if name.startswith(BRANCHES)), None)
        now = await self.state(directory, branch)
        checkout = find_checkout(directory)
        names = [name for name in before if now.get(name) != before[name]]
        is_ours = repository.is_moved_by_kapelle
        if branch in names and checkout and is_ours(checkout, branch, before[branch]):
            names.remove(branch)
        return [name.removeprefix(BRANCHES) for name in names]

    async def restore_settings(self, owner: str) -> None:
        """Undo what an agent changed in the settings of its workspace's repository.

        They could run a command when a person next uses git there.
        """
        async with self._lock_worktree(owner) as marker:
            await marker.restore_settings()

    async def commit(self, owner: str, message: str) -> str | None:
        """Commit all changes to the owner's branch; None if it is still the base commit."""
        async with self._lock_worktree(owner) as marker:
            return await commits.commit_worktree(marker, message)

    async def tip(self, owner: str) -> str:
        """Return the commit of the owner's branch; the base commit without a branch."""
        await self._refresh(owner)
        return await commits.read_tip(self._markers.require(owner))

    async def astray(self, owner: str) -> str | None:
        """Return what the worktree has checked out; None if that is the owner's branch."""
        async with self._lock_marker(owner) as marker:
            await marker.make_ready()
            head = await marker.own.head_branch()
        if head == marker.branch:
            return None
        return head or "a commit without a branch"

    async def log(self, owner: str, limit: int | None = 20) -> list[Commit]:
        """Return the commits since the base, newest first; a merged branch counts as one."""
        await self._refresh(owner)
        marker = self._markers.require(owner)
        tip = await commits.read_tip(marker)
        if tip == marker.base_commit:
            return []
        options = ["--first-parent", "--no-commit-header", "--format=%H%x00%s%x00%b%x00"]
        options += [] if limit is None else [f"--max-count={max(limit, 0)}"]
        output = await marker.objects.run("rev-list", *options, tip, f"^{marker.base_commit}", "--")
        parts = iter(output.stdout.decode("utf-8", "replace").split("\0"))
        triples = zip(parts, parts, parts, strict=False)
        return [Commit(id_.strip(), subject, body.strip()) for id_, subject, body in triples]

    async def read_file(self, owner: str, directory: Path, path: str) -> str | None:
        """Return a text file of the worktree; None if it is not a file.

        The path is relative to the directory's counterpart in the worktree.
        """
        top = working_directory(self._markers.require(owner).as_workspace(), directory)
        content = await asyncio.to_thread(read_inside, top, path, _MOST_TEXT)
        if content is None:
            return None
        return content.decode("utf-8", "replace")

    async def write_file(self, owner: str, directory: Path, path: str, text: str) -> None:
        """Write a text file of the worktree; the path is that of read_file."""
        async with self._lock_worktree(owner) as marker:
            marker.require_present()
            top = working_directory(marker.as_workspace(), directory)
            await asyncio.to_thread(write_inside, top, path, text.encode("utf-8", "replace"))

    async def name_branch(self, owner: str, name: str, commit: str, before: str | None) -> bool:
        """Move or create a branch at a commit of the owner; False if it is not where expected."""
        refs = self._markers.require(owner).refs
        ref = make_branch_ref(name)
        if ref is None:
            raise InvalidInput(f"{name!r} cannot be the name of a branch.")
        try:
            if await refs.read(ref) != commit:
                await refs.move(ref, commit, before, f"kapelle: {owner}")
        except RefMoved:
            return False
        return True

    async def remote(
        self, directory: Path, settings: ForgeSettings, environ: Mapping[str, str]
    ) -> Remote:
        """Return a remote of the repository around a directory, with a person's variables."""
        checkout = find_checkout(directory)
        if checkout is None:
            raise Conflict(f"{directory} is in no git repository.")
        # Only to read the configuration; a push uses the shadow with the repository's object
        # format.
        shadow = self._shadows.snapshots("sha1").parent
        return await find_remote(self._git, checkout.common_dir, shadow, settings, environ)

    async def push(
        self, owner: str, remote: Remote, login: Login, commit: str, **what: Any
    ) -> None:
        """Push a commit of the owner's repository; see Remote.push."""
        await remote.push(self._markers.require(owner).objects, commit, login, **what)

    async def push_branch(
        self, directory: Path, branch: str, settings: ForgeSettings, environ: Mapping[str, str]
    ) -> Remote:
        """Push a branch to its upstream, never over commits of others; return the remote."""
        checkout = find_checkout(directory)
        if checkout is None:
            raise Conflict(f"{directory} is in no git repository.")
        objects = self._shadows.objects(await read_work_tree(self._git, checkout))
        name, upstream = await find_upstream(self._git, checkout.common_dir, branch)
        if name is not None:
            settings = settings.model_copy(update={"remote": name})
        remote = await self.remote(directory, settings, environ)
        login = await remote.find_login(settings)
        commit = await read_branch(self._git, checkout.common_dir, branch)
        remote_commit = (await remote.branches(upstream, login=login)).get(upstream)
        if remote_commit != commit:
            await remote.push(
                objects,
                commit,
                login,
                branch=upstream,
                ours=(),
                remote_commit=remote_commit,
                worktree=str(checkout.toplevel),
            )
        return remote

    async def contains(self, owner: str, commit: str, older: str) -> bool:
        """Tell whether a commit contains an older one; False if either is not here."""
        return await contains(self._markers.require(owner).objects, commit, older)

    async def count_ahead(self, owner: str, commit: str, other: str) -> int:
        """Return how many commits one commit has that another has not; 0 if unknown."""
        objects = self._markers.require(owner).objects
        arguments = ("rev-list", "--count", commit, f"^{other}", "--")
        output = await objects.run(*arguments, ok=(0, 128))
        if output.code == 0:
            return int(output.line)
        return 0

    async def pack_objects(self, directory: Path) -> None:
        """Pack the loose objects of a repository if there are many; none is lost."""
        checkout = find_checkout(directory)
        if checkout is None or repository.count_loose_objects(checkout.object_dir) < _MANY_OBJECTS:
            return
        # By git's own maintenance, which does not run twice at once.
        place = self._shadows.objects(await read_work_tree(self._git, checkout))
        upkeep = ("maintenance", "run", "--quiet", "--task=loose-objects")
        await place.run(*upkeep)
        await place.run("prune-packed", "--quiet")

    async def tidy(self) -> None:
        """Delete old snapshots and the remains of killed processes."""
        await self._shadows.tidy()


def working_directory(workspace: Workspace, directory: Path) -> Path:
    """Return the place inside a worktree that corresponds to a directory of its repository."""
    top = Path(workspace.path)
    checkout = find_checkout(directory)
    if checkout is None:
        return top
    inside = top / directory.resolve().relative_to(checkout.toplevel)
    # A tracked symbolic link may lead out of the worktree, and an untracked directory is missing
    # there.
    safe = inside.is_dir() and inside.resolve().is_relative_to(top.resolve())
    return inside if safe else top
