"""The user's repository: where it is, and the few harmless settings taken over from it.

It is found by reading files, so that core.worktree cannot lie.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.git import Git

_MAX_POINTER = 65_536
_HARMLESS = ("core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.ignorecase")
_KEYS = r"^(core\.(autocrlf|eol|filemode|symlinks|ignorecase|excludesfile)|extensions\..*)$"
_MAX_IGNORE = 1_000_000


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


@dataclass(frozen=True)
class RepositorySettings:
    """What the repository and its user ask of any git: conversions and ignored names."""

    object_format: str
    settings: tuple[str, ...]
    ignore: str


async def read_settings(git: Git, checkout: Checkout) -> RepositorySettings:
    """Read with `git config`, which runs nothing; the user's own configuration counts as well."""
    place = git.at(checkout.common_dir, checkout.gitdir).with_variables(**_own_configuration())
    output = await place.run("config", "-z", "--get-regexp", _KEYS, ok=(0, 1))
    values: dict[str, str] = {}
    for record in output.fields:
        key, _, value = record.decode("utf-8", "surrogateescape").partition("\n")
        if not (key == "core.excludesfile" and value == "/dev/null"):
            values[key] = value
    object_format = values.get("extensions.objectformat", "sha1").lower()
    if object_format not in {"sha1", "sha256"}:
        raise WorkspaceError(f"The object format {object_format!r} is not supported.")
    settings = tuple(f"{key}={values[key]}" for key in _HARMLESS if _is_plain(values.get(key)))
    own = _own_ignore_file(values.get("core.excludesfile"))
    ignore = _text_of(own) + "\n" + _text_of(checkout.common_dir / "info" / "exclude")
    return RepositorySettings(object_format, settings, ignore)


def _is_plain(value: str | None) -> bool:
    return value is not None and value.isalnum()


def _own_configuration() -> dict[str, str]:
    home = os.environ.get("HOME", "")
    variables = {"HOME": home} if home else {}
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME"):
        if name in os.environ:
            variables[name] = os.environ[name]
    if "GIT_CONFIG_GLOBAL" not in variables and home:
        variables["GIT_CONFIG_GLOBAL"] = str(Path(home) / ".gitconfig")
    return variables


def _own_ignore_file(configured: str | None) -> Path:
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or Path(os.environ.get("HOME", "/")) / ".config"
    return Path(base) / "git" / "ignore"


def _text_of(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_IGNORE:
            return ""
        return path.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
