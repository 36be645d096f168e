"""Merging without a checkout: a branch into its base, and another branch into a worktree.

The first is refused where they conflict; the second leaves conflicts to be resolved in the files.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kapelle.domain.errors import Conflict, GitError, InvalidInput, MergeConflict, WorkspaceError
from kapelle.workspaces.checkout import Mover, shown
from kapelle.workspaces.commit import (
    commit_now,
    commit_worktree,
    is_ancestor,
    new_commit,
    tip_of,
    tree_of,
)
from kapelle.workspaces.files import open_inside, shown_path
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Place, RefMoved
from kapelle.workspaces.lifecycle import restore_worktree
from kapelle.workspaces.refs import BRANCHES, branch_ref, head_branch, is_symbolic, read_ref
from kapelle.workspaces.worktree import Marker, is_amid_operation

_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_PIECE = 65_536
_TELLING = 8_000  # git takes a file for binary by the beginning alone, too
_TAKE_IN_TRIES = 5
_TRIES = 20


@dataclass(frozen=True)
class Merged:
    """The tree of two commits merged; where they conflict its files hold conflict markers."""

    tree: str
    conflicts: list[bytes]


async def merged_tree(reading: Place, ours: str, theirs: str) -> Merged:
    options = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")
    output = await reading.run(*options, ours, theirs, ok=(0, 1), timeout_s=CONTENT_TIMEOUT_S)
    tree, *conflicts = output.fields
    return Merged(tree.decode(), conflicts if output.code == 1 else [])


def marked_files(top: Path, paths: Sequence[str]) -> list[str]:
    """Those of the paths that are text files below the top and hold conflict markers."""
    return [path for path in paths if any(_is_marked(top, name) for name in _spellings(path))]


def _spellings(path: str) -> set[str]:
    """The path as it is, and with the bytes put back that shown_path wrote as text."""
    try:
        raw = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), path)
        return {path, os.fsdecode(os.fsencode(raw))}
    except UnicodeEncodeError:
        return set()


def _is_marked(top: Path, path: str) -> bool:
    with ExitStack() as stack:
        descriptor = open_inside(stack, top, path)
        if descriptor is None:
            return False
        return _holds_markers(stack.enter_context(os.fdopen(os.dup(descriptor), "rb")))


def _holds_markers(stream: BinaryIO) -> bool:
    """Whether lines that begin, divide and end a conflict follow each other in a text file."""
    if b"\0" in stream.read(_TELLING):
        return False
    stream.seek(0)
    awaited = [b"<<<<<<< ", b"=======", b">>>>>>> "]
    at_start = True
    # In pieces: a file may hold a line of any length.
    while awaited and (piece := stream.readline(_PIECE)):
        if at_start and _is_marker(piece, awaited[0]):
            awaited.pop(0)
        at_start = piece.endswith(b"\n")
    return not awaited


def _is_marker(line: bytes, marker: bytes) -> bool:
    return line.startswith(marker) if marker.endswith(b" ") else line.rstrip(b"\r\n") == marker


async def take_in(marker: Marker, mover: Mover, branch: str, message: str) -> list[str]:
    """Merge the branch into the worktree; returns the paths in conflict.

    A conflict is committed with its markers. While any of them stand, they are returned again and
    nothing more is taken in on top of them.
    """
    await _require_branch(marker, branch)
    await mover.recover()
    for _ in range(_TAKE_IN_TRIES):
        try:
            tip = await _committed(marker, branch)
            theirs = await _require_branch(marker, branch)
            return await _merge_into_worktree(marker, mover, tip, theirs, message)
        except RefMoved:
            continue
    raise GitError(f"{marker.branch} kept changing while {branch} was being taken in.")


async def _require_branch(marker: Marker, branch: str) -> str:
    ref = branch_ref(branch)
    commit = None if ref is None else await read_ref(marker.refs, ref)
    if commit is None:
        raise InvalidInput(
            f"{branch!r} is not a branch of {marker.toplevel}.", hint="`git branch` lists them."
        )
    return commit


async def _committed(marker: Marker, branch: str) -> str:
    """Commit what is there and stand on the branch's tip, whatever the agent was amid."""
    await commit_worktree(marker, f"Work before {branch} was taken in")
    tip = await tip_of(marker)
    is_on_branch = await head_branch(marker.git, marker.checkout) == marker.branch
    if not is_on_branch or is_amid_operation(marker):
        await restore_worktree(marker, f"before-{tip[:12]}", tip)
    return tip


