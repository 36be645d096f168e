"""The checkouts of a branch that is merged into: moved along when clean, else left alone.

What is about to be done to them is journalled, so that a crash amid it is made good: completed when
the branch had moved, else undone.
"""

import asyncio
import hashlib
import json
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kapelle.domain.errors import Conflict, GitError, Unavailable, WorkspaceError
from kapelle.home import NoRegularFile, read_own
from kapelle.workspaces import repository
from kapelle.workspaces.commit import keep
from kapelle.workspaces.files import unlink_inside
from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.index import (
    copy_index,
    files_place,
    install_index,
    obstacles,
    require_filters,
)
from kapelle.workspaces.refs import BRANCHES, Refs
from kapelle.workspaces.repository import Checkout, WorkTree, read_pointer
from kapelle.workspaces.shadow import Objects, Shadows
from kapelle.workspaces.worktree import OPERATIONS, Marker, write_durably

_SHOWN = 10
_OURS = b"kapelle\n"
_REGULAR = (b"100644", b"100755")
_REWRITING = ("rebase-merge/head-name", "rebase-apply/head-name")


async def checkouts_of(git: Git, common_dir: Path, toplevel: Path, branch: str) -> list[Checkout]:
    """Every work tree of the repository that stands on the branch."""
    candidates = await asyncio.to_thread(_may_stand_on, common_dir, branch)
    candidates.add(toplevel)
    if common_dir.name == ".git":
        candidates.add(common_dir.parent)
    found = []
    for candidate in sorted(candidates):
        checkout = repository.checkout_at(candidate)
        if checkout is None or checkout.common_dir != common_dir:
            continue
        if any(read_pointer(checkout.gitdir / name) == BRANCHES + branch for name in _REWRITING):
            hint = f"{git_in(candidate)} rebase --continue (or --abort), then try again"
            raise Conflict(f"{branch} is being rebased in {candidate}.", hint=hint)
        if await Refs.at(git, checkout).head_branch() == branch:
            found.append(checkout)
    return found


def _may_stand_on(common_dir: Path, branch: str) -> set[Path]:
    """The worktrees on no other branch, or amid a rebase; there may be thousands on others."""
    here = {f"ref: {BRANCHES}{branch}", f"ref: {BRANCHES}.invalid"}
    found = set()
    for admin in (common_dir / "worktrees").glob("*"):
        head = (read_pointer(admin / "HEAD") or "").strip()
        rebased = any((admin / name).exists() for name in _REWRITING)
        if head.startswith("ref: ") and head not in here and not rebased:
            continue
        pointer = read_pointer(admin / "gitdir")
        # Only a directory that points back is a worktree; the rest are leftovers or lies.
        if pointer and repository.linked_gitdir(Path(pointer)) == admin.resolve():
            found.add(Path(pointer).parent)
    return found


