"""Merging without a checkout: a branch into its base, and another branch into a worktree.

The first is refused where they conflict; the second leaves conflicts to be resolved in the files.
"""

import asyncio
import os
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Literal

from kapelle.domain.errors import Conflict, GitError, InvalidInput, MergeConflict, WorkspaceError
from kapelle.domain.views import MergePreview
from kapelle.workspaces.checkout import Mover, shown
from kapelle.workspaces.commit import commit_worktree, tip_of
from kapelle.workspaces.files import open_inside, shown_path
from kapelle.workspaces.git import RefMoved
from kapelle.workspaces.lifecycle import restore_worktree
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import BRANCHES, branch_ref, owner_of
from kapelle.workspaces.repository import find_checkout, read_person
from kapelle.workspaces.signature import Habits, Signing, read_habits, read_signing
from kapelle.workspaces.undo import PastMerge, apply_change, merged_tree
from kapelle.workspaces.worktree import Marker

_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_PIECE = 65_536
_TELLING = 8_000  # git takes a file for binary by the beginning alone, too
_TAKE_IN_TRIES = 5
# How long a branch that others move all the time is tried again, at least.
_PATIENCE_S = 60.0
_TRIES = 20


def _spellings(path: str) -> set[str]:
    """The path as it is, and with the bytes put back that shown_path wrote as text."""
    try:
        raw = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), path)
        return {path, os.fsdecode(os.fsencode(raw))}
    except UnicodeEncodeError:
        return set()


def _is_marked(top: Path, path: str) -> bool:
    """Whether lines that begin, divide and end a conflict follow each other in a text file."""
    awaited = [rb"<<<<<<< ", rb"=======\r*\n?\Z", rb">>>>>>> "]
    stream = open_inside(top, path)
    if stream is None:
        return False
    with stream:
        if b"\0" in stream.read(_TELLING):
            return False
        stream.seek(0)
        at_start = True
        # In pieces: a file may hold a line of any length.
        while awaited and (piece := stream.readline(_PIECE)):
            if at_start and re.match(awaited[0], piece):
                awaited.pop(0)
            at_start = piece.endswith(b"\n")
    return not awaited


async def _require_branch(marker: Marker, name: str) -> tuple[str, str]:
    """The full reference of a branch of the repository, and its commit."""
    ref = branch_ref(name)
    if ref is None:
        commit = None
    else:
        commit = await marker.refs.read(ref)
    if ref is None or commit is None:
        text = f"{name!r} is not a branch of {marker.source}."
        raise InvalidInput(text, hint="`git branch` lists them.")
    return ref, commit


async def _committed(marker: Marker, branch: str) -> str:
    """Commit what is there and stand on the branch's tip, whatever the agent was amid."""
    await commit_worktree(marker, f"Work before {branch} was taken in")
    tip = await tip_of(marker)
    if marker.is_amid_operation() or not await marker.stands_on_branch():
        await restore_worktree(marker, f"before-{tip[:12]}", tip)
    return tip


async def _merge_into_worktree(
    marker: Marker, mover: Mover, tip: str, theirs: str, message: str
) -> list[str]:
    objects = marker.objects
    standing = await _standing_conflicts(marker, tip)
    if await objects.is_ancestor(theirs, tip) or await _marked(marker, standing):
        return standing
    tree, conflicts = await merged_tree(objects, tip, theirs)
    new = await objects.commit(tree, [tip, theirs], message)
    await mover.move(marker, marker.ref, tip, new, standing=marker)
    return [shown_path(name) for name in conflicts]


async def _standing_conflicts(marker: Marker, tip: str) -> list[str]:
    """What is left of the last merge: all its conflicts while nobody did anything, else markers."""
    objects = marker.objects
    options = ("rev-list", "--first-parent", "--merges", "--max-count=1", "--parents")
    output = await objects.run(*options, tip, f"^{marker.base_commit}", "--")
    last, *parents = output.line.split() or [""]
    if len(parents) != 2:
        return []
    try:
        tree, names = await merged_tree(objects, parents[0], parents[1])
    except GitError:  # somebody's own merge of what git would not merge by itself
        return []
    conflicts = [shown_path(name) for name in names]
    if last == tip and tree == await objects.tree_of(tip):
        return conflicts
    return await _marked(marker, conflicts)


async def _marked(marker: Marker, paths: Sequence[str]) -> list[str]:
    """Those of the paths that are text files of the worktree and hold conflict markers."""

    def found() -> list[str]:
        tops = ((path, _spellings(path)) for path in paths)
        return [path for path, names in tops if any(_is_marked(marker.toplevel, n) for n in names)]

    return await asyncio.to_thread(found)


