"""Directories of the checkout that a workspace shares, such as installed dependencies.

A confined process sees the person's directory at its usual path in the workspace and may change it:
the changes go into a directory of Kapelle, and the person's own stays as it is.
"""

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from kapelle.home import Home
from kapelle.runner.process_dir import Launch
from kapelle.settings.models import WorkspaceSettings
from kapelle.workspaces import exclude_paths, remove_tree

# Dependencies and build results that most tools rebuild from files of the repository.
_USUAL = (".venv", "venv", "node_modules", "vendor", "target")
_UNUSED_S = 86_400.0


@dataclass(frozen=True)
class Share:
    """One shared directory: the layers from the top, where changes go, and where it stands."""

    layers: tuple[Path, ...]
    changes: Path
    work: Path
    path: Path


def share_directories(
    settings: WorkspaceSettings,
    *,
    checkout: Path,
    workspace: Path,
    seen_top: Path,
    storage: Path,
    process: str | None,
) -> list[Share]:
    """Prepare what a process shares with the checkout, and return it. Blocks.

    Without the name of a process, its changes are kept for the next processes of the workspace;
    else they are for this process alone.
    """
    shares = []
    names = list(_find_shared(settings, checkout, workspace))
    for name in names:
        place = storage / name.replace("/", "%")
        kept = place / "changes"
        layers: tuple[Path, ...] = (checkout / name,)
        if process is not None and kept.is_dir():
            layers = (kept, *layers)
        if process is not None:
            place = place / process
        share = Share(layers, place / "changes", place / "work", seen_top / name)
        for directory in (share.changes, share.work, workspace / name):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        shares.append(share)
    if names:
        # Otherwise the agent's git would add the directories where the repository does not ignore
        # them.
        exclude_paths(workspace, names)
    return shares


def remove_layers(launch: Launch) -> None:
    """Remove what the overlays of an ended process leave: the kernel's directories, and its changes
    if they were for this process alone. Blocks."""
    assert launch.confinement is not None
    for _, changes, work, _ in launch.confinement.overlays:
        remove_tree(Path(work))
        if Path(changes).parent.name == launch.process_dir.name:
            remove_tree(Path(changes).parent)


def remove_unused(home: Home, live: Collection[str]) -> None:
    """Remove shared directories of removed workspaces, and left /tmp directories. Blocks."""
    for place in list_directory(home.shares):
        if not (home.worktrees / place.name).exists():
            remove_tree(place)
    for place in list_directory(home.scratch):
        age_s = time.time() - place.lstat().st_mtime
        if place.name not in live and age_s > _UNUSED_S:
            remove_tree(place)


def list_directory(directory: Path) -> list[Path]:
    """Return the entries of a directory; none if it is missing."""
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _find_shared(settings: WorkspaceSettings, checkout: Path, workspace: Path) -> Iterable[str]:
    """Yield the relative paths of the directories that a workspace shares with the checkout."""
    names: list[str] = [*settings.link]
    if settings.share is not None:
        names += settings.share
    elif settings.setup is None:
        names += _USUAL
    for name in dict.fromkeys(os.path.normpath(name) for name in names):
        if os.path.isabs(name) or name.startswith(".."):
            continue
        is_directory = (checkout / name).is_dir() and not (checkout / name).is_symlink()
        if is_directory and _is_free(workspace / name):
            yield name


def _is_free(path: Path) -> bool:
    """Tell whether the workspace has nothing of its own at a path."""
    if path.is_symlink():
        return False
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False
