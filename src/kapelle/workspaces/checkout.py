"""Checkouts of a branch that is merged into: they are updated when clean, else left alone.

Each move is recorded in a journal first. After a crash it is completed if the branch had moved,
otherwise undone.
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
from kapelle.workspaces.clone import RepositoryState, examine_repository, write_branch
from kapelle.workspaces.commit import archive_commit
from kapelle.workspaces.files import unlink_inside
from kapelle.workspaces.git import GitLocation
from kapelle.workspaces.index import (
    copy_index,
    find_obstacles,
    install_index,
    make_files_location,
    require_filters,
)
from kapelle.workspaces.refs import BRANCHES, Refs, find_owner
from kapelle.workspaces.repository import Checkout, WorkTree, read_pointer
from kapelle.workspaces.shadow import Objects, Shadows
from kapelle.workspaces.worktree import OPERATIONS, Marker, write_durably

_SHOWN = 10
_OURS = b"kapelle\n"
_REGULAR = (b"100644", b"100755")
_REWRITING = ("rebase-merge/head-name", "rebase-apply/head-name")


async def find_checkouts(marker: Marker, branch: str) -> list[Checkout]:
    """Return every work tree of a workspace's repository that is on the branch."""
    git = marker.git
    common_dir = marker.common_dir
    candidates = await asyncio.to_thread(_find_candidates, common_dir, branch)
    # Neither the main checkout nor workspaces have an entry below .git/worktrees.
    candidates.add(marker.source)
    owner = find_owner(branch)
    if owner is not None:
        candidates.add(marker.toplevel.with_name(owner))
    if common_dir.name == ".git":
        candidates.add(common_dir.parent)
    checkouts = []
    for candidate in sorted(candidates):
        checkout = repository.read_checkout(candidate)
        if checkout is None or checkout.common_dir != common_dir:
            continue
        if any(read_pointer(checkout.gitdir / name) == BRANCHES + branch for name in _REWRITING):
            hint = f"{format_git_command(candidate)} rebase --continue (or --abort), then try again"
            raise Conflict(f"{branch} is being rebased in {candidate}.", hint=hint)
        if await Refs.at(git, checkout).head_branch() == branch:
            checkouts.append(checkout)
    return checkouts


def _find_candidates(common_dir: Path, branch: str) -> set[Path]:
    """Return worktrees that may be on the branch, without asking git.

    There may be thousands of worktrees on other branches.
    """
    here = {f"ref: {BRANCHES}{branch}", f"ref: {BRANCHES}.invalid"}
    directories = set()
    for admin in (common_dir / "worktrees").glob("*"):
        head = (read_pointer(admin / "HEAD") or "").strip()
        is_rebasing = any((admin / name).exists() for name in _REWRITING)
        if head.startswith("ref: ") and head not in here and not is_rebasing:
            continue
        pointer = read_pointer(admin / "gitdir")
        # Only a directory that points back is a worktree; other entries are leftovers or forged.
        if pointer and repository.read_gitdir(Path(pointer)) == admin.resolve():
            directories.add(Path(pointer).parent)
    return directories


