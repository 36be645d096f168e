"""References of the user's repository, by full name, and validation of their names."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.workspaces.git import Git, GitLocation, RefMoved
from kapelle.workspaces.gitdir import replace_inside
from kapelle.workspaces.repository import Checkout, read_pointer, read_small_file

BRANCHES = "refs/heads/"
ARCHIVE = "refs/kapelle/archive/"
# The base commits of the present workspaces, which git must not remove.
ANCHORS = "refs/kapelle/base/"
_OURS = "kapelle/"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_LOOSE = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\n?")
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_BYTES = 1 << 20
_MAX_OWN_BYTES = 1 << 28
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
        if checkout.is_workspace:
            return WorkspaceRefs(
                git, checkout.common_dir, checkout.variables, gitdir=checkout.gitdir
            )
        return cls(git, checkout.common_dir, checkout.variables)

    async def read(self, ref: str, *, believe_files: bool = True) -> str | None:
        """Return the commit that a reference holds, by its exact full name; None if missing.

        The repository's files are believed only if they name a commit that git has shown to exist.
        A reference that no file has does not exist. In every other case git is asked.
        """
        if believe_files:
            commit = read_stored(self.cwd, ref)
        else:
            commit = None
        if commit is not None and self._is_known(commit):
            return commit
        if believe_files and commit is None and is_absent(self.cwd, ref):
            return None
        output = await self.run("show-ref", "--verify", "--hash", "--", ref, ok=(0, 1, 128))
        return output.line or None

    async def read_branch(self, ref: str) -> str | None:
        """Return the commit of a branch; for a workspace without a branch, its base commit."""
        commit = await self.read(ref)
        owner = find_owner(ref)
        if commit is None and owner is not None:
            return await self.read(ANCHORS + owner)
        return commit

    async def ensure_branch(self, ref: str) -> None:
        """Create the branch of a workspace at its base commit, if it does not exist yet."""
        if await self.read(ref) is None:
            commit = await self.read_branch(ref)
            if commit is not None:
                # Its workspace may commit at the same time.
                with suppress(RefMoved):
                    await self.move(ref, commit, None, "kapelle: begin")

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

    async def anchor(self, ref: str, commit: str) -> None:
        """Set a reference of Kapelle, whatever it held before."""
        text = f"option no-deref\0update {ref}\0{commit}\0\0"
        await self.run("update-ref", "-m", "kapelle: begin", "--stdin", "-z", stdin=text.encode())

    async def has_branch_in_the_way(self) -> bool:
        """Tell whether a branch leaves no room for those of Kapelle."""
        ref = BRANCHES + _OURS.rstrip("/")
        if os.path.lexists(self.cwd / "reftable"):
            return await self.read(ref) is not None
        # Without asking git: this is the exception.
        return read_stored(self.cwd, ref) is not None

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
                commit = read_stored(self.cwd, ref)
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


@dataclass(frozen=True)
class WorkspaceRefs(Refs):
    """The references of the user's repository, with the HEAD of a workspace's own repository.

    An agent can write anything into its repository. No git runs there: its files are read, and
    what they hold is only ever taken for the name of a commit.
    """

    gitdir: Path = Path()

    def read_own(self, ref: str) -> str | None:
        """Return the commit that a reference of the workspace's own repository holds."""
        return read_stored(self.gitdir, ref, _MAX_OWN_BYTES)

    async def head_branch(self) -> str | None:
        """Return the branch that HEAD is on; None if it is on a commit."""
        target = self._head_target() or ""
        if target.startswith(BRANCHES):
            return target.removeprefix(BRANCHES)
        return None

    async def head_commit(self) -> str | None:
        """Return the commit of HEAD, which the user's repository may not have yet."""
        target = self._head_target()
        if target is None:
            line = (read_pointer(self._head) or "").strip()
            if _ID.fullmatch(line):
                return line
            return None
        ref = None
        if target.startswith(BRANCHES):
            ref = make_branch_ref(target)
        if ref is None:
            return None
        return self.read_own(ref)

    async def point_head(self, ref: str) -> None:
        """Set HEAD to a reference."""
        replace_inside(self.gitdir, ("HEAD",), f"ref: {ref}\n".encode())

    @property
    def _head(self) -> Path:
        return self.gitdir / "HEAD"


def is_absent(common_dir: Path, ref: str) -> bool:
    """Tell whether the repository's files show that a reference does not exist.

    Any doubt is no: a reference that cannot be read now may exist.
    """
    if os.path.lexists(common_dir / "reftable") or not (common_dir / "refs").is_dir():
        return False
    # In this order: git writes packed-refs before it deletes a loose reference.
    if not _is_missing(common_dir / ref):
        return False
    packed_refs = common_dir / "packed-refs"
    if _is_missing(packed_refs):
        return True
    content = read_small_file(packed_refs, _MAX_BYTES)
    return content is not None and ref.encode() not in content


def _is_missing(path: Path) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def read_stored(common_dir: Path, ref: str, most: int = _MAX_BYTES) -> str | None:
    """Return the id in a loose or packed reference; None if only git can tell."""
    if os.path.lexists(common_dir / "reftable"):
        return None
    if os.path.lexists(common_dir / ref):
        match = _LOOSE.fullmatch(read_small_file(common_dir / ref, most) or b"")
    else:
        line = rb"^([0-9a-f]+) " + re.escape(ref.encode()) + rb"$"
        content = read_small_file(common_dir / "packed-refs", most) or b""
        match = re.search(line, content, re.MULTILINE)
    if match is None:
        return None
    return match[1].decode()
