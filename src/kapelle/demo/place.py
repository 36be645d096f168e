"""Where the demo plays: one directory with the repository and a private home, and nothing else."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.home import Home

# Of the person's environment only what programs need to run and to show text.
_KEPT = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LANG", "LANGUAGE", "TERM"}
    | {"COLORTERM", "COLUMNS", "LINES", "NO_COLOR"}
)


@dataclass(frozen=True)
class Place:
    root: Path
    is_new: bool

    @property
    def repository(self) -> Path:
        return self.root / "etude"

    @property
    def home(self) -> Home:
        return Home(self.root / "home")

    def remove(self) -> None:
        """Take away everything; a directory that was there before stays, empty."""
        for path in list(self.root.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.is_new:
            self.root.rmdir()
        # The socket of a home with a long path lies elsewhere.
        if not self.home.socket.is_relative_to(self.root):
            shutil.rmtree(self.home.socket.parent, ignore_errors=True)


def make(directory: Path | None) -> Place:
    """A new temporary directory, or the one that was asked for, which must be empty."""
    if directory is None:
        return Place(Path(tempfile.mkdtemp(prefix="kapelle-demo-")).resolve(), is_new=True)
    root = directory.expanduser().resolve()
    is_new = not root.exists()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise InvalidInput(
                f"{root} is not empty.", hint="Give --dir a directory that is, or a new name."
            )
    except OSError as error:
        raise InvalidInput(f"{root} cannot be used: {error.strerror}.") from None
    return Place(root, is_new)


def environment(place: Place, yours: Mapping[str, str]) -> dict[str, str]:
    """An environment without the person's settings, agents, keys or git configuration."""
    kept = {name: value for name, value in yours.items() if name in _KEPT or name[:3] == "LC_"}
    # The checks type python3, and mean the one that runs Kapelle.
    path = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", os.defpath)])
    return kept | {
        "PATH": path,
        "HOME": str(place.root),
        "KAPELLE_HOME": str(place.home.root),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "PYTHONUTF8": "1",
    }