@dataclass(frozen=True)
class BaseCheckout:
    """One checkout while it is being moved; its index is locked as git itself would lock it."""

    objects: Objects
    tree: WorkTree
    index: Path

    @property
    def lock_file(self) -> Path:
        return self.tree.gitdir / "index.lock"

    @property
    def _files(self) -> GitLocation:
        return files_place(self.objects, self.tree, self.index)

    async def lock(self) -> None:
        """Take the lock and a private copy of the index."""
        top = self.tree.toplevel
        ticket = self.tree.gitdir / "index.kapelle"
        ticket.unlink(missing_ok=True)
        ticket.write_bytes(_OURS)
        try:
            # A link, so that the lock never exists without saying whose it is.
            os.link(ticket, self.lock_file)
        except FileExistsError:
            hint = f"Wait for it; if there is none, remove {self.lock_file}."
            raise Conflict(f"Another git is at work in {top}.", hint=hint) from None
        finally:
            ticket.unlink()
        await self.copy()

    async def copy(self) -> None:
        """Take a private copy of the index."""
        if not await asyncio.to_thread(copy_index, self.tree.index, self.index):
            top = self.tree.toplevel
            raise Conflict(f"{top} has no index.", hint=f"{git_in(top)} reset, then try again")

    def is_locked(self) -> bool:
        """Whether the lock is held, and by us."""
        try:
            return read_own(self.lock_file) == _OURS
        except OSError:
            return False

    def unlock(self) -> None:
        if self.is_locked():
            self.lock_file.unlink()

    async def require_clean(self, old: str, new: str, *, is_ours: bool) -> None:
        """Raise Conflict unless the checkout can go from old to new without losing anything.

        In a worktree of ours, ignored files are archived and make way.
        """
        top = self.tree.toplevel
        if any((self.tree.gitdir / name).exists() for name in OPERATIONS):
            hint = f"Finish or abort it there ({git_in(top)} status), then try again"
            raise Conflict(f"A merge, rebase or cherry-pick is under way in {top}.", hint=hint)
        await self._require_whole()
        changed = await self._changed(old, new)
        await require_filters(self._files, self.tree, changed, old, new)
        if dirty := await self.dirty(old, new):
            text = f"{top} has uncommitted changes in {shown(dirty)}, which the merge changes too."
            raise Conflict(text, hint=f"{git_in(top)} stash, then try again")
        # git would overwrite ignored files without a word.
        if not is_ours and (lost := await self._overwritten(old, new)):
            text = f"{top} holds files that the merge would overwrite: {shown(lost)}."
            raise Conflict(text, hint=f"Move or remove them in {top}, then try again")
        try:
            await self._files.run("read-tree", "-n", "-m", "-u", old, new)
        except GitError as error:
            text = f"{top} holds files that the merge would overwrite ({error.message})"
            hint = f"Move or commit them ({git_in(top)} status), then try again"
            raise Conflict(text, hint=hint) from error

    async def _overwritten(self, old: str, new: str) -> list[bytes]:
        """Return the untracked files, ignored or not, that the new commit has otherwise."""
        top = os.fsencode(self.tree.toplevel)
        in_the_way = await obstacles(self._files, self.tree.toplevel, old, new)
        if not in_the_way:
            return []
        tracked = set((await self._files.run("ls-files", "-z")).fields)
        untracked = [path for path in in_the_way if path not in tracked]
        goals = await self._blobs(new, set(untracked))
        return [path for path in untracked if not await self._holds(top, path, goals.get(path))]

    async def _blobs(self, commit: str, paths: set[bytes]) -> dict[bytes, tuple[int, str]]:
        """Return the size and the object of these files in a commit."""
        blobs: dict[bytes, tuple[int, str]] = {}
        for record in (await self._files.run("ls-tree", "-r", "-l", "-z", commit)).fields:
            head, _, path = record.partition(b"\t")
            mode, _, name, size = head.split()
            if path in paths and mode in _REGULAR:
                blobs[path] = int(size), name.decode()
        return blobs

    async def _holds(self, top: bytes, path: bytes, blob: tuple[int, str] | None) -> bool:
        """Return whether a file has the content of a blob already."""
        if blob is None:
            return False
        size, name = blob
        file = os.path.join(top, path)
        status = os.lstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        arguments = ("hash-object", "--no-filters", "--", os.fsdecode(file))
        return (await self._files.run(*arguments)).line == name

    async def dirty(self, old: str, new: str) -> list[bytes]:
        """The files with uncommitted changes that differ between the commits."""
        await self._files.run("update-index", "-q", "--refresh", ok=(0, 1))
        found = await self._names("diff-files") + await self._names("diff-index", "--cached", old)
        return sorted(set(found).intersection(await self._changed(old, new)))

    async def _require_whole(self) -> None:
        if not (self.tree.gitdir / "info" / "sparse-checkout").exists():
            return
        output = await self._files.run("ls-files", "-z", "-t")
        if any(record.startswith(b"S ") for record in output.fields):
            text = f"{self.tree.toplevel} is a sparse checkout, which Kapelle does not update."
            raise Conflict(text, hint="Check out another branch there, then try again")

    async def _names(self, command: str, *arguments: str) -> list[bytes]:
        options = ("--name-only", "-z", "--ignore-submodules=all", "--no-ext-diff")
        return (await self._files.run(command, *options, *arguments, "--")).fields

    async def advance(self, old: str, new: str) -> None:
        """Bring files and index from old to new."""
        await self._files.run("read-tree", "-m", "-u", old, new)
        await asyncio.to_thread(install_index, self.index, self.tree.index)

    async def finish(self, old: str, new: str) -> None:
        """Complete an advance that was cut short, unless a file is neither the old nor the new."""
        if not self.is_locked():
            return
        if not await asyncio.to_thread(copy_index, self.tree.index, self.index):
            return
        changed = await self._changed(old, new)
        arguments = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        await self._files.run(*arguments, stdin=changed)
        present = (await self._files.run("write-tree")).line
        others = [set(await self._changed(tree, present)) for tree in (old, new)]
        if foreign := set.intersection(*others, set(changed)):
            top = self.tree.toplevel
            text = f"A merge into {top} was cut short, and {shown(sorted(foreign))} changed since."
            hint = f"Remove {self.lock_file}, then look at {git_in(top)} status"
            raise Conflict(text, hint=hint)
        await self.advance(present, await self._with_changes(old, new))
        self.unlock()

    async def _with_changes(self, old: str, new: str) -> str:
        """The tree of the index with what differs between the commits taken from the new one."""
        fields = (await self._files.run("diff-tree", "-r", "-z", "--no-renames", old, new)).fields
        pairs = zip(fields[::2], fields[1::2], strict=True)
        lines = [b" ".join(head.split(b" ")[1:4:2]) + b"\t" + name for head, name in pairs]
        scratch = self.index.with_name("goal")
        shutil.copyfile(self.index, scratch)
        place = files_place(self.objects, self.tree, scratch)
        await place.run("update-index", "-z", "--index-info", stdin=lines)
        return (await place.run("write-tree")).line

    async def _changed(self, old: str, new: str) -> list[bytes]:
        options = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=all")
        return (await self._files.run("diff-tree", *options, old, new, "--")).fields


