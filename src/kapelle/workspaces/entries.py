"""Find pipes and devices in the place of files that git reads: git would wait or read forever."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

_OF_REPOSITORY = (
    "HEAD", "config", "config.worktree", "packed-refs", "shallow", "info/attributes",
    "info/exclude", "objects/info/alternates",
)  # fmt: skip
_OF_WORK_TREE = (".gitattributes", ".gitignore", ".gitmodules")
# A full search ends after this many names.
_MOST_NAMES = 200_000


def find_special(variables: Mapping[str, str]) -> str | None:
    """Return a pipe or device at one of the usual places that git reads; None if there is none.

    The variables are the environment of git; they select its repository, its work tree and the
    person's own configuration.
    """
    for directory in _repositories(variables):
        for name in _OF_REPOSITORY:
            if _is_special(path := os.path.join(directory, name), follow=True):
                return path
    for path in _own_configuration_paths(variables):
        if _is_special(path, follow=True):
            return path
    if top := variables.get("GIT_WORK_TREE"):
        for name in _OF_WORK_TREE:
            if _is_special(path := os.path.join(top, name), follow=False):
                return path
    return None


def find_any_special(variables: Mapping[str, str]) -> str | None:
    """Search the whole repository and work tree for such an entry. Blocks."""
    for directory in _repositories(variables):
        for path in _walk(directory):
            if _is_special(path, follow=True):
                return path
    if top := variables.get("GIT_WORK_TREE"):
        for path in _walk(top):
            if os.path.basename(path) in _OF_WORK_TREE and _is_special(path, follow=False):
                return path
    return None


def _own_configuration_paths(variables: Mapping[str, str]) -> list[str]:
    """Return the paths at which git looks for a person's own configuration."""
    if path := variables.get("GIT_CONFIG_GLOBAL"):
        return [path]
    home = variables.get("HOME")
    if not home:
        return []
    others = variables.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return [os.path.join(home, ".gitconfig"), os.path.join(others, "git", "config")]


def _repositories(variables: Mapping[str, str]) -> set[str]:
    names = ("GIT_DIR", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
    return {variables[name] for name in names if name in variables}


def _is_special(path: str, *, follow: bool) -> bool:
    try:
        status = os.stat(path, follow_symlinks=follow)
    except OSError:
        return False
    if stat.S_ISCHR(status.st_mode):
        # People link files to /dev/null that git is to read as empty.
        return status.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISFIFO(status.st_mode) or stat.S_ISBLK(status.st_mode)


def _walk(top: str) -> Iterator[str]:
    """Yield every file below a directory, up to a maximum number of names."""
    names = 0
    for directory, _, files in os.walk(Path(top)):
        names += len(files) + 1
        if names > _MOST_NAMES:
            return
        yield from (os.path.join(directory, name) for name in files)
