"""The checkouts of a branch that is merged into: moved along when clean, else left alone.

What is about to be done to them is journalled, so that a crash amid it is made good: completed when
the branch had moved, else undone.
"""

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kapelle.domain.errors import Conflict, GitError, Unavailable, WorkspaceError
from kapelle.workspaces.commit import commit_tree, is_ancestor, keep
from kapelle.workspaces.files import unlink_inside
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git, Place
from kapelle.workspaces.refs import BRANCHES, head_branch, move_ref, read_ref
from kapelle.workspaces.repository import (
    Checkout,
    checkout_at,
    linked_gitdir,
    read_pointer,
    read_settings,
)
from kapelle.workspaces.shadow import Lender, Shadows
from kapelle.workspaces.staging import (
    Staging,
    WorkTree,
    copy_index,
    files_place,
    install_index,
    obstacles,
)
from kapelle.workspaces.worktree import OPERATIONS, Marker, write_durably

_SHOWN = 10
_OURS = b"kapelle\n"
_REWRITING = ("rebase-merge/head-name", "rebase-apply/head-name")


async def checkouts_of(git: Git, common_dir: Path, toplevel: Path, branch: str) -> list[Checkout]:
    """Every work tree of the repository that stands on the branch."""
    candidates = {toplevel}
    if common_dir.name == ".git":
        candidates.add(common_dir.parent)
    for admin in (common_dir / "worktrees").glob("*"):
        pointer = read_pointer(admin / "gitdir")
        # Only a directory that points back is a worktree; the rest are leftovers or lies.
        if pointer and linked_gitdir(Path(pointer)) == admin.resolve():
            candidates.add(Path(pointer).parent)
    found = []
    for candidate in sorted(candidates):
        checkout = checkout_at(candidate)
        if checkout is None or checkout.common_dir != common_dir:
            continue
        _refuse_rewriting(checkout, branch)
        if await head_branch(git, checkout) == branch:
            found.append(checkout)
    return found


def _refuse_rewriting(checkout: Checkout, branch: str) -> None:
    for name in _REWRITING:
        if read_pointer(checkout.gitdir / name) == BRANCHES + branch:
            raise Conflict(
                f"{branch} is being rebased in {checkout.toplevel}.",
                hint=f"git -C {checkout.toplevel} rebase --continue (or --abort), then merge again",
            )


