"""Merging a task's branch into its base without a checkout: compute, compare and swap, verify."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import Conflict, GitError, InvalidInput, MergeConflict, WorkspaceError
from kapelle.workspaces.checkout import shown
from kapelle.workspaces.commit import commit_now, is_ancestor, new_commit
from kapelle.workspaces.conflicts import merged_tree
from kapelle.workspaces.git import Git, Place, RefMoved
from kapelle.workspaces.marker import Marker
from kapelle.workspaces.moving import Mover
from kapelle.workspaces.names import BRANCHES, branch_ref
from kapelle.workspaces.refs import is_symbolic, read_ref, repository_place
from kapelle.workspaces.skeleton import Skeletons

_TRIES = 20


@dataclass(frozen=True)
class Merge:
    """The outcome: the branch merged into, the commit it holds, and the checkout moved along."""

    base: str
    commit: str
    already: bool
    checkout_updated: Path | None


class Merger:
    """One merge of one task's branch into one base."""

    def __init__(self, git: Git, skeletons: Skeletons, marker: Marker, mover: Mover) -> None:
        self._git = git
        self._skeletons = skeletons
        self._marker = marker
        self._mover = mover
        self._refs = repository_place(Path(marker.common_dir))

    async def merge(self, into: str | None, message: str, expected: str | None) -> Merge:
        """Merge, again from the start when the base moved meanwhile."""
        ref = await self._base_ref(into)
        recovered = await self._mover.recover()
        for number in range(_TRIES):
            try:
                return await self._try(ref, message, expected, recovered)
            except RefMoved:
                await asyncio.sleep(0.01 * number)
        raise Conflict(f"{ref.removeprefix(BRANCHES)} kept moving.", hint="Merge again later.")

    async def is_merged(self, into: str | None) -> bool:
        """Whether the branch holds work of its own and all of it is in the base."""
        ref = await self._base_ref(into)
        branch = await commit_now(self._git, self._marker)
        base = await read_ref(self._git, self._refs, ref)
        if branch is None or base is None or branch == self._marker.base_commit:
            return False
        return await is_ancestor(self._git, await self._reading(), branch, base)

    async def _base_ref(self, into: str | None) -> str:
        name = self._marker.base if into is None else into
        ref = branch_ref(name)
        if ref is None or await read_ref(self._git, self._refs, ref) is None:
            raise InvalidInput(
                f"{name!r} is not a branch of {self._marker.toplevel}.",
                hint="Name the branch to merge into; `git branch` lists them.",
            )
        if await is_symbolic(self._git, self._refs, ref):
            raise InvalidInput(f"{name!r} is only another name for a branch.")
        return ref

    async def _try(
        self, ref: str, message: str, expected: str | None, recovered: Path | None
    ) -> Merge:
        name = ref.removeprefix(BRANCHES)
        reading = await self._reading()
        old = await read_ref(self._git, self._refs, ref)
        branch = await commit_now(self._git, self._marker)
        if old is None or branch is None:
            missing = name if old is None else self._marker.branch
            raise WorkspaceError(f"The branch {missing} does not exist any more.")
        self._require_verified(branch, expected)
        if await is_ancestor(self._git, reading, branch, old):
            return Merge(name, old, already=True, checkout_updated=recovered)
        tree = await self._merged_tree(reading, name, old, branch)
        new = await new_commit(self._git, reading, tree, [old, branch], message)
        updated = await self._mover.move(ref, old, new)
        now = await read_ref(self._git, self._refs, ref)
        if now is None or not await is_ancestor(self._git, reading, branch, now):
            raise GitError(f"After the merge, {name} does not hold {self._marker.branch}.")
        return Merge(name, new, already=False, checkout_updated=updated)

    def _require_verified(self, branch: str, expected: str | None) -> None:
        if expected is not None and branch != expected:
            owner = self._marker.task_id
            # A run that has ended is not taken up again.
            again = f"`kapelle resume {owner}` has them checked; " if owner[:4] == "task" else ""
            raise Conflict(
                f"The branch {self._marker.branch} holds commits that were not verified.",
                hint=f"{again}`kapelle merge --force {owner}` merges them as they are.",
            )

    async def _merged_tree(self, reading: Place, name: str, old: str, branch: str) -> str:
        merged = await merged_tree(self._git, reading, old, branch)
        if not merged.conflicts:
            return merged.tree
        raise MergeConflict(
            f"{self._marker.branch} and {name} conflict in {shown(merged.conflicts)}. "
            f"{name} was not changed.",
            hint=f"In {self._marker.path}: git merge {name}, resolve, commit; "
            f"then `kapelle merge --force {self._marker.task_id}`.",
        )

    async def _reading(self) -> Place:
        return await self._skeletons.reading(self._marker.lender)
