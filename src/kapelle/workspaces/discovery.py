"""Finding the work tree around a directory by reading files, so that core.worktree cannot lie."""

from dataclasses import dataclass
from pathlib import Path

_MAX_POINTER = 65_536


@dataclass(frozen=True)
class Checkout:
    """A work tree with its own git directory and the one it shares with its siblings."""

    toplevel: Path
    gitdir: Path
    common_dir: Path


def find_checkout(directory: Path) -> Checkout | None:
    """The innermost work tree that holds the directory, or None."""
    try:
        start = directory.resolve(strict=True)
    except OSError:
        return None
    if not start.is_dir():
        return None
    for candidate in (start, *start.parents):
        if candidate.name == ".git":
            return None
        checkout = checkout_at(candidate)
        if checkout is not None:
            return checkout
    return None


def is_git_directory(directory: Path) -> bool:
    """Whether a directory belongs to git itself: inside a bare repository or a .git directory."""
    try:
        start = directory.resolve(strict=True)
    except OSError:
        return False
    for candidate in (start, *start.parents):
        if candidate.name == ".git" or _is_bare(candidate):
            return True
        if checkout_at(candidate) is not None:
            return False
    return False


def _is_bare(directory: Path) -> bool:
    has_parts = (directory / "objects").is_dir() and (directory / "refs").is_dir()
    return has_parts and (directory / "HEAD").is_file()


def checkout_at(toplevel: Path) -> Checkout | None:
    """The work tree whose top is exactly this directory, or None."""
    gitdir = linked_gitdir(toplevel / ".git")
    if gitdir is None:
        return None
    common = read_pointer(gitdir / "commondir")
    common_dir = (gitdir / common).resolve() if common else gitdir
    if not (common_dir / "objects").is_dir() or not (gitdir / "HEAD").exists():
        return None
    return Checkout(toplevel, gitdir, common_dir)


def linked_gitdir(dot_git: Path) -> Path | None:
    """The git directory that a .git entry is or points to."""
    if dot_git.is_dir():
        return dot_git.resolve()
    text = read_pointer(dot_git)
    if text is None or not text.startswith("gitdir: "):
        return None
    return (dot_git.parent / text.removeprefix("gitdir: ")).resolve()


def read_pointer(path: Path) -> str | None:
    """The one line of a small file of git, or None."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_POINTER:
            return None
        line = path.read_bytes().rstrip(b"\n")
    except OSError:
        return None
    return None if b"\0" in line else line.decode("utf-8", "surrogateescape")