@dataclass(frozen=True)
class BaseCheckout:
    """One checkout while it is being moved; its index is locked as git itself would lock it."""

    place: Place
    work_tree: WorkTree
    gitdir: Path
    index: Path

    @property
    def lock_file(self) -> Path:
        return self.gitdir / "index.lock"

    @property
    def _files(self) -> Place:
        return files_place(self.place, self.work_tree, self.index)

    def lock(self) -> None:
        """Take the lock and a private copy of the index."""
        top = self.work_tree.directory
        ticket = self.gitdir / "index.kapelle"
        ticket.unlink(missing_ok=True)
        ticket.write_bytes(_OURS)
        try:
            # A link, so that the lock never exists without saying whose it is.
            os.link(ticket, self.lock_file)
        except FileExistsError:
            raise Conflict(
                f"Another git is at work in {top}.",
                hint=f"Wait for it; if there is none, remove {self.lock_file}.",
            ) from None
        finally:
            ticket.unlink()
        if not copy_index(self.work_tree.index, self.index):
            raise Conflict(f"{top} has no index.", hint=f"git -C {top} reset, then merge again")

    def is_locked(self) -> bool:
        """Whether the lock is held, and by us."""
        try:
            with self.lock_file.open("rb") as stream:
                return stream.read(len(_OURS) + 1) == _OURS
        except OSError:
            return False

    def unlock(self) -> None:
        if self.is_locked():
            self.lock_file.unlink()

    async def require_clean(self, old: str, new: str) -> None:
        """Raise Conflict unless the checkout can go from old to new without losing anything."""
        top = self.work_tree.directory
        if any((self.gitdir / name).exists() for name in OPERATIONS):
            raise Conflict(
                f"A merge, rebase or cherry-pick is under way in {top}.",
                hint=f"Finish or abort it there (git -C {top} status), then merge again",
            )
        await self._require_whole()
        await self._files.run("update-index", "-q", "--refresh", ok=(0, 1))
        dirty = await self._names("diff-files") or await self._names("diff-index", "--cached", old)
        if dirty:
            raise Conflict(
                f"{top} has uncommitted changes in {shown(dirty)}.",
                hint=f"git -C {top} stash, then merge again",
            )
        try:
            await self._read_tree("-n", "-m", "-u", old, new)
        except GitError as error:
            raise Conflict(
                f"{top} holds files that the merge would overwrite ({error.message})",
                hint=f"Move or commit them (git -C {top} status), then merge again",
            ) from error

    async def _require_whole(self) -> None:
        if not (self.gitdir / "info" / "sparse-checkout").exists():
            return
        output = await self._files.run("ls-files", "-z", "-t")
        if any(record.startswith(b"S ") for record in output.fields):
            raise Conflict(
                f"{self.work_tree.directory} is a sparse checkout, which Kapelle does not update.",
                hint="Check out another branch there, then merge again",
            )

    async def _names(self, command: str, *arguments: str) -> list[bytes]:
        options = ("--name-only", "-z", "--ignore-submodules=all", "--no-ext-diff")
        output = await self._files.run(
            command, *options, *arguments, "--", timeout_s=CONTENT_TIMEOUT_S
        )
        return sorted(set(output.fields))

    async def advance(self, old: str, new: str) -> None:
        """Bring files and index from old to new."""
        await self._read_tree("-m", "-u", old, new)
        install_index(self.index, self.work_tree.index)

    async def finish(self, old: str, new: str) -> None:
        """Complete an advance that was cut short, unless a file is neither the old nor the new."""
        if not self.is_locked() or not copy_index(self.work_tree.index, self.index):
            return
        touched = await self._changed(old, new)
        paths = b"".join(name + b"\0" for name in touched)
        arguments = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        await self._files.run(*arguments, stdin=paths, timeout_s=CONTENT_TIMEOUT_S)
        present = (await self._files.run("write-tree")).line
        foreign = set(await self._changed(old, present)) & set(await self._changed(new, present))
        if foreign:
            top = self.work_tree.directory
            raise Conflict(
                f"A merge into {top} was cut short, and {shown(sorted(foreign))} changed since.",
                hint=f"Remove {self.lock_file}, then look at git -C {top} status",
            )
        await self.advance(present, new)
        self.unlock()

    async def _changed(self, old: str, new: str) -> list[bytes]:
        options = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=all")
        return (await self._files.run("diff-tree", *options, old, new, "--")).fields

    async def _read_tree(self, *arguments: str) -> None:
        await self._files.run("read-tree", *arguments, timeout_s=CONTENT_TIMEOUT_S)


def shown(names: Sequence[bytes]) -> str:
    """A few file names for a message."""
    texts = [name.decode("utf-8", "backslashreplace") for name in names[:_SHOWN]]
    rest = len(names) - len(texts)
    return ", ".join(texts) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Move:
    """A branch that goes from one commit to another, with the checkouts that go along."""

    ref: str
    old: str
    new: str
    toplevels: tuple[str, ...]
    task_id: str