@dataclass(frozen=True)
class BaseCheckout:
    """One checkout while it is moved; its index is locked like git locks it."""

    objects: Objects
    tree: WorkTree
    index: Path

    @property
    def lock_file(self) -> Path:
        return self.tree.gitdir / "index.lock"

    @property
    def _files(self) -> GitLocation:
        return make_files_location(self.objects, self.tree, self.index)

    async def lock(self) -> None:
        """Lock the index and make a private copy of it."""
        top = self.tree.toplevel
        ticket = self.tree.gitdir / "index.kapelle"
        ticket.unlink(missing_ok=True)
        ticket.write_bytes(_OURS)
        try:
            # Created as a link, so that the lock file never exists without its content, which names
            # the owner.
            os.link(ticket, self.lock_file)
        except FileExistsError:
            hint = f"Wait for it to end; if no git process is running, remove {self.lock_file}."
            raise Conflict(f"Another git process is running in {top}.", hint=hint) from None
        finally:
            ticket.unlink()
        await self.copy()

    async def copy(self) -> None:
        """Make a private copy of the index."""
        if not await asyncio.to_thread(copy_index, self.tree.index, self.index):
            top = self.tree.toplevel
            raise Conflict(
                f"{top} has no index.", hint=f"{format_git_command(top)} reset, then try again"
            )

    def is_locked(self) -> bool:
        """Tell whether Kapelle holds the lock."""
        try:
            return read_own(self.lock_file) == _OURS
        except OSError:
            return False

    def unlock(self) -> None:
        """Release the lock, if it is Kapelle's."""
        if self.is_locked():
            self.lock_file.unlink()

    async def require_clean(self, old: str, new: str, *, is_ours: bool) -> None:
        """Raise Conflict unless the checkout can go from old to new without any loss.

        In a worktree of Kapelle, ignored files are archived and removed where they are in the way.
        """
        top = self.tree.toplevel
        if any((self.tree.gitdir / name).exists() for name in OPERATIONS):
            hint = f"Finish or abort it there ({format_git_command(top)} status), then try again"
            raise Conflict(f"A merge, rebase or cherry-pick is under way in {top}.", hint=hint)
        await self._require_whole()
        changed_names = await self._list_changes(old, new)
        await require_filters(self._files, self.tree, changed_names, old, new)
        if dirty_names := await self.list_dirty(old, new):
            text = f"{top} has uncommitted changes in {format_names(dirty_names)}, "
            text += "which the merge changes too."
            raise Conflict(text, hint=f"{format_git_command(top)} stash, then try again")
        # git overwrites ignored files without a warning.
        if not is_ours and (lost_names := await self._list_overwritten(old, new)):
            text = f"{top} holds files that the merge would overwrite: {format_names(lost_names)}."
            raise Conflict(text, hint=f"Move or remove them in {top}, then try again")
        try:
            # With -n git checks everything and writes nothing.
            await self._files.run("read-tree", "-n", "-m", "-u", old, new)
        except GitError as error:
            text = f"{top} holds files that the merge would overwrite ({error.message})"
            hint = f"Move or commit them ({format_git_command(top)} status), then try again"
            raise Conflict(text, hint=hint) from error

    async def _list_overwritten(self, old: str, new: str) -> list[bytes]:
        """Return untracked files, ignored or not, that differ in the new commit."""
        top = os.fsencode(self.tree.toplevel)
        in_the_way = await find_obstacles(self._files, self.tree.toplevel, old, new)
        if not in_the_way:
            return []
        names_in_index = set((await self._files.run("ls-files", "-z")).fields)
        untracked_names = [path for path in in_the_way if path not in names_in_index]
        goals = await self._list_blobs(new, set(untracked_names))
        overwritten: list[bytes] = []
        for path in untracked_names:
            if not await self._has_content(top, path, goals.get(path)):
                overwritten.append(path)
        return overwritten

    async def _list_blobs(self, commit: str, paths: set[bytes]) -> dict[bytes, tuple[int, str]]:
        """Return the size and the object of these files in a commit."""
        blobs: dict[bytes, tuple[int, str]] = {}
        for record in (await self._files.run("ls-tree", "-r", "-l", "-z", commit)).fields:
            head, _, path = record.partition(b"\t")
            mode, _, name, size = head.split()
            if path in paths and mode in _REGULAR:
                blobs[path] = int(size), name.decode()
        return blobs

    async def _has_content(self, top: bytes, path: bytes, blob: tuple[int, str] | None) -> bool:
        """Tell whether a file has the content of a blob already."""
        if blob is None:
            return False
        size, name = blob
        file = os.path.join(top, path)
        status = os.lstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        arguments = ("hash-object", "--no-filters", "--", os.fsdecode(file))
        return (await self._files.run(*arguments)).line == name

    async def list_dirty(self, old: str, new: str) -> list[bytes]:
        """Return files with uncommitted changes that differ between the commits."""
        # Files that were only touched are not dirty.
        await self._files.run("update-index", "-q", "--refresh", ok=(0, 1))
        names = await self._list_names("diff-files") + await self._list_names(
            "diff-index", "--cached", old
        )
        return sorted(set(names).intersection(await self._list_changes(old, new)))

    async def _require_whole(self) -> None:
        """Raise Conflict for a sparse checkout that leaves files out."""
        if not (self.tree.gitdir / "info" / "sparse-checkout").exists():
            return
        output = await self._files.run("ls-files", "-z", "-t")
        if any(record.startswith(b"S ") for record in output.fields):
            text = f"{self.tree.toplevel} is a sparse checkout, which Kapelle does not update."
            raise Conflict(text, hint="Check out another branch there, then try again")

    async def _list_names(self, command: str, *arguments: str) -> list[bytes]:
        options = ("--name-only", "-z", "--ignore-submodules=all", "--no-ext-diff")
        return (await self._files.run(command, *options, *arguments, "--")).fields

    async def advance(self, old: str, new: str) -> None:
        """Update files and index from old to new."""
        await self._files.run("read-tree", "-m", "-u", old, new)
        await asyncio.to_thread(install_index, self.index, self.tree.index)

    async def finish(self, old: str, new: str) -> None:
        """Complete an interrupted advance.

        Raises Conflict if a file is neither the old nor the new one: it was changed since.
        """
        if not self.is_locked():
            return
        if not await asyncio.to_thread(copy_index, self.tree.index, self.index):
            return
        changed_names = await self._list_changes(old, new)
        arguments = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        await self._files.run(*arguments, stdin=changed_names)
        present = (await self._files.run("write-tree")).line
        neither_old = set(await self._list_changes(old, present))
        neither_new = set(await self._list_changes(new, present))
        foreign = neither_old & neither_new & set(changed_names)
        if foreign:
            top = self.tree.toplevel
            names = format_names(sorted(foreign))
            text = f"A merge into {top} was interrupted, and {names} changed since."
            hint = f"Remove {self.lock_file}, then look at {format_git_command(top)} status"
            raise Conflict(text, hint=hint)
        await self.advance(present, await self._with_changes(old, new))
        self.unlock()

    async def _with_changes(self, old: str, new: str) -> str:
        """Return the tree of the index with the changes between the commits applied."""
        fields = (await self._files.run("diff-tree", "-r", "-z", "--no-renames", old, new)).fields
        pairs = zip(fields[::2], fields[1::2], strict=True)
        lines: list[bytes] = []
        for head, name in pairs:
            # Head: old mode, new mode, old object, new object, status.
            _, mode, _, blob, _ = head.split(b" ")
            lines.append(mode + b" " + blob + b"\t" + name)
        scratch = self.index.with_name("goal")
        shutil.copyfile(self.index, scratch)
        place = make_files_location(self.objects, self.tree, scratch)
        await place.run("update-index", "-z", "--index-info", stdin=lines)
        return (await place.run("write-tree")).line

    async def _list_changes(self, old: str, new: str) -> list[bytes]:
        """Return the paths that differ between two trees or commits."""
        options = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=all")
        return (await self._files.run("diff-tree", *options, old, new, "--")).fields


