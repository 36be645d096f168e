"""The environment of a client, sent along with what it asks a daemon on the same machine for."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kapelle.domain.environment import looks_secret, match_names, read_shell
from kapelle.domain.errors import InvalidInput
from kapelle.home import Home, find_in_repository, read_small

_WORK = ("/tasks", "/runs", "/schedules")
# A task that follows up on a run: the body is no specification, and its directory is the run's.
_FOLLOW_UP = re.compile(r"/runs/[^/]+/follow_up")


def with_shell(home: Home, path: str, body: Any) -> Any:
    """What is to be started, with the variables of this process that its agents may see."""
    if not isinstance(body, Mapping):
        return body
    if _FOLLOW_UP.fullmatch(path):
        return {"shell": shell_for(home, _current_directory()), **body}
    if path not in _WORK:
        return body
    spec = body if path == "/tasks" else body.get("spec")
    if not isinstance(spec, Mapping) or "shell" in spec:
        return body
    told = {**spec, "shell": shell_for(home, spec.get("directory"))}
    if path == "/tasks":
        return told
    return {**body, "spec": told}


def shell_for(home: Home, directory: object) -> dict[str, Any]:
    """The variables that work in a directory gets from here, and the names of the others."""
    wanted = _passed(home.config)
    if isinstance(directory, str):
        for config in find_in_repository(home, Path(directory), "config.toml"):
            # A repository does not get at secrets by naming them.
            theirs = match_names(os.environ, _passed(config))
            wanted += [name for name in theirs if not looks_secret(name)]
    return read_shell(os.environ, wanted)


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _passed(config: Path) -> list[str]:
    """environment.pass in a file, read without pydantic; the daemon says what is wrong with it."""
    import tomllib

    try:
        names = tomllib.loads(read_small(config).decode())["environment"]["pass"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError, InvalidInput):
        return []
    if isinstance(names, list):
        return [name for name in names if isinstance(name, str)]
    return []
