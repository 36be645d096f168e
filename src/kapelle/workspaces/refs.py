"""References of the user's repository, always by full name, and the names that may become one."""

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import GitError, InvalidInput
from kapelle.workspaces.git import Git, Place
from kapelle.workspaces.repository import Checkout, read_pointer

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
    return owner if name.startswith(_OURS) and _PLAIN.fullmatch(owner) else None


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


@dataclass(frozen=True)
class Resolved:
    """A base as given: the branch if it is one, and its present commit."""

    branch: str | None
    commit: str


async def read_ref(place: Place, ref: str, *, believe_files: bool = True) -> str | None:
    """The commit that a reference holds, by its exact full name.

    Read from the repository's files when they name a commit that git has shown to exist; whatever
    else they say, git is asked.
    """
    held = _stored(place.cwd, ref) if believe_files else None
    if held is not None and place.git.trees.get(place.cwd, held) is not None:
        return held
    output = await place.run("show-ref", "--verify", "--hash", "--", ref, ok=(0, 1, 128))
    return output.line or None


def _stored(common_dir: Path, ref: str) -> str | None:
    """The id that a loose or packed reference holds; None if it is absent or only git can tell."""
    if os.path.lexists(common_dir / "reftable"):
        return None
    try:
        found = _LOOSE.fullmatch(_small_file(common_dir / ref))
    except FileNotFoundError:
        line = rb"^([0-9a-f]+) " + re.escape(ref.encode()) + rb"$"
        try:
            found = re.search(line, _small_file(common_dir / "packed-refs"), re.MULTILINE)
        except OSError:
            return None
    except OSError:
        return None
    return None if found is None else found[1].decode()


def _small_file(path: Path) -> bytes:
    """The bytes of a regular file that is no link and not large, else nothing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", closefd=True) as stream:
        status = os.fstat(descriptor)
        is_small = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
        return stream.read(_MAX_BYTES) if is_small else b""


async def resolve(place: Place, base: str) -> Resolved | None:
    """What a person means by base: a branch first, then anything git understands as a commit."""
    ref = branch_ref(base)
    if ref is not None and (commit := await read_ref(place, ref)) is not None:
        return Resolved(ref.removeprefix(BRANCHES), commit)
    if not base or base.startswith("-") or not is_text(base):
        return None
    commit = await commit_of(place, base)
    return None if commit is None else Resolved(None, commit)


async def commit_of(place: Place, revision: str) -> str | None:
    """The full id of the commit that a revision means, or None."""
    if place.git.trees.get(place.cwd, revision) is not None:
        return revision
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    output = await place.run(*arguments, ok=(0, 1, 128))
    return output.line or None if output.code == 0 else None


async def move_ref(place: Place, ref: str, new: str, old: str | None, reason: str) -> None:
    """Compare and swap; old None means that the reference must not exist. Raises RefMoved."""
    expected = old or "0" * len(new)
    # A branch turned into a symbolic reference must not lead the write to another branch.
    text = f"option no-deref\0update {ref}\0{new}\0{expected}\0"
    await place.run("update-ref", "-m", reason, "--stdin", "-z", stdin=text.encode())


async def delete_ref(place: Place, ref: str, old: str) -> None:
    """Compare and delete. Raises RefMoved."""
    text = f"option no-deref\0delete {ref}\0{old}\0"
    await place.run("update-ref", "--stdin", "-z", stdin=text.encode())


async def is_symbolic(place: Place, ref: str) -> bool:
    output = await place.run("symbolic-ref", "--quiet", "--", ref, ok=(0, 1, 128))
    return output.code == 0


async def point_head(place: Place, ref: str) -> None:
    await place.run("symbolic-ref", "-m", "kapelle", "--", "HEAD", ref)


async def head_branch(git: Git, checkout: Checkout) -> str | None:
    """The branch a checkout is on, read from its HEAD file when that is possible."""
    line = read_pointer(checkout.gitdir / "HEAD") or ""
    target = line.removeprefix("ref: ").strip() if line.startswith("ref: ") else ""
    if target == "refs/heads/.invalid":  # how a reftable repository marks its HEAD file
        place = git.at(checkout.common_dir, checkout.gitdir)
        target = (await place.run("symbolic-ref", "--quiet", "--", "HEAD", ok=(0, 1))).line
    return target.removeprefix(BRANCHES) if target.startswith(BRANCHES) else None


async def head_commit(git: Git, checkout: Checkout) -> str | None:
    """The commit that a checkout stands on, or None without one."""
    held: str | None = read_pointer(checkout.gitdir / "HEAD") or ""
    if held is not None and held.startswith(f"ref: {BRANCHES}"):
        ref = branch_ref(held.removeprefix("ref: "))
        held = None if ref is None else _stored(checkout.common_dir, ref)
    if held is not None and git.trees.get(checkout.common_dir, held) is not None:
        return held
    return await commit_of(git.at(checkout.common_dir, checkout.gitdir), "HEAD")


def empty_tree(object_format: str) -> str:
    """The id of the tree without entries."""
    if object_format not in {"sha1", "sha256"}:
        raise GitError(f"The object format {object_format!r} is not known.")
    return hashlib.new(object_format, b"tree 0\0", usedforsecurity=False).hexdigest()