def git_in(directory: Path) -> str:
    """How a person calls git there, as it is typed."""
    return f"git -C {shlex.quote(str(directory))}"


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


def read_journal(path: Path) -> tuple[Path, Move] | None:
    """The repository that a journal is about and the move in it; None if it was cleared."""
    try:
        record = json.loads(read_own(path))
        move = record["move"]
        move["toplevels"] = tuple(move["toplevels"])
        return Path(record["common_dir"]), Move(**move)
    except FileNotFoundError:
        return None
    except (NoRegularFile, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WorkspaceError(f"{path} is damaged: {error}.") from error


class Mover:
    """Moves branches of one repository; whoever uses it holds the lock for merging there.

    At most one move is journalled for each repository. The tree is any one of the repository's.
    """

    def __init__(self, shadows: Shadows, tree: WorkTree, journals: Path) -> None:
        self._shadows = shadows
        self._common_dir = tree.common_dir
        self._objects = shadows.objects(tree)
        self._refs = Refs.of(shadows.git, tree.common_dir)
        name = hashlib.sha256(os.fsencode(tree.common_dir)).hexdigest()[:32]
        self._journal = journals / f"{name}.json"

    def pending(self) -> Move | None:
        """The move that was cut short, if there is one."""
        found = read_journal(self._journal)
        if found is not None and found[0] == self._common_dir:
            return found[1]
        return None

    async def recover(self) -> Path | None:
        """Finish or forget what was cut short; returns the checkout it concerned."""
        move = self.pending()
        if move is None:
            return None
        self._clear_ref_locks(move)
        now = await self._refs.read(move.ref)
        # A branch that goes back held the new commit before, too.
        has_moved = now is not None and now != move.old
        done = has_moved and await self._objects.is_ancestor(move.new, str(now))
        updated = None
        for toplevel in map(Path, move.toplevels):
            found = repository.checkout_at(toplevel)
            if found is None or found.common_dir != self._common_dir:
                continue
            with self._shadows.scratch() as scratch:
                checkout = await self._base_checkout(found, scratch)
                if done:
                    await checkout.finish(move.old, move.new)
                    updated = updated or toplevel
                checkout.unlock()
        self._journal.unlink(missing_ok=True)
        return updated

    async def require_clean(self, owner: Marker, ref: str, old: str, new: str) -> None:
        """Raise Conflict unless the checkouts of a branch could be taken along."""
        async for checkout in self._copies(owner, ref):
            await checkout.require_clean(old, new, is_ours=_is_ours(owner, checkout))

    async def dirty(self, owner: Marker, ref: str, old: str, new: str) -> list[bytes]:
        """The files with uncommitted changes that would keep them from that."""
        found = list[bytes]()
        async for checkout in self._copies(owner, ref):
            found += await checkout.dirty(old, new)
        return found

    async def _copies(self, owner: Marker, ref: str) -> AsyncIterator[BaseCheckout]:
        """The checkouts of a branch, to look at without a lock."""
        branch = ref.removeprefix(BRANCHES)
        for item in await checkouts_of(owner.git, self._common_dir, owner.source, branch):
            with self._shadows.scratch() as scratch:
                checkout = await self._base_checkout(item, scratch)
                await checkout.copy()
                yield checkout

    async def move(
        self, owner: Marker, ref: str, old: str, new: str, standing: Marker | None
    ) -> Path | None:
        """Compare and swap the branch and take its clean checkouts along; returns the first.

        standing is the worktree of ours on that branch, if there is one; what is ignored there
        makes way.
        """
        if standing is not None:
            await _make_way(standing, old, new)
        branch = ref.removeprefix(BRANCHES)
        found = await checkouts_of(owner.git, self._common_dir, owner.source, branch)
        toplevels = tuple(str(item.toplevel) for item in found)
        move = Move(ref, old, new, toplevels, owner.task_id)
        record = {"common_dir": str(self._common_dir), "move": asdict(move)}
        write_durably(self._journal, json.dumps(record))
        with self._shadows.scratch() as scratch:
            checkouts = [await self._base_checkout(item, scratch) for item in found]
            try:
                await self._move_with(owner, checkouts, move)
            except asyncio.CancelledError:
                await self.recover()
                raise
            except Exception:
                for checkout in checkouts:
                    checkout.unlock()
                self._journal.unlink(missing_ok=True)
                raise
        self._journal.unlink(missing_ok=True)
        return found[0].toplevel if found else None

    async def _move_with(self, owner: Marker, checkouts: list[BaseCheckout], move: Move) -> None:
        for checkout in checkouts:
            await checkout.lock()
            is_ours = _is_ours(owner, checkout)
            await checkout.require_clean(move.old, move.new, is_ours=is_ours)
        await self._refs.move(move.ref, move.new, move.old, f"kapelle: {move.task_id}")
        for checkout in checkouts:
            try:
                await checkout.advance(move.old, move.new)
            except (GitError, Unavailable) as error:
                if checkout is checkouts[0]:
                    await self._refs.move(move.ref, move.old, move.new, "kapelle: undo")
                    if isinstance(error, Unavailable):
                        raise
                top = checkout.tree.toplevel
                hint = f"Look at {git_in(top)} status, then try again."
                text = f"{top} changed during the merge: {error.message}"
                raise Conflict(text, hint=hint) from error
        for checkout in checkouts:
            checkout.unlock()

    async def _base_checkout(self, found: Checkout, scratch: Path) -> BaseCheckout:
        own = Path(tempfile.mkdtemp(dir=scratch)) / "index"
        tree = await repository.read_work_tree(self._shadows.git, found)
        return BaseCheckout(self._objects, tree, own)

    def _clear_ref_locks(self, move: Move) -> None:
        """Remove the lock of our own git that was killed: nobody else knows the commit in it."""
        lock = self._common_dir / f"{move.ref}.lock"
        head = self._common_dir / "HEAD.lock"
        if read_pointer(lock) != move.new:
            return
        # git locks HEAD, without content, together with the branch that it points to.
        points_here = read_pointer(self._common_dir / "HEAD") == f"ref: {move.ref}"
        if points_here and read_pointer(head) == "":
            head.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)


def _is_ours(owner: Marker, checkout: BaseCheckout) -> bool:
    """Tell whether a checkout is a worktree that Kapelle made, and not one of a person.

    A branch of a task does not tell: a person may have checked it out.
    """
    return checkout.tree.toplevel.parent == owner.toplevel.parent


async def _make_way(marker: Marker, old: str, new: str) -> None:
    """Archive and take away ignored files where the new commit has files of its own."""
    found = await obstacles(marker.objects, marker.toplevel, old, new)
    if not found:
        return
    with marker.staging() as staging:
        await staging.stage(old)
        ignored = await staging.ignored(found)
        if not ignored:
            return
        tree = await staging.include(ignored)
        message = f"kapelle: {marker.task_id} with ignored files that were in the way"
        commit = await marker.objects.commit_unless_held(tree, [old], message)
        await keep(marker, "in-the-way", commit, is_new=True)
    marker.require_present()
    for name in ignored:
        await asyncio.to_thread(unlink_inside, marker.toplevel, os.fsdecode(name))