async def _merge_into_worktree(
    marker: Marker, mover: Mover, tip: str, theirs: str, message: str
) -> list[str]:
    reading = await marker.reading()
    standing = await _standing_conflicts(reading, marker, tip)
    if await is_ancestor(reading, theirs, tip):
        return standing
    if await _marked(marker, standing):
        return standing
    merged = await merged_tree(reading, tip, theirs)
    new = await new_commit(reading, merged.tree, [tip, theirs], message)
    await mover.move(marker.ref, tip, new)
    return [shown_path(name) for name in merged.conflicts]


async def _standing_conflicts(reading: Place, marker: Marker, tip: str) -> list[str]:
    """What is left of the last merge: all its conflicts while nobody did anything, else markers."""
    options = ("rev-list", "--first-parent", "--merges", "--max-count=1", "--parents")
    output = await reading.run(*options, tip, f"^{marker.base_commit}", "--")
    last, *parents = output.line.split() or [""]
    if len(parents) != 2:
        return []
    try:
        merged = await merged_tree(reading, parents[0], parents[1])
    except GitError:  # somebody's own merge of what git would not merge by itself
        return []
    conflicts = [shown_path(name) for name in merged.conflicts]
    if last == tip and merged.tree == await tree_of(reading, tip):
        return conflicts
    return await _marked(marker, conflicts)


async def _marked(marker: Marker, paths: list[str]) -> list[str]:
    return await asyncio.to_thread(marked_files, Path(marker.path), paths)


@dataclass(frozen=True)
class Merge:
    """The outcome: the branch merged into, the commit it holds, and the checkout moved along."""

    base: str
    commit: str
    already: bool
    checkout_updated: Path | None


class Merger:
    """One merge of one task's branch into one base."""

    def __init__(self, marker: Marker, mover: Mover) -> None:
        self._marker = marker
        self._mover = mover
        self._refs = marker.refs

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
        branch = await commit_now(self._marker)
        base = await read_ref(self._refs, ref)
        if branch is None or base is None or branch == self._marker.base_commit:
            return False
        return await is_ancestor(await self._reading(), branch, base)

    async def _base_ref(self, into: str | None) -> str:
        name = self._marker.base if into is None else into
        ref = branch_ref(name)
        if ref is None or await read_ref(self._refs, ref) is None:
            raise InvalidInput(
                f"{name!r} is not a branch of {self._marker.toplevel}.",
                hint="Name the branch to merge into; `git branch` lists them.",
            )
        if await is_symbolic(self._refs, ref):
            raise InvalidInput(f"{name!r} is only another name for a branch.")
        return ref

    async def _try(
        self, ref: str, message: str, expected: str | None, recovered: Path | None
    ) -> Merge:
        name = ref.removeprefix(BRANCHES)
        reading = await self._reading()
        old = await read_ref(self._refs, ref)
        branch = await commit_now(self._marker)
        if old is None or branch is None:
            missing = name if old is None else self._marker.branch
            raise WorkspaceError(f"The branch {missing} does not exist any more.")
        self._require_verified(branch, expected)
        if await is_ancestor(reading, branch, old):
            return Merge(name, old, already=True, checkout_updated=recovered)
        tree = await self._merged_tree(reading, name, old, branch)
        new = await new_commit(reading, tree, [old, branch], message)
        updated = await self._mover.move(ref, old, new)
        now = await read_ref(self._refs, ref)
        if now is None or not await is_ancestor(reading, branch, now):
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
        merged = await merged_tree(reading, old, branch)
        if not merged.conflicts:
            return merged.tree
        raise MergeConflict(
            f"{self._marker.branch} and {name} conflict in {shown(merged.conflicts)}. "
            f"{name} was not changed.",
            hint=f"In {self._marker.path}: git merge {name}, resolve, commit; "
            f"then `kapelle merge --force {self._marker.task_id}`.",
        )

    async def _reading(self) -> Place:
        return await self._marker.reading()
