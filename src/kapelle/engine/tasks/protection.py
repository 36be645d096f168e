"""Where an agent may work outside of a git repository although nobody asked for work in place.

Nothing can be taken back there: there is no branch, no diff and no commit to go back to.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import TaskSpec, WorkspaceKind, WorkSpec
from kapelle.settings import Settings

NO_GIT = (
    "{directory} is not in a git repository: the agent works right there, and its changes cannot "
    "be taken back."
)
# Repositories are looked for in a directory and in those directly inside of it.
_DEPTH = 2
_MOST_ENTRIES = 5_000


def is_by_default(spec: WorkSpec, settings: Settings, kind: WorkspaceKind) -> bool:
    """Return whether work is in place because there is no repository, and not by request."""
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
        hint="Go to a repository or to a directory of its own. To work right there all the same: "
        '--in-place (in REST and MCP: "workspace": "in_place").',
    ).about("directory")


def _repositories(place: Path) -> Iterator[Path]:
    """Find repositories in a directory; a very large one is only searched in part."""
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