def format_git_command(directory: Path) -> str:
    """Return the beginning of a git command for a directory, as a person types it."""
    return f"git -C {shlex.quote(str(directory))}"


def format_names(names: Sequence[bytes]) -> str:
    """Return a few file names for a message."""
    texts = [name.decode("utf-8", "backslashreplace") for name in names[:_SHOWN]]
    rest = len(names) - len(texts)
    return ", ".join(texts) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Move:
    """The move of a branch from one commit to another, with its checkouts."""

    ref: str
    old: str
    new: str
    toplevels: tuple[str, ...]
    task_id: str


def read_journal(path: Path) -> tuple[Path, Move] | None:
    """Return the repository and the move of a journal; None if it was cleared."""
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
    """Moves branches of one repository; the caller holds the lock for merging there.

    At most one move is recorded for each repository. The tree is any work tree of the repository.
    """

    def __init__(self, shadows: Shadows, tree: WorkTree, journals: Path) -> None:
        self._shadows = shadows
        self._common_dir = tree.common_dir
        self._objects = shadows.objects(tree)
        self._refs = Refs.of(shadows.git, tree.common_dir)
        name = hashlib.sha256(os.fsencode(tree.common_dir)).hexdigest()[:32]
        self._journal = journals / f"{name}.json"

    def read_pending(self) -> Move | None:
        """Return the interrupted move, if there is one."""
        entry = read_journal(self._journal)
        if entry is not None and entry[0] == self._common_dir:
            return entry[1]
        return None

    async def recover(self) -> Path | None:
        """Complete or undo the interrupted move; return the checkout that was updated."""
        move = self.read_pending()
        if move is None:
            return None
        self._clear_ref_locks(move)
        now = await self._refs.read(move.ref)
        # A branch that moves back contained the new commit before the move, too.
        has_moved = now is not None and now != move.old
        must_finish = has_moved and await self._objects.is_ancestor(move.new, str(now))
        moved_checkout = None
        for toplevel in map(Path, move.toplevels):
            place = repository.read_checkout(toplevel)
            if place is None or place.common_dir != self._common_dir:
                continue
            with self._shadows.scratch() as scratch:
                checkout = await self._open_checkout(place, scratch)
                if must_finish:
                    await checkout.finish(move.old, move.new)
                    _set_own_branch(place, move)
                    moved_checkout = moved_checkout or toplevel
                checkout.unlock()
        self._journal.unlink(missing_ok=True)
        return moved_checkout

    async def require_clean(self, owner: Marker, ref: str, old: str, new: str) -> None:
        """Raise Conflict unless all checkouts of the branch could be updated."""
        async for checkout in self._copy_checkouts(owner, ref):
            await checkout.require_clean(old, new, is_ours=_is_ours(owner, checkout))

    async def list_dirty(self, owner: Marker, ref: str, old: str, new: str) -> list[bytes]:
        """Return the files with uncommitted changes that prevent that."""
        names = list[bytes]()
        async for checkout in self._copy_checkouts(owner, ref):
            names += await checkout.list_dirty(old, new)
        return names

    async def _copy_checkouts(self, owner: Marker, ref: str) -> AsyncIterator[BaseCheckout]:
        """Yield the checkouts of a branch with copied indexes, without a lock."""
        branch = ref.removeprefix(BRANCHES)
        for item in await find_checkouts(owner, branch):
            with self._shadows.scratch() as scratch:
                checkout = await self._open_checkout(item, scratch)
                await checkout.copy()
                yield checkout

    async def move(
        self, owner: Marker, ref: str, old: str, new: str, standing: Marker | None
    ) -> Path | None:
        """Compare and swap the branch, and update its checkouts; return the first of them.

        `standing` is the worktree of Kapelle on that branch, if there is one; its ignored files are
        archived and removed where they are in the way. Raises Conflict, and changes nothing, if a
        checkout is dirty.
        """
        if standing is not None:
            await _make_way(standing, old, new)
        branch = ref.removeprefix(BRANCHES)
        places = await find_checkouts(owner, branch)
        toplevels = tuple(str(item.toplevel) for item in places)
        move = Move(ref, old, new, toplevels, owner.task_id)
        record = {"common_dir": str(self._common_dir), "move": asdict(move)}
        # From here on, a crash is repaired by recover.
        write_durably(self._journal, json.dumps(record))
        with self._shadows.scratch() as scratch:
            checkouts = [await self._open_checkout(item, scratch) for item in places]
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
        return places[0].toplevel if places else None

    async def _move_with(self, owner: Marker, checkouts: list[BaseCheckout], move: Move) -> None:
        """Lock and check every checkout, move the branch, then update the checkouts."""
        for checkout in checkouts:
            await checkout.lock()
            is_ours = _is_ours(owner, checkout)
            await checkout.require_clean(move.old, move.new, is_ours=is_ours)
        await self._refs.move(move.ref, move.new, move.old, f"kapelle: {move.task_id}")
        for checkout in checkouts:
            try:
                await checkout.advance(move.old, move.new)
                _set_own_branch(checkout.tree, move)
            except (GitError, Unavailable) as error:
                if checkout is checkouts[0]:
                    # No checkout was updated yet, so the branch can go back.
                    await self._refs.move(move.ref, move.old, move.new, "kapelle: undo")
                    if isinstance(error, Unavailable):
                        raise
                top = checkout.tree.toplevel
                hint = f"Look at {format_git_command(top)} status, then try again."
                text = f"{top} changed during the merge: {error.message}"
                raise Conflict(text, hint=hint) from error
        for checkout in checkouts:
            checkout.unlock()

    async def _open_checkout(self, place: Checkout, scratch: Path) -> BaseCheckout:
        own = Path(tempfile.mkdtemp(dir=scratch)) / "index"
        tree = await repository.read_work_tree(self._shadows.git, place)
        return BaseCheckout(self._objects, tree, own)

    def _clear_ref_locks(self, move: Move) -> None:
        """Remove the lock of Kapelle's killed git, which names the commit of the move."""
        lock = self._common_dir / f"{move.ref}.lock"
        head = self._common_dir / "HEAD.lock"
        if read_pointer(lock) != move.new:
            return
        # git locks HEAD, with an empty file, together with the branch that it points to.
        points_here = read_pointer(self._common_dir / "HEAD") == f"ref: {move.ref}"
        if points_here and read_pointer(head) == "":
            head.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)


