"""Merging a task's branch into its base without a checkout: compute, compare and swap, verify."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import Conflict, GitError, InvalidInput, MergeConflict, WorkspaceError
from kapelle.workspaces.checkout import BaseCheckout, checkouts_of, shown
from kapelle.workspaces.commit import commit_now, is_ancestor, new_commit
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git, Place, RefMoved
from kapelle.workspaces.journal import Journal, Move
from kapelle.workspaces.marker import Marker
from kapelle.workspaces.names import BRANCHES, branch_ref
from kapelle.workspaces.recovery import Recovery
from kapelle.workspaces.refs import is_symbolic, move_ref, read_ref, repository_place
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

    def __init__(self, git: Git, skeletons: Skeletons, marker: Marker, journals: Path) -> None:
        self._git = git
        self._skeletons = skeletons
        self._marker = marker
        self._common_dir = Path(marker.common_dir)
        self._refs = repository_place(self._common_dir)
        self._journal = Journal(journals, self._common_dir)
        self._recovery = Recovery(git, skeletons, marker.lender, self._journal)

    async def merge(self, into: str | None, message: str, expected: str | None) -> Merge:
        """Merge, again from the start when the base moved meanwhile."""
        ref = await self._base_ref(into)
        recovered = await self._recovery.recover()
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
        updated = await self._move(reading, ref, old, new)
        now = await read_ref(self._git, self._refs, ref)
        if now is None or not await is_ancestor(self._git, reading, branch, now):
            raise GitError(f"After the merge, {name} does not hold {self._marker.branch}.")
        return Merge(name, new, already=False, checkout_updated=updated)

    def _require_verified(self, branch: str, expected: str | None) -> None:
        if expected is not None and branch != expected:
            raise Conflict(
                f"The branch {self._marker.branch} holds commits that were not verified.",
                hint=f"`kapelle resume {self._marker.task_id}` has them checked; "
                f"`kapelle merge --force {self._marker.task_id}` merges them as they are.",
            )

    async def _merged_tree(self, reading: Place, name: str, old: str, branch: str) -> str:
        options = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")
        output = await self._git.run(
            reading, *options, old, branch, ok=(0, 1), timeout_s=CONTENT_TIMEOUT_S
        )
        tree, *conflicts = output.fields
        if output.code == 0:
            return tree.decode()
        raise MergeConflict(
            f"{self._marker.branch} and {name} conflict in {shown(conflicts)}. "
            f"{name} was not changed.",
            hint=f"In {self._marker.path}: git merge {name}, resolve, commit; then merge again.",
        )

    async def _move(self, reading: Place, ref: str, old: str, new: str) -> Path | None:
        toplevel, name = Path(self._marker.toplevel), ref.removeprefix(BRANCHES)
        found = await checkouts_of(self._git, self._common_dir, toplevel, name)
        toplevels = tuple(str(item.toplevel) for item in found)
        self._journal.write(Move(ref, old, new, toplevels, self._marker.task_id))
        with self._skeletons.scratch() as scratch:
            checkouts = [
                await self._recovery.base_checkout(reading, item, scratch) for item in found
            ]
            try:
                await self._move_with(checkouts, ref, old, new)
            except asyncio.CancelledError:
                await self._recovery.recover()
                raise
            except Exception:
                for checkout in checkouts:
                    checkout.unlock()
                self._journal.clear()
                raise
        self._journal.clear()
        return found[0].toplevel if found else None

    async def _move_with(self, checkouts: list[BaseCheckout], ref: str, old: str, new: str) -> None:
        for checkout in checkouts:
            checkout.lock()
            await checkout.require_clean(old, new)
        await move_ref(self._git, self._refs, ref, new, old, f"kapelle: {self._marker.task_id}")
        await self._advance(checkouts, ref, old, new)
        for checkout in checkouts:
            checkout.unlock()

    async def _advance(self, checkouts: list[BaseCheckout], ref: str, old: str, new: str) -> None:
        for number, checkout in enumerate(checkouts):
            try:
                await checkout.advance(old, new)
            except GitError as error:
                if number == 0:
                    await move_ref(self._git, self._refs, ref, old, new, "kapelle: undo")
                top = checkout.work_tree.directory
                raise Conflict(
                    f"{top} changed during the merge: {error.message}",
                    hint=f"Look at git -C {top} status, then merge again.",
                ) from error

    async def _reading(self) -> Place:
        return await self._skeletons.reading(self._marker.lender)
