"""References of the user's repository, by full name, and validation of their names."""

import os
import re
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.repository import Checkout, read_pointer, read_small_file

BRANCHES = "refs/heads/"
ARCHIVE = "refs/kapelle/archive/"
_OURS = "kapelle/"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_LOOSE = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\n?")
_MAX_BYTES = 1 << 20
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")


def require_plain_name(name: str) -> str:
    """Return an owner's id or archive name unchanged; raises InvalidInput unless it is plain."""
    if not _PLAIN.fullmatch(name):
        raise InvalidInput(f"{name!r} cannot be used as a name in git.")
    return name


def make_branch_name(owner: str) -> str:
    """Return the branch of an owner."""
    return f"{_OURS}{require_plain_name(owner)}"


def find_owner(branch: str) -> str | None:
    """Return the owner of a branch by its name; None for a branch that is not Kapelle's."""
    name = branch.removeprefix(BRANCHES)
    owner = name.removeprefix(_OURS)
    if name.startswith(_OURS) and _PLAIN.fullmatch(owner):
        return owner
    return None


def make_branch_ref(name: str) -> str | None:
    """Return the full reference of a branch; None if no branch can have this name."""
    name = name.removeprefix(BRANCHES)
    if not is_text(name) or not name or name == "@" or _FORBIDDEN.search(name):
        return None
    if name.startswith(("/", ".")) or name.endswith(("/", ".")):
        return None
    return BRANCHES + name


def is_text(name: str) -> bool:
    """Tell whether a name can be passed to a program."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


class Refs(GitLocation):
    """The references of one repository, and the HEAD of one of its git directories."""

    @classmethod
    def of(cls, git: Git, common_dir: Path) -> "Refs":
        """Return the references that all work trees of a repository share."""
        return cls(git, common_dir, {"GIT_DIR": str(common_dir)})

    @classmethod
    def at(cls, git: Git, checkout: Checkout) -> "Refs":
        """Return the references of a repository with the HEAD of one work tree."""
        return cls(git, checkout.common_dir, checkout.variables)

    async def read(self, ref: str, *, believe_files: bool = True) -> str | None:
        """Return the commit that a reference holds, by its exact full name; None if missing.

        The repository's files are believed only if they name a commit that git has shown to exist.
        In every other case git is asked.
        """
        if believe_files:
            commit = _read_stored(self.cwd, ref)
        else:
            commit = None
        if commit is not None and self._is_known(commit):
            return commit
        output = await self.run("show-ref", "--verify", "--hash", "--", ref, ok=(0, 1, 128))
        return output.line or None

    async def commit_of(self, revision: str) -> str | None:
        """Return the full id of the commit that a revision means; None if it means none."""
        if self._is_known(revision):
            return revision
        options = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        output = await self.run(*options, f"{revision}^{{commit}}", ok=(0, 1, 128))
        if output.code == 0:
            return output.line or None
        return None

    async def move(self, ref: str, new: str, old: str | None, reason: str) -> None:
        """Compare and swap; `old` None means that the reference must not exist. Raises RefMoved."""
        old_id = old or "0" * len(new)
        # Without no-deref, a branch that was made symbolic would redirect the write to another
        # branch.
        text = f"option no-deref\0update {ref}\0{new}\0{old_id}\0"
        await self.run("update-ref", "-m", reason, "--stdin", "-z", stdin=text.encode())

    async def delete(self, *references: tuple[str, str]) -> None:
        """Compare and delete references with their commits, all or none. Raises RefMoved."""
        text = "".join(f"option no-deref\0delete {ref}\0{old}\0" for ref, old in references)
        await self.run("update-ref", "--stdin", "-z", stdin=text.encode())

    async def is_symbolic(self, ref: str) -> bool:
        output = await self.run("symbolic-ref", "--quiet", "--", ref, ok=(0, 1, 128))
        return output.code == 0

    async def head_branch(self) -> str | None:
        """Return the branch that HEAD is on; None if it is on a commit."""
        target = self._head_target() or ""
        if target == "refs/heads/.invalid":  # the content of HEAD in a reftable repository
            target = (await self.run("symbolic-ref", "--quiet", "--", "HEAD", ok=(0, 1))).line
        if target.startswith(BRANCHES):
            return target.removeprefix(BRANCHES)
        return None

    async def head_commit(self) -> str | None:
        """Return the commit of HEAD; None if there is none."""
        target = self._head_target()
        commit = read_pointer(self._head)
        if target is not None:
            if target.startswith(BRANCHES):
                ref = make_branch_ref(target)
            else:
                ref = None
            if ref is None:
                commit = None
            else:
                commit = _read_stored(self.cwd, ref)
        if commit is not None and self._is_known(commit):
            return commit
        return await self.commit_of("HEAD")

    async def point_head(self, ref: str) -> None:
        """Set HEAD to a reference."""
        await self.run("symbolic-ref", "-m", "kapelle", "--", "HEAD", ref)

    @property
    def _head(self) -> Path:
        return Path(self.variables["GIT_DIR"]) / "HEAD"

    def _head_target(self) -> str | None:
        line = read_pointer(self._head) or ""
        if line.startswith("ref: "):
            return line.removeprefix("ref: ").strip()
        return None

    def _is_known(self, commit: str) -> bool:
        return (self.cwd, commit) in self.git.trees


def _read_stored(common_dir: Path, ref: str) -> str | None:
    """Return the id in a loose or packed reference; None if only git can tell."""
    if os.path.lexists(common_dir / "reftable"):
        return None
    if os.path.lexists(common_dir / ref):
        match = _LOOSE.fullmatch(read_small_file(common_dir / ref, _MAX_BYTES) or b"")
    else:
        line = rb"^([0-9a-f]+) " + re.escape(ref.encode()) + rb"$"
        content = read_small_file(common_dir / "packed-refs", _MAX_BYTES) or b""
        match = re.search(line, content, re.MULTILINE)
    if match is None:
        return None
    return match[1].decode()