def _set_own_branch(checkout: Checkout, move: Move) -> None:
    """Move the branch in the repository of a workspace, too."""
    owner = find_owner(move.ref)
    if owner is None or not checkout.is_workspace:
        return
    if examine_repository(checkout, owner) is RepositoryState.OURS:
        write_branch(checkout.gitdir, owner, move.ref, move.new)


def _is_ours(owner: Marker, checkout: BaseCheckout) -> bool:
    """Tell whether a checkout is a worktree that Kapelle made, and not a person's.

    The branch is no evidence: a person may have checked a task's branch out.
    """
    return checkout.tree.toplevel.parent == owner.toplevel.parent


async def _make_way(marker: Marker, old: str, new: str) -> None:
    """Archive and remove ignored files where the new commit has files of its own."""
    names = await find_obstacles(marker.objects, marker.toplevel, old, new)
    if not names:
        return
    intake = await marker.receive()
    with marker.staging(intake) as staging:
        await staging.stage(old)
        ignored_names = await staging.find_ignored(names)
        if not ignored_names:
            return
        tree = await staging.include(ignored_names)

        async def stage(_: bool) -> str:
            return tree

        message = f"kapelle: {marker.task_id} with ignored files that were in the way"
        commit = await marker.make_commit(intake, stage, [old], message)
        await archive_commit(marker, "in-the-way", commit, is_new=True)
    marker.require_present()
    for name in ignored_names:
        await asyncio.to_thread(unlink_inside, marker.toplevel, os.fsdecode(name))
