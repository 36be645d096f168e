"""The environment of a client, sent with new work to a daemon on the same machine."""

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
    """Return the body of a request that starts work, with the variables that agents may see."""
    if not isinstance(body, Mapping):
        return body
    if _FOLLOW_UP.fullmatch(path):
        return {"shell": shell_for(home, _current_directory()), **body}
    if path not in _WORK:
        return body
    spec = body if path == "/tasks" else body.get("spec")
    if not isinstance(spec, Mapping) or "shell" in spec:
        return body
    complete_spec = {**spec, "shell": shell_for(home, spec.get("directory"))}
    if path == "/tasks":
        return complete_spec
    return {**body, "spec": complete_spec}


def shell_for(home: Home, directory: object) -> dict[str, Any]:
    """Return the variables of this process for work in a directory, and the names of the others."""
    names = _names_to_pass(home.config)
    if isinstance(directory, str):
        for config in find_in_repository(home, Path(directory), "config.toml"):
            # A repository must not obtain secrets by naming them.
            matches = match_names(os.environ, _names_to_pass(config))
            names += [name for name in matches if not looks_secret(name)]
    return read_shell(os.environ, names)


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _names_to_pass(config: Path) -> list[str]:
    """Return environment.pass of a file, empty if it is invalid; the daemon reports errors."""
    import tomllib

    try:
        names = tomllib.loads(read_small(config).decode())["environment"]["pass"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError, InvalidInput):
        return []
    if isinstance(names, list):
        return [name for name in names if isinstance(name, str)]
    return []
