"""Merge without a checkout: a branch into its base, and another branch into a worktree.

The first is refused in case of conflicts; the second commits the conflicts with their markers, to
be resolved in the files.
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
from kapelle.domain.work_views import MergePreview
from kapelle.workspaces.checkout import Mover, format_names
from kapelle.workspaces.commit import commit_worktree, find_work, read_tip
from kapelle.workspaces.files import format_path, open_inside
from kapelle.workspaces.git import RefMoved
from kapelle.workspaces.lifecycle import restore_worktree
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import BRANCHES, find_owner, make_branch_ref
from kapelle.workspaces.repository import find_checkout, read_person
from kapelle.workspaces.signature import Habits, Signing, read_habits, read_signing
from kapelle.workspaces.undo import PastMerge, apply_change, merge_trees
from kapelle.workspaces.worktree import Marker

_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_PIECE = 65_536
_TELLING = 8_000  # git, too, decides by the beginning whether a file is binary
_TAKE_IN_TRIES = 5
# Minimum time for which a merge is retried while others move the branch.
_PATIENCE_S = 60.0
_TRIES = 20


def _spellings(path: str) -> set[str]:
    """Return a path as given, and with the bytes that shown_path wrote as text."""
    try:
        raw = _ESCAPED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), path)
        return {path, os.fsdecode(os.fsencode(raw))}
    except UnicodeEncodeError:
        return set()


def _is_marked(top: Path, path: str) -> bool:
    """Tell whether a text file has the three kinds of conflict markers in their order."""
    patterns = [rb"<<<<<<< ", rb"=======\r*\n?\Z", rb">>>>>>> "]
    stream = open_inside(top, path)
    if stream is None:
        return False
    with stream:
        if b"\0" in stream.read(_TELLING):
            return False
        stream.seek(0)
        at_start = True
        # In pieces, because a line may have any length.
        while patterns and (piece := stream.readline(_PIECE)):
            if at_start and re.match(patterns[0], piece):
                patterns.pop(0)
            at_start = piece.endswith(b"\n")
    return not patterns


async def _require_branch(marker: Marker, name: str) -> tuple[str, str]:
    """Return the full reference and the commit of a branch; raises InvalidInput without one."""
    ref = make_branch_ref(name)
    if ref is None:
        commit = None
    else:
        commit = await marker.refs.read_branch(ref)
    if ref is None or commit is None:
        text = f"{name!r} is not a branch of {marker.source}."
        raise InvalidInput(text, hint="`git branch` lists them.")
    return ref, commit


async def _commit_work(marker: Marker, branch: str) -> str:
    """Commit all work and check out the tip of the branch, whatever operation is unfinished."""
    await commit_worktree(marker, f"Work before {branch} was taken in")
    tip = await read_tip(marker)
    if (
        marker.is_amid_operation()
        or marker.own_branch() != tip
        or not await marker.stands_on_branch()
    ):
        await restore_worktree(marker, f"before-{tip[:12]}", tip)
    return tip


async def _merge_into_worktree(
    marker: Marker, mover: Mover, tip: str, theirs: str, message: str
) -> list[str]:
    """Merge a commit into a worktree; return the paths in conflict."""
    objects = marker.objects
    standing = await _find_open_conflicts(marker, tip)
    if await objects.is_ancestor(theirs, tip) or await _find_marked(marker, standing):
        return standing
    tree, conflicts = await merge_trees(objects, tip, theirs)
    new = await objects.commit(tree, [tip, theirs], message)
    # The worktree moves along, so its files hold the conflict markers.
    await marker.refs.ensure_branch(marker.ref)
    await mover.move(marker, marker.ref, tip, new, standing=marker)
    return [format_path(name) for name in conflicts]


async def _find_open_conflicts(marker: Marker, tip: str) -> list[str]:
    """Return the open conflicts of the last merge.

    All of them while nothing was committed since; else those whose files still have markers.
    """
    objects = marker.objects
    options = ("rev-list", "--first-parent", "--merges", "--max-count=1", "--parents")
    output = await objects.run(*options, tip, f"^{marker.base_commit}", "--")
    last, *parents = output.line.split() or [""]
    if len(parents) != 2:
        return []
    try:
        tree, names = await merge_trees(objects, parents[0], parents[1])
    except GitError:  # a manual merge of commits that git does not merge by itself
        return []
    conflicts = [format_path(name) for name in names]
    # The merge is the last commit: conflicts without markers, as in binary files, count too.
    if last == tip and tree == await objects.tree_of(tip):
        return conflicts
    return await _find_marked(marker, conflicts)


async def _find_marked(marker: Marker, paths: Sequence[str]) -> list[str]:
    """Return those of the paths that are text files with conflict markers."""

    def search() -> list[str]:
        marked_paths: list[str] = []
        for path in paths:
            if any(_is_marked(marker.toplevel, name) for name in _spellings(path)):
                marked_paths.append(path)
        return marked_paths

    return await asyncio.to_thread(search)


# merge: one commit with both parents. squash: one commit of all changes. rebase: the commits one by
# one.
Style = Literal["merge", "squash", "rebase"]


@dataclass(frozen=True)
class Merge:
    """The result: the branch merged into, its commit, and the checkout that was updated."""

    base: str
    commit: str
    already: bool
    checkout_updated: Path | None
    is_signed: bool = False
    # The commit of the branch before the merge.
    parent: str | None = None


@dataclass(frozen=True)
class MergeCandidate:
    """The commit that a merge would give a branch; the present one if nothing is to merge."""

    ref: str
    old: str
    new: str
    # True if its files differ from those of the merged branch.
    is_other: bool = False
    conflicts: tuple[bytes, ...] = ()

    @property
    def base(self) -> str:
        return self.ref.removeprefix(BRANCHES)


@dataclass(frozen=True)
class Merger:
    """One merge of one task's branch into another branch, with its conditions."""

    marker: Marker
    message: str
    expected_tip: str | None
    style: Style = "merge"
    # True if the person who owns the repository makes the merge.
    by_person: bool = False
    signing: Signing | None = None
    # An earlier merge of the branch that was undone.
    undone: PastMerge | None = None

    async def target(self, into: str) -> str:
        """Return the full reference of the branch to merge into."""
        ref = make_branch_ref(into)
        if into == self.marker.base and (
            ref is None or await self.marker.refs.read_branch(ref) is None
        ):
            raise await self._make_base_error()
        ref, _ = await _require_branch(self.marker, into)
        if await self.marker.refs.is_symbolic(ref):
            raise InvalidInput(f"{into!r} is a symbolic reference to another branch.")
        return ref

    async def _make_base_error(self) -> InvalidInput:
        """Return the error for a base that is not a branch, with a branch to merge into."""
        marker = self.marker
        options = ("--format=%(refname:lstrip=2)", "--sort=refname")
        containing = ("--contains", marker.base_commit)
        output = await marker.refs.run("for-each-ref", *containing, *options, BRANCHES)
        names = [name for name in output.line.splitlines() if not find_owner(name)]
        usual = [name for name in ("main", "master") if name in names]
        into = shlex.quote((usual + names + ["BRANCH"])[0])
        text = f"{marker.task_id} was made from {marker.base}, which is not a branch."
        hint = f"Name the branch to merge into: kapelle merge {marker.task_id} --into {into}"
        return InvalidInput(text, hint=hint)

    async def candidate(self, ref: str) -> MergeCandidate:
        """Return the commit that the merge would lead to, or the paths in conflict."""
        marker = self.marker
        objects = self.marker.objects
        name = ref.removeprefix(BRANCHES)
        old = await marker.refs.read_branch(ref)
        tip = await find_work(marker)
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
            (tree, conflicts) = await merge_trees(objects, old, tip)
            if self.style == "merge" or tree != await objects.tree_of(old):
                if self.style == "merge":
                    parents = [old, tip]
                else:
                    parents = [old]
                new = await objects.commit(tree, parents, self.message, self.signing, **person)
        is_other = False
        if new != old and not conflicts:
            is_other = await objects.tree_of(new) != await objects.tree_of(tip)
        return MergeCandidate(ref, old, new, is_other, tuple(conflicts))

    async def _redo(self, undone: PastMerge, ref: str, old: str, tip: str) -> MergeCandidate:
        """Return the commit that merges a branch again whose merge was reverted."""
        marker = self.marker
        objects = self.marker.objects
        target = await objects.tree_of(undone.commit)
        conflicts = list[bytes]()
        if not await objects.is_ancestor(tip, undone.commit):
            target, conflicts = await merge_trees(objects, undone.commit, tip)
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
        """Return the commit that the merge would lead to; raises MergeConflict."""
        candidate = await self.candidate(ref)
        if candidate.conflicts:
            names = format_names(candidate.conflicts)
            text = f"{self.marker.branch} and {candidate.base} conflict in {names}. "
            text += f"{candidate.base} was not changed."
            raise MergeConflict(text, hint=self._make_conflict_hint(candidate.base))
        return candidate

    async def _rebase(
        self, old: str, tip: str, person: Mapping[str, str]
    ) -> tuple[str, list[bytes]]:
        """Return the last of the rebased commits, or the paths in which one conflicts."""
        objects = self.marker.objects
        new = old
        format_option = "--format=%H%x00%P%x00%an%x00%ae%x00%ad%x00%B%x00"
        options = ("--first-parent", "--reverse", "--no-commit-header", "--date=raw")
        output = await objects.run("rev-list", *options, format_option, tip, f"^{old}", "--")
        texts = iter(output.stdout.decode("utf-8", "backslashreplace").split("\0"))
        for commit, parents, name, email, date, message in zip(*[texts] * 6, strict=False):
            parent = parents.split(" ")[0]
            # git merges relative to the common ancestor: here it is the parent alone.
            trees = [await objects.tree_of(one) for one in (new, commit.strip())]
            sides = [await objects.commit(tree, [parent], "side") for tree in trees]
            tree, conflicts = await merge_trees(objects, *sides)
            if conflicts:
                return old, conflicts
            author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date}
            if new == parent and self.signing is None:
                new = commit.strip()
            elif tree != trees[0]:
                text = message.rstrip("\n")
                new = await objects.commit(tree, [new], text, self.signing, **{**person, **author})
        return new, []

    async def move(self, candidate: MergeCandidate, mover: Mover, standing: Marker | None) -> Merge:
        """Move the branch to the candidate; raises RefMoved if it has moved meanwhile.

        `standing` is the worktree of Kapelle in which the branch is checked out, if there is one.
        """
        marker = self.marker
        refs = self.marker.refs
        recovered_checkout = await mover.recover()
        if candidate.new == candidate.old:
            return Merge(
                candidate.base, candidate.old, already=True, checkout_updated=recovered_checkout
            )
        if await refs.read(candidate.ref) != candidate.old:
            raise RefMoved(f"{candidate.base} moved")
        moved_checkout = await mover.move(
            marker, candidate.ref, candidate.old, candidate.new, standing
        )
        now = await refs.read(candidate.ref)
        if now is None or not await marker.objects.is_ancestor(candidate.new, now):
            raise GitError(f"After the merge, {candidate.base} does not hold {marker.branch}.")
        return Merge(
            candidate.base,
            candidate.new,
            already=False,
            checkout_updated=moved_checkout,
            is_signed=self.signing is not None,
            parent=candidate.old,
        )

    def _make_conflict_hint(self, into: str) -> str:
        """Return the hint for a conflict."""
        owner = self.marker.task_id
        top = shlex.quote(str(self.marker.toplevel))
        source = shlex.quote(str(self.marker.source))
        by_hand = f"cd {top}; git pull --no-rebase {source} {shlex.quote(into)}, resolve, commit; "
        by_hand += f"then `kapelle merge --force {owner}`."
        if owner.startswith("task_") and into == self.marker.base:
            return f"`kapelle resume {owner} --merge` has its agent resolve it. By hand: {by_hand}"
        return f"By hand: {by_hand}"

    def _require_verified(self, branch: str) -> None:
        """Raise Conflict unless the branch holds the verified commit."""
        if self.expected_tip is not None and branch != self.expected_tip:
            owner = self.marker.task_id
            # A run that has ended cannot be resumed.
            if owner[:4] == "task":
                again = f"`kapelle resume {owner}` verifies them; "
            else:
                again = ""
            text = f"The branch {self.marker.branch} has unverified commits."
            hint = f"{again}`kapelle merge --force {owner}` merges them unverified."
            raise Conflict(text, hint=hint)


