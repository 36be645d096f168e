"""The repository that the current directory belongs to, as far as configuration goes."""

import os
from pathlib import Path

from kapelle.domain.errors import InvalidInput


def current() -> Path:
    """The directory the command was typed in."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InvalidInput(
            "The current directory no longer exists.", hint="Change to another one first."
        ) from None


def root(directory: Path) -> Path | None:
    """The top of the git working tree around a directory, found without running git."""
    start = Path(os.path.abspath(directory))
    return next((place for place in (start, *start.parents) if (place / ".git").exists()), None)


def config_file(directory: Path) -> Path:
    """Where the repository's settings are or would be."""
    return (root(directory) or Path(os.path.abspath(directory))) / ".kapelle" / "config.toml"
