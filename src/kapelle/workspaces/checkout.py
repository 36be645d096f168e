"""A checkout of the branch that is merged into: moved along when clean, else left alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import Conflict, GitError
from kapelle.workspaces.content import WorkTree, copy_index, files_place, install_index
from kapelle.workspaces.discovery import Checkout, checkout_at, linked_gitdir, read_pointer
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git, Place
from kapelle.workspaces.link import OPERATIONS
from kapelle.workspaces.names import BRANCHES
from kapelle.workspaces.refs import head_branch

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

    git: Git
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
        await self.git.run(self._files, "update-index", "-q", "--refresh", ok=(0, 1))
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
        output = await self.git.run(self._files, "ls-files", "-z", "-t")
        if any(record.startswith(b"S ") for record in output.fields):
            raise Conflict(
                f"{self.work_tree.directory} is a sparse checkout, which Kapelle does not update.",
                hint="Check out another branch there, then merge again",
            )

    async def _names(self, command: str, *arguments: str) -> list[bytes]:
        options = ("--name-only", "-z", "--ignore-submodules=all", "--no-ext-diff")
        output = await self.git.run(
            self._files, command, *options, *arguments, "--", timeout_s=CONTENT_TIMEOUT_S
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
        await self.git.run(self._files, *arguments, stdin=paths, timeout_s=CONTENT_TIMEOUT_S)
        present = (await self.git.run(self._files, "write-tree")).line
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
        return (await self.git.run(self._files, "diff-tree", *options, old, new, "--")).fields

    async def _read_tree(self, *arguments: str) -> None:
        await self.git.run(self._files, "read-tree", *arguments, timeout_s=CONTENT_TIMEOUT_S)


def shown(names: Sequence[bytes]) -> str:
    """A few file names for a message."""
    texts = [name.decode("utf-8", "backslashreplace") for name in names[:_SHOWN]]
    rest = len(names) - len(texts)
    return ", ".join(texts) + (f" and {rest} more" if rest > 0 else "")