async def _verify_candidate(
    merger: Merger,
    mover: Mover,
    ref: str,
    verify: Callable[[MergeCandidate], Awaitable[None]],
) -> MergeCandidate:
    """Return the candidate of a merge; verify it if its files differ from the branch's."""
    candidate = await merger.require_candidate(ref)
    if candidate.is_other:
        # Before verify, which may take minutes that would be wasted if the move is refused.
        await mover.require_clean(merger.marker, ref, candidate.old, candidate.new)
        await verify(candidate)
    return candidate


class WorkspaceMerges(WorkspaceGuard):
    """Merges of owners' branches into others, and of others into them."""

    async def take_in(
        self, owner: str, branch: str, message: str, *, as_base: bool = False
    ) -> list[str]:
        """Merge a branch into the owner's branch and worktree; return the paths in conflict.

        Uncommitted changes are committed first. Conflicts are committed with their markers, so that
        they can be resolved in the files; while any marker is left, the same paths are returned and
        nothing more is merged. With `as_base`, the merged branch becomes the base of later diffs.
        """
        await self._refresh_branch(branch)
        async with self._lock_worktree(owner) as marker, self._lock_merging(marker.common_dir):
            mover = self._make_mover(marker)
            await _require_branch(marker, branch)
            await mover.recover()
            for _ in range(_TAKE_IN_TRIES):
                try:
                    tip = await _commit_work(marker, branch)
                    _, theirs = await _require_branch(marker, branch)
                    conflicts = await _merge_into_worktree(marker, mover, tip, theirs, message)
                    break
                except RefMoved:
                    continue
            else:
                text = f"{marker.branch} kept changing while {branch} was being taken in."
                raise GitError(text)
            if as_base:
                ends = (await read_tip(marker), theirs)
                # The common ancestor, not the branch's tip: the branch may have moved since the
                # merge.
                base = (await marker.objects.run("merge-base", *ends)).line
                self._markers.write(replace(marker, base_commit=base))
            return conflicts

    async def find_unresolved(self, owner: str) -> list[str]:
        """Return the files with conflicts of the last merged branch."""
        async with self._lock_worktree(owner) as marker:
            return await _find_open_conflicts(marker, await read_tip(marker))

    async def find_conflicted(self, owner: str, paths: Sequence[str]) -> list[str]:
        """Return those of the paths that are text files with conflict markers."""
        async with self._lock_worktree(owner) as marker:
            marker.require_present()
            return await _find_marked(marker, paths)

    async def merge(
        self,
        owner: str,
        into: str | None,
        message: str,
        *,
        expected_tip: str | None = None,
        style: Style = "merge",
        by_person: bool = False,
        sign: bool = False,
        undone: PastMerge | None = None,
        verify: Callable[[MergeCandidate], Awaitable[None]] | None = None,
    ) -> Merge:
        """Merge the owner's branch into a branch, by default its base.

        Raises Conflict unless the branch holds the expected tip. With `sign`, commits are signed as
        the person's git is configured. `verify` is called, without any lock, for files that differ
        from the branch's; if it raises, nothing is merged.
        """
        await self._refresh(owner)
        marker = self._markers.require(owner)
        if sign:
            signing = await read_signing(marker.git, marker.common_dir)
        else:
            signing = None
        merger = Merger(marker, message, expected_tip, style, by_person, signing, undone)
        ref = await merger.target(marker.base if into is None else into)
        await marker.refs.ensure_branch(ref)
        target = ref.removeprefix(BRANCHES)
        began = time.monotonic()
        for number in count():
            mover = self._make_mover(marker)
            candidate = None
            if verify is not None:
                candidate = await _verify_candidate(merger, mover, ref, verify)
            try:
                async with (
                    self._lock_branch_worktree(target) as standing,
                    self._lock_merging(marker.common_dir),
                ):
                    candidate = candidate or await merger.require_candidate(ref)
                    return await merger.move(candidate, mover, standing)
            except RefMoved:
                if number >= _TRIES and time.monotonic() - began > _PATIENCE_S:
                    break
                await asyncio.sleep(0.01 * min(number, _TRIES))
        raise Conflict(f"{target} kept moving.", hint="Merge again later.")

    async def habits(self, directory: Path) -> Habits | None:
        """Return the habits of the person's own commits around a directory; None outside of git."""
        checkout = find_checkout(directory)
        if checkout is None:
            return None
        return await read_habits(self._git, checkout.common_dir)

    async def preview_merge(
        self, owner: str, into: str | None, undone: PastMerge | None = None
    ) -> MergePreview:
        """Return the result that a merge of the owner's branch would have."""
        await self._refresh(owner)
        marker = self._markers.require(owner)
        merger = Merger(marker, "", None, undone=undone)
        ref = await merger.target(marker.base if into is None else into)
        mover = self._make_mover(marker)
        candidate = await merger.candidate(ref)
        problem = None
        dirty = await mover.list_dirty(marker, ref, candidate.old, candidate.new)
        try:
            if not dirty:
                await mover.require_clean(marker, ref, candidate.old, candidate.new)
        except Conflict as error:
            problem = error.message
        sides = f"{candidate.old}...{await read_tip(marker)}"
        output = await marker.objects.run("rev-list", "--left-right", "--count", sides, "--")
        behind, ahead = map(int, output.line.split())
        return MergePreview(
            id=marker.task_id,
            base=candidate.base,
            ahead=ahead,
            behind=behind,
            already=candidate.new == candidate.old and not candidate.conflicts,
            conflicts=[format_path(name) for name in candidate.conflicts],
            dirty=[format_path(name) for name in dirty],
            check_again=candidate.is_other,
            problem=problem,
        )