# merge: a commit with both parents; squash: one commit of all; rebase: the commits one by one.
Style = Literal["merge", "squash", "rebase"]


@dataclass(frozen=True)
class Merge:
    """The outcome: the branch merged into, the commit it holds, and the checkout moved along."""

    base: str
    commit: str
    already: bool
    checkout_updated: Path | None
    signed: bool = False
    # What the branch held before.
    parent: str | None = None


@dataclass(frozen=True)
class MergeCandidate:
    """What a branch would go to by a merge, and from where; the same commit if it holds all."""

    ref: str
    old: str
    new: str
    # Whether these files are others than those on the branch that is merged.
    is_other: bool = False
    conflicts: tuple[bytes, ...] = ()

    @property
    def base(self) -> str:
        return self.ref.removeprefix(BRANCHES)


@dataclass(frozen=True)
class Merger:
    """One merge of one task's branch into a branch, with what is expected of the first."""

    marker: Marker
    message: str
    expected: str | None
    style: Style = "merge"
    # Whether the person whose repository it is makes it.
    by_person: bool = False
    signing: Signing | None = None
    # An earlier merge of the branch that was undone.
    undone: PastMerge | None = None

    async def target(self, into: str) -> str:
        """The full reference of the branch to merge into."""
        ref = branch_ref(into)
        if into == self.marker.base and (ref is None or await self.marker.refs.read(ref) is None):
            raise await self._no_base()
        ref, _ = await _require_branch(self.marker, into)
        if await self.marker.refs.is_symbolic(ref):
            raise InvalidInput(f"{into!r} is only another name for a branch.")
        return ref

    async def _no_base(self) -> InvalidInput:
        marker = self.marker
        options = ("--format=%(refname:lstrip=2)", "--sort=refname")
        containing = ("--contains", marker.base_commit)
        output = await marker.refs.run("for-each-ref", *containing, *options, BRANCHES)
        names = [name for name in output.line.splitlines() if not owner_of(name)]
        usual = [name for name in ("main", "master") if name in names]
        into = shlex.quote((usual + names + ["BRANCH"])[0])
        text = f"{marker.task_id} was made from {marker.base}, which is not a branch."
        hint = f"Name the branch to merge into: kapelle merge {marker.task_id} --into {into}"
        return InvalidInput(text, hint=hint)

    async def candidate(self, ref: str) -> MergeCandidate:
        """The commit that the merge would lead to, or where it conflicts."""
        marker = self.marker
        objects = self.marker.objects
        name = ref.removeprefix(BRANCHES)
        old = await marker.refs.read(ref)
        tip = await marker.tip() or marker.left
        if old is None or tip is None:
            if old is None:
                missing = name
            else:
                missing = marker.branch
            raise WorkspaceError(f"The branch {missing} does not exist any more.")
        self._require_verified(tip)
        if self.undone is not None and await objects.is_ancestor(self.undone.commit, old):
            return await self._redo(self.undone, ref, old, tip)
        if await objects.is_ancestor(tip, old):
            return MergeCandidate(ref, old, old)
        if self.by_person:
            person = await read_person(marker.git, marker.common_dir)
        else:
            person = {}
        if self.style == "rebase":
            new, conflicts = await self._rebase(old, tip, person)
        else:
            new = old
            (tree, conflicts) = await merged_tree(objects, old, tip)
            if self.style == "merge" or tree != await objects.tree_of(old):
                if self.style == "merge":
                    parents = [old, tip]
                else:
                    parents = [old]
                new = await objects.commit(tree, parents, self.message, self.signing, **person)
        trees = [await objects.tree_of(one) for one in (new, tip)]
        is_other = new != old and not conflicts and trees[0] != trees[1]
        return MergeCandidate(ref, old, new, is_other, tuple(conflicts))

    async def _redo(self, undone: PastMerge, ref: str, old: str, tip: str) -> MergeCandidate:
        """The commit that merges again what a branch holds already, but reverted."""
        marker = self.marker
        objects = self.marker.objects
        target = await objects.tree_of(undone.commit)
        conflicts = list[bytes]()
        if not await objects.is_ancestor(tip, undone.commit):
            target, conflicts = await merged_tree(objects, undone.commit, tip)
        if not conflicts:
            target, conflicts = await apply_change(objects, undone.parent, old, target)
        if conflicts or target == await objects.tree_of(old):
            return MergeCandidate(ref, old, old, conflicts=tuple(conflicts))
        if self.by_person:
            person = await read_person(marker.git, marker.common_dir)
        else:
            person = {}
        if self.style == "merge":
            parents = [old, tip]
        else:
            parents = [old]
        new = await objects.commit(target, parents, self.message, self.signing, **person)
        return MergeCandidate(ref, old, new, is_other=target != await objects.tree_of(tip))

    async def require_candidate(self, ref: str) -> MergeCandidate:
        """The commit that the merge would lead to; raises MergeConflict where there is none."""
        found = await self.candidate(ref)
        if found.conflicts:
            text = f"{self.marker.branch} and {found.base} conflict in {shown(found.conflicts)}."
            text = f"{text} {found.base} was not changed."
            raise MergeConflict(text, hint=self._way_out(found.base))
        return found

    async def _rebase(
        self, old: str, tip: str, person: Mapping[str, str]
    ) -> tuple[str, list[bytes]]:
        """The branch's commits one by one onto another, or the files in which one conflicts."""
        objects = self.marker.objects
        new = old
        told = "--format=%H%x00%P%x00%an%x00%ae%x00%ad%x00%B%x00"
        options = ("--first-parent", "--reverse", "--no-commit-header", "--date=raw")
        output = await objects.run("rev-list", *options, told, tip, f"^{old}", "--")
        texts = iter(output.stdout.decode("utf-8", "backslashreplace").split("\0"))
        for commit, parents, name, email, date, message in zip(*[texts] * 6, strict=False):
            parent = parents.split(" ")[0]
            # Git merges by what commits have in common: here it is the parent alone.
            trees = [await objects.tree_of(one) for one in (new, commit.strip())]
            sides = [await objects.commit(tree, [parent], "side") for tree in trees]
            tree, conflicts = await merged_tree(objects, *sides)
            if conflicts:
                return old, conflicts
            author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date}
            if new == parent and self.signing is None:
                new = commit.strip()
            elif tree != trees[0]:
                text = message.rstrip("\n")
                new = await objects.commit(tree, [new], text, self.signing, **{**person, **author})
        return new, []

    async def move(self, found: MergeCandidate, mover: Mover, standing: Marker | None) -> Merge:
        """Have the branch hold the candidate; raises RefMoved if it is not where it was.

        standing is the worktree of ours that the branch is checked out in, if there is one.
        """
        marker = self.marker
        refs = self.marker.refs
        recovered = await mover.recover()
        if found.new == found.old:
            return Merge(found.base, found.old, already=True, checkout_updated=recovered)
        if await refs.read(found.ref) != found.old:
            raise RefMoved(f"{found.base} moved")
        updated = await mover.move(marker, found.ref, found.old, found.new, standing)
        now = await refs.read(found.ref)
        if now is None or not await marker.objects.is_ancestor(found.new, now):
            raise GitError(f"After the merge, {found.base} does not hold {marker.branch}.")
        return Merge(
            found.base,
            found.new,
            already=False,
            checkout_updated=updated,
            signed=self.signing is not None,
            parent=found.old,
        )

    def _way_out(self, into: str) -> str:
        owner = self.marker.task_id
        top = shlex.quote(str(self.marker.toplevel))
        by_hand = f"cd {top}; git merge {shlex.quote(into)}, resolve, commit; "
        by_hand += f"then `kapelle merge --force {owner}`."
        if owner.startswith("task_") and into == self.marker.base:
            return f"`kapelle resume {owner} --merge` has its agent resolve it. By hand: {by_hand}"
        return f"By hand: {by_hand}"

    def _require_verified(self, branch: str) -> None:
        if self.expected is not None and branch != self.expected:
            owner = self.marker.task_id
            # A run that has ended is not taken up again.
            if owner[:4] == "task":
                again = f"`kapelle resume {owner}` has them checked; "
            else:
                again = ""
            text = f"The branch {self.marker.branch} holds commits that were not verified."
            hint = f"{again}`kapelle merge --force {owner}` merges them as they are."
            raise Conflict(text, hint=hint)


