"""Limits on work in place outside of a git repository that nobody asked for.

Such work cannot be taken back: there is no branch, no diff and no earlier commit.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import TaskSpec, WorkspaceKind, WorkSpec
from kapelle.settings import Settings

NO_GIT = (
    "{directory} is not in a git repository: the agent works in it directly, and its changes "
    "cannot be taken back."
)
# Repositories are searched in a directory and in its direct subdirectories.
_DEPTH = 2
_MOST_ENTRIES = 5_000


def is_by_default(spec: WorkSpec, settings: Settings, kind: WorkspaceKind) -> bool:
    """Return whether work is in place only because there is no repository."""
    is_asked_for = spec.workspace is not None or settings.workspace.default != "auto"
    is_harmless = isinstance(spec, TaskSpec) and spec.read_only
    return kind is WorkspaceKind.IN_PLACE and not is_asked_for and not is_harmless


def require_harmless(directory: str, environ: Mapping[str, str]) -> None:
    """Raise InvalidInput if a directory holds the person's home or repositories."""
    place = Path(os.path.realpath(directory))
    home = Path(os.path.realpath(environ.get("HOME") or os.path.expanduser("~")))
    if place == home:
        problem = "is your home directory"
    elif home.is_relative_to(place):
        problem = f"holds your home directory {home}"
    elif (repository := next(_repositories(place), None)) is not None:
        problem = f"holds the git repository {repository}"
    else:
        return
    raise InvalidInput(
        f"{directory} {problem} and is not in a git repository itself: an agent could change "
        "everything there, and its changes could not be taken back.",
        hint="Use a repository or a directory of its own. To work there anyway: "
        '--in-place (in REST and MCP: "workspace": "in_place").',
    ).about("directory")


def _repositories(place: Path) -> Iterator[Path]:
    """Yield repositories in a directory; a very large directory is searched only in part."""
    level = [place]
    left = _MOST_ENTRIES
    for _ in range(_DEPTH):
        below: list[Path] = []
        for parent in level:
            for child in _directories(parent):
                left -= 1
                if left < 0:
                    return
                if os.path.lexists(child / ".git"):
                    yield child
                below.append(child)
        level = below


def _directories(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            return [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
