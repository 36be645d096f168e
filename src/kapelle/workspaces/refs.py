"""References of the user's repository, always by full name, and the names that may become one."""

import os
import re
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.repository import Checkout, read_pointer, small_file

BRANCHES = "refs/heads/"
ARCHIVE = "refs/kapelle/archive/"
_OURS = "kapelle/"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_LOOSE = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\n?")
_MAX_BYTES = 1 << 20
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")


def plain_name(name: str) -> str:
    """An owner's id or archive name, unchanged; anything that is not plain letters is refused."""
    if not _PLAIN.fullmatch(name):
        raise InvalidInput(f"{name!r} cannot be used as a name in git.")
    return name


def branch_of(owner: str) -> str:
    return f"{_OURS}{plain_name(owner)}"


def owner_of(branch: str) -> str | None:
    """Whose branch it is by its name, or None when it is no branch of ours."""
    name = branch.removeprefix(BRANCHES)
    owner = name.removeprefix(_OURS)
    if name.startswith(_OURS) and _PLAIN.fullmatch(owner):
        return owner
    return None


def branch_ref(name: str) -> str | None:
    """The full reference of a branch, or None when no branch can have this name."""
    name = name.removeprefix(BRANCHES)
    if not is_text(name) or not name or name == "@" or _FORBIDDEN.search(name):
        return None
    if name.startswith(("/", ".")) or name.endswith(("/", ".")):
        return None
    return BRANCHES + name


def is_text(name: str) -> bool:
    """Whether a name can be given to a program at all."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


class Refs(GitLocation):
    """The references of one repository, and the HEAD of one of its git directories."""

    @classmethod
    def of(cls, git: Git, common_dir: Path) -> "Refs":
        """What all work trees of a repository share."""
        return cls(git, common_dir, {"GIT_DIR": str(common_dir)})

    @classmethod
    def at(cls, git: Git, checkout: Checkout) -> "Refs":
        """The same, with the HEAD of one work tree."""
        return cls(git, checkout.common_dir, checkout.variables)

    async def read(self, ref: str, *, believe_files: bool = True) -> str | None:
        """The commit that a reference holds, by its exact full name.

        Read from the repository's files when they name a commit that git has shown to exist;
        whatever else they say, git is asked.
        """
        if believe_files:
            held = _stored(self.cwd, ref)
        else:
            held = None
        if held is not None and self._is_known(held):
            return held
        output = await self.run("show-ref", "--verify", "--hash", "--", ref, ok=(0, 1, 128))
        return output.line or None

    async def commit_of(self, revision: str) -> str | None:
        """The full id of the commit that a revision means, or None."""
        if self._is_known(revision):
            return revision
        options = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        output = await self.run(*options, f"{revision}^{{commit}}", ok=(0, 1, 128))
        if output.code == 0:
            return output.line or None
        return None

    async def move(self, ref: str, new: str, old: str | None, reason: str) -> None:
        """Compare and swap; old None means that the reference must not exist. Raises RefMoved."""
        expected = old or "0" * len(new)
        # A branch turned into a symbolic reference must not lead the write to another branch.
        text = f"option no-deref\0update {ref}\0{new}\0{expected}\0"
        await self.run("update-ref", "-m", reason, "--stdin", "-z", stdin=text.encode())

    async def delete(self, *held: tuple[str, str]) -> None:
        """Compare and delete references with their commits, all or none. Raises RefMoved."""
        text = "".join(f"option no-deref\0delete {ref}\0{old}\0" for ref, old in held)
        await self.run("update-ref", "--stdin", "-z", stdin=text.encode())

    async def is_symbolic(self, ref: str) -> bool:
        output = await self.run("symbolic-ref", "--quiet", "--", ref, ok=(0, 1, 128))
        return output.code == 0

    async def head_branch(self) -> str | None:
        """The branch that HEAD is on, read from its file when that is possible."""
        target = self._head_target() or ""
        if target == "refs/heads/.invalid":  # how a reftable repository marks its HEAD file
            target = (await self.run("symbolic-ref", "--quiet", "--", "HEAD", ok=(0, 1))).line
        if target.startswith(BRANCHES):
            return target.removeprefix(BRANCHES)
        return None

    async def head_commit(self) -> str | None:
        """The commit that HEAD stands on, or None without one."""
        target = self._head_target()
        held = read_pointer(self._head)
        if target is not None:
            if target.startswith(BRANCHES):
                ref = branch_ref(target)
            else:
                ref = None
            if ref is None:
                held = None
            else:
                held = _stored(self.cwd, ref)
        if held is not None and self._is_known(held):
            return held
        return await self.commit_of("HEAD")

    async def point_head(self, ref: str) -> None:
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


def _stored(common_dir: Path, ref: str) -> str | None:
    """The id that a loose or packed reference holds; None if it is absent or only git can tell."""
    if os.path.lexists(common_dir / "reftable"):
        return None
    if os.path.lexists(common_dir / ref):
        found = _LOOSE.fullmatch(small_file(common_dir / ref, _MAX_BYTES) or b"")
    else:
        line = rb"^([0-9a-f]+) " + re.escape(ref.encode()) + rb"$"
        packed = small_file(common_dir / "packed-refs", _MAX_BYTES) or b""
        found = re.search(line, packed, re.MULTILINE)
    if found is None:
        return None
    return found[1].decode()