class Journal:
    """At most one move for each repository."""

    def __init__(self, directory: Path, common_dir: Path) -> None:
        self._path = directory / f"{hashlib.sha256(os.fsencode(common_dir)).hexdigest()[:32]}.json"
        self._common_dir = str(common_dir)

    def write(self, move: Move) -> None:
        write_durably(
            self._path, json.dumps({"common_dir": self._common_dir, "move": asdict(move)})
        )

    def read(self) -> Move | None:
        try:
            record = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise WorkspaceError(f"{self._path} is damaged: {error}.") from error
        if record["common_dir"] != self._common_dir:
            return None
        move = record["move"]
        toplevels = tuple(move["toplevels"])
        task_id = move.get("task_id", "")
        return Move(move["ref"], move["old"], move["new"], toplevels, task_id)

    @staticmethod
    def repository_of(path: Path) -> Path | None:
        """The repository that a journal is about, or None when it is just being cleared."""
        try:
            return Path(json.loads(path.read_text("utf-8"))["common_dir"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(f"{path} is damaged: {error}.") from error

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


class Recovery:
    """For one repository; whoever uses it holds the lock for merging there."""

    def __init__(self, shadows: Shadows, lender: Lender, journal: Journal) -> None:
        self._shadows = shadows
        self._lender = lender
        self._journal = journal
        self._refs = shadows.git.at(lender.common_dir)

    async def recover(self) -> Path | None:
        """Finish or forget what the journal says; returns the checkout it concerned."""
        move = self._journal.read()
        if move is None:
            return None
        clear_ref_locks(self._lender.common_dir, move)
        reading = await self._shadows.reading(self._lender)
        updated = None
        done = await self._is_done(move)
        for toplevel in map(Path, move.toplevels):
            found = checkout_at(toplevel)
            if found is None or found.common_dir != self._lender.common_dir:
                continue
            with self._shadows.scratch() as scratch:
                checkout = await self.base_checkout(reading, found, scratch)
                if done:
                    await checkout.finish(move.old, move.new)
                    updated = updated or toplevel
                checkout.unlock()
        self._journal.clear()
        return updated

    async def _is_done(self, move: Move) -> bool:
        """Whether the branch holds the merge."""
        now = await read_ref(self._refs, move.ref)
        reading = await self._shadows.reading(self._lender)
        return now is not None and await is_ancestor(reading, move.new, now)

    async def base_checkout(self, reading: Place, found: Checkout, scratch: Path) -> BaseCheckout:
        configured = await read_settings(reading.git, found)
        index = found.gitdir / "index"
        work_tree = WorkTree(
            found.toplevel, index, self._lender, configured.settings, configured.ignore
        )
        own = Path(tempfile.mkdtemp(dir=scratch)) / "index"
        return BaseCheckout(reading, work_tree, found.gitdir, own)


def clear_ref_locks(common_dir: Path, move: Move) -> None:
    """Remove the lock of our own git that was killed: nobody else knows the commit in it."""
    lock, head = common_dir / f"{move.ref}.lock", common_dir / "HEAD.lock"
    if read_pointer(lock) != move.new:
        return
    # git locks HEAD, without content, together with the branch that it points to.
    if read_pointer(common_dir / "HEAD") == f"ref: {move.ref}" and read_pointer(head) == "":
        head.unlink(missing_ok=True)
    lock.unlink(missing_ok=True)


class Mover:
    """For one repository, on behalf of one owner; whoever uses it holds the lock for merging.

    The worktree of ours that stands on the branch, if there is one, is told as well.
    """

    def __init__(self, owner: Marker, journals: Path, standing: Marker | None = None) -> None:
        self._owner = owner
        self._standing = standing
        self._common_dir = Path(owner.common_dir)
        self._journal = Journal(journals, self._common_dir)
        self._recovery = Recovery(owner.shadows, owner.lender, self._journal)

    async def recover(self) -> Path | None:
        """Make good what was cut short in this repository; returns the checkout it concerned."""
        return await self._recovery.recover()

    async def move(self, ref: str, old: str, new: str) -> Path | None:
        """Compare and swap the branch and take its clean checkouts along; returns the first."""
        toplevel, name = Path(self._owner.toplevel), ref.removeprefix(BRANCHES)
        reading = await self._owner.reading()
        if self._standing is not None:
            await _make_way(self._standing, old, new)
        found = await checkouts_of(self._owner.git, self._common_dir, toplevel, name)
        toplevels = tuple(str(item.toplevel) for item in found)
        self._journal.write(Move(ref, old, new, toplevels, self._owner.task_id))
        with self._owner.shadows.scratch() as scratch:
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
        await move_ref(self._owner.refs, ref, new, old, f"kapelle: {self._owner.task_id}")
        await self._advance(checkouts, ref, old, new)
        for checkout in checkouts:
            checkout.unlock()

    async def _advance(self, checkouts: list[BaseCheckout], ref: str, old: str, new: str) -> None:
        for number, checkout in enumerate(checkouts):
            try:
                await checkout.advance(old, new)
            except (GitError, Unavailable) as error:
                if number == 0:
                    await move_ref(self._owner.refs, ref, old, new, "kapelle: undo")
                    if isinstance(error, Unavailable):
                        raise
                top = checkout.work_tree.directory
                raise Conflict(
                    f"{top} changed during the merge: {error.message}",
                    hint=f"Look at git -C {top} status, then merge again.",
                ) from error


async def _make_way(marker: Marker, old: str, new: str) -> None:
    """Archive and take away ignored files where the new commit has files of its own."""
    reading = await marker.reading()
    found = await obstacles(reading, Path(marker.path), old, new)
    if not found:
        return
    with marker.shadows.scratch() as scratch:
        staging = Staging(reading, marker.work_tree, scratch)
        await staging.stage(old)
        ignored = await staging.ignored(found)
        if not ignored:
            return
        await _archive_with(reading, marker, staging, ignored, old)
    marker.require_present()
    for name in ignored:
        await asyncio.to_thread(unlink_inside, Path(marker.path), os.fsdecode(name))


async def _archive_with(
    reading: Place, marker: Marker, staging: Staging, ignored: list[bytes], old: str
) -> None:
    tree = await staging.include(ignored)
    message = f"kapelle: {marker.task_id} with ignored files that were in the way"
    commit = await commit_tree(reading, tree, [old], message)
    await keep(reading, marker, "in-the-way", commit, is_new=True)
