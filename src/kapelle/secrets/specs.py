"""The secret values of tasks, runs and schedules, which the database does not hold."""

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.specs import McpServer, Shell
from kapelle.home import NoRegularFile, read_own, write_private

# The fields of a specification with secret values.
_FIELDS = ("env", "mcp", "shell")
# Longer than any request takes to store or archive a task, run or schedule.
REQUEST_AGE_S = 600.0
_SHELL_AGE_S = 30 * 86_400.0


class SpecSecrets:
    """The values of the variables and MCP servers of tasks, runs and schedules.

    Each owner has a private file beside the database; the database holds only the names.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def keep_values(self, owner: str, spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Store the secret values while the owner is being stored; delete them on failure.

        Yields the specification with names in the place of the values.
        """
        values: dict[str, dict[str, Any]] = {}
        for name in _FIELDS:
            if isinstance(spec.get(name), dict):
                values[name] = spec[name]
        try:
            if any(values.values()):
                self._write(owner, values)
            public = dict(spec)
            for name, value in values.items():
                public[name] = sorted(value)
            yield public
        except asyncio.CancelledError:
            raise  # the row may have been stored; if not, upkeep deletes the values
        except BaseException:
            self.forget(owner)
            raise

    def _write(self, owner: str, values: dict[str, Any]) -> None:
        descriptor = os.open(self._path(owner), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(json.dumps(values).encode())
            file.flush()
            os.fsync(descriptor)

    def _read(self, owner: str) -> dict[str, Any] | None:
        try:
            values: dict[str, Any] = json.loads(read_own(self._path(owner)))
        except FileNotFoundError:
            return None
        except (NoRegularFile, ValueError, RecursionError) as error:
            raise KapelleError(f"A stored secret cannot be read: {error}.") from error
        if not isinstance(values, dict):
            raise KapelleError(f"A stored secret cannot be read: {self._path(owner)} is damaged.")
        return values

    def env(self, owner: str) -> dict[str, str]:
        """Return the values of the owner's variables."""
        values: dict[str, str] = (self._read(owner) or {}).get("env", {})
        return values

    def mcp(self, owner: str) -> dict[str, McpServer]:
        """Return the owner's MCP servers."""
        servers = (self._read(owner) or {}).get("mcp", {})
        return {name: McpServer.model_validate(server) for name, server in servers.items()}

    def whole(self, owner: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a stored specification with its secret values."""
        if not any(spec.get(name) for name in _FIELDS):
            return {key: value for key, value in spec.items() if key not in _FIELDS}
        values = self._read(owner)
        if values is None:
            text = "The values of its variables were deleted."
            raise InvalidInput(text, hint="Create the schedule again.")
        return {**spec, **values}

    def keep_shell(self, shell: Shell | None) -> str | None:
        """Store an environment once for all work that uses it; return its digest."""
        if shell is None:
            return None
        text = shell.model_dump_json().encode()
        digest = hashlib.sha256(text).hexdigest()
        path = self._path(f"shell_{digest}")
        if path.exists():
            path.touch()
        else:
            write_private(path, text)
        return digest

    def shell(self, digest: str | None) -> Shell | None:
        """Return the environment with this digest; None if there is none any more."""
        if digest is None:
            return None
        try:
            return Shell.model_validate_json(read_own(self._path(f"shell_{digest}")))
        except (FileNotFoundError, NoRegularFile, ValidationError):
            return None

    def old_shells(self) -> list[str]:
        """Return the digests of environments that were not used for a long time."""
        return [name.removeprefix("shell_") for name in self._older("shell", _SHELL_AGE_S)]

    def everything(self) -> tuple[list[Mapping[str, str]], list[McpServer]]:
        """Return the variables of all owners and shells, and the MCP servers of all owners."""
        environments: list[Mapping[str, str]] = []
        servers: list[McpServer] = []
        for path in self._directory.glob("*.json"):
            if path.stem.startswith("shell_"):
                shell = self.shell(path.stem.removeprefix("shell_"))
                environments.append(shell.variables if shell else {})
            else:
                environments.append(self.env(path.stem))
                servers += self.mcp(path.stem).values()
        return environments, servers

    def forget(self, owner: str) -> None:
        """Delete the values of an owner."""
        self._path(owner).unlink(missing_ok=True)

    def owners(self, *kinds: str) -> list[str]:
        """Return the owners of these kinds that have values here.

        Owners that may just be being stored are left out.
        """
        names: list[str] = []
        for kind in kinds:
            names += self._older(kind, REQUEST_AGE_S)
        return names

    def _older(self, kind: str, age_s: float) -> Iterator[str]:
        for path in self._directory.glob(f"{kind}_*.json"):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                if path.stat().st_mtime < time.time() - age_s:
                    yield path.stem

    def _path(self, owner: str) -> Path:
        return self._directory / f"{owner}.json"
