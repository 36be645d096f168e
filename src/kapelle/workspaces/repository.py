"""The user's repository: where it is, and the few harmless settings taken over from it."""

import os
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.discovery import Checkout, find_checkout
from kapelle.workspaces.git import Git
from kapelle.workspaces.refs import head_branch, head_commit, repository_place

_HARMLESS = ("core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.ignorecase")
_KEYS = r"^(core\.(autocrlf|eol|filemode|symlinks|ignorecase|excludesfile)|extensions\..*)$"
_MAX_IGNORE = 1_000_000


@dataclass(frozen=True)
class Repository:
    """The git work tree around a directory."""

    toplevel: Path
    common_dir: Path
    object_format: str
    head_branch: str | None
    head_commit: str | None


@dataclass(frozen=True)
class Habits:
    """What the repository and its user ask of any git: conversions and ignored names."""

    object_format: str
    settings: tuple[str, ...]
    ignore: str


async def locate(git: Git, directory: Path) -> Repository | None:
    """The repository around a directory, or None outside of one."""
    checkout = find_checkout(directory)
    if checkout is None:
        return None
    return Repository(
        toplevel=checkout.toplevel,
        common_dir=checkout.common_dir,
        object_format=(await habits_of(git, checkout)).object_format,
        head_branch=await head_branch(git, checkout),
        head_commit=await head_commit(git, checkout),
    )


async def habits_of(git: Git, checkout: Checkout) -> Habits:
    """Read with `git config`, which runs nothing; the user's own configuration counts as well."""
    place = repository_place(checkout.common_dir, checkout.gitdir).with_variables(
        **_own_configuration()
    )
    output = await git.run(place, "config", "-z", "--get-regexp", _KEYS, ok=(0, 1))
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
    return Habits(object_format, settings, ignore)


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