class WorkspaceMerges(WorkspaceGuard):
    """Merges of owners' branches, and into them."""

    async def take_in(
        self, owner: str, branch: str, message: str, *, as_base: bool = False
    ) -> list[str]:
        """Merge a branch into the owner's branch and worktree; returns the paths in conflict.

        What is uncommitted is committed first. A conflict is committed with its markers, so that it
        can be resolved in ordinary files; while any of them stand, they are returned again and
        nothing more is taken in. As the base, what was merged is what the owner's work is told from
        afterwards.
        """
        async with self._standing(owner) as marker, self._merging(marker.common_dir):
            mover = self._mover(marker)
            await _require_branch(marker, branch)
            await mover.recover()
            for _ in range(_TAKE_IN_TRIES):
                try:
                    tip = await _committed(marker, branch)
                    _, theirs = await _require_branch(marker, branch)
                    conflicts = await _merge_into_worktree(marker, mover, tip, theirs, message)
                    break
                except RefMoved:
                    continue
            else:
                text = f"{marker.branch} kept changing while {branch} was being taken in."
                raise GitError(text)
            if as_base:
                ends = (await tip_of(marker), f"{await marker.refs.commit_of(branch)}")
                base = (await marker.objects.run("merge-base", *ends)).line
                self._markers.write(replace(marker, base_commit=base))
            return conflicts

    async def unresolved(self, owner: str) -> list[str]:
        """The files in which conflicts of the last branch that was taken in are left."""
        async with self._standing(owner) as marker:
            return await _standing_conflicts(marker, await tip_of(marker))

    async def conflicted(self, owner: str, paths: Sequence[str]) -> list[str]:
        """Those of the paths that are text files of the worktree and hold conflict markers."""
        async with self._standing(owner) as marker:
            marker.require_present()
            return await _marked(marker, paths)

    async def merge(
        self,
        owner: str,
        into: str | None,
        message: str,
        *,
        expected: str | None = None,
        style: Style = "merge",
        by_person: bool = False,
        sign: bool = False,
        undone: PastMerge | None = None,
        verify: Callable[[MergeCandidate], Awaitable[None]] | None = None,
    ) -> Merge:
        """Merge the owner's branch into a branch, by default the one it was made from.

        When the branch does not hold the expected commit, nothing is merged. With sign, commits are
        signed as the person's own configuration of git says. verify is called, with
        no lock held, for files that are not those of the branch; if it raises, nothing is merged.
        """
        marker = self._markers.require(owner)
        if sign:
            signing = await read_signing(marker.git, marker.common_dir)
        else:
            signing = None
        merger = Merger(marker, message, expected, style, by_person, signing, undone)
        ref = await merger.target(marker.base if into is None else into)
        target = ref.removeprefix(BRANCHES)
        began = time.monotonic()
        for number in count():
            mover = self._mover(marker)
            found = None
            if verify is not None:
                found = await merger.require_candidate(ref)
                if found.is_other:
                    # Minutes of checks are of no use where the move will be refused.
                    await mover.require_clean(marker, ref, found.old, found.new)
                    await verify(found)
            try:
                async with self._onto(target) as standing, self._merging(marker.common_dir):
                    found = found or await merger.require_candidate(ref)
                    return await merger.move(found, mover, standing)
            except RefMoved:
                if number >= _TRIES and time.monotonic() - began > _PATIENCE_S:
                    break
                await asyncio.sleep(0.01 * min(number, _TRIES))
        raise Conflict(f"{target} kept moving.", hint="Merge again later.")

    async def habits(self, directory: Path) -> Habits | None:
        """Return what git does at a person's own commits in the repository around a directory."""
        checkout = find_checkout(directory)
        if checkout is None:
            return None
        return await read_habits(self._git, checkout.common_dir)

    async def preview_merge(
        self, owner: str, into: str | None, undone: PastMerge | None = None
    ) -> MergePreview:
        """How a merge of the owner's branch would go."""
        marker = self._markers.require(owner)
        merger = Merger(marker, "", None, undone=undone)
        ref = await merger.target(marker.base if into is None else into)
        mover = self._mover(marker)
        found = await merger.candidate(ref)
        problem = None
        dirty = await mover.dirty(marker, ref, found.old, found.new)
        try:
            if not dirty:
                await mover.require_clean(marker, ref, found.old, found.new)
        except Conflict as error:
            problem = error.message
        sides = f"{found.old}...{await tip_of(marker)}"
        output = await marker.objects.run("rev-list", "--left-right", "--count", sides, "--")
        behind, ahead = map(int, output.line.split())
        return MergePreview(
            id=marker.task_id,
            base=found.base,
            ahead=ahead,
            behind=behind,
            already=found.new == found.old and not found.conflicts,
            conflicts=[shown_path(name) for name in found.conflicts],
            dirty=[shown_path(name) for name in dirty],
            check_again=found.is_other,
            problem=problem,
        )
