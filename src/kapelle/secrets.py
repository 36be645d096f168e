"""Secrets: stored API keys, variables of tasks, runs and schedules, and what must be redacted."""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import ValidationError

from kapelle.domain.environment import looks_secret
from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.specs import McpServer, Shell
from kapelle.home import Home, NoRegularFile, read_own, write_private

_log = logging.getLogger("kapelle.secrets")

_SERVICE = "kapelle"
KeyStorage = Literal["keyring", "file"]


class Vault:
    """The stored API keys of one home, by agent; each is read once and kept in memory.

    The file lists every agent that has a key, with null if the keyring holds the key.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, str | None] = {}
        # Every key that the file ever held, so that it is redacted even after the file is lost.
        self._seen = set[str]()
        self._is_unreadable = False

    @cached_property
    def _keyring(self) -> Any:
        # Imported when a key is stored or read there: it takes time and memory.
        return _usable_keyring()

    @property
    def place(self) -> KeyStorage:
        """Return where new keys are stored."""
        return "keyring" if self._keyring else "file"

    def get(self, agent: str) -> str | None:
        """Return the key of an agent; None if there is none."""
        if agent not in self._known:
            key = self._read(agent)
            if self._is_unreadable:
                return key  # not cached: the file may be readable next time
            self._known[agent] = key
        return self._known[agent]

    def store_key(self, agent: str, key: str) -> None:
        """Store the key of an agent."""
        # The file names the agent first, so that a key that a crash leaves in the keyring can be
        # removed later.
        self._write(self._file_to_change() | {agent: None if self._keyring else key})
        if self._keyring:
            self._keyring.set_password(_SERVICE, self._name(agent), key)
        self._known[agent] = key

    def forget(self, agent: str) -> bool:
        """Remove a key from wherever it is stored; return False if there was none."""
        self._known.pop(agent, None)
        keys = self._file_to_change()
        was_in_keyring = False
        try:
            if (
                was_in_keyring := self._keyring.get_password(_SERVICE, self._name(agent))
                is not None
            ):
                self._keyring.delete_password(_SERVICE, self._name(agent))
        except Exception as error:  # no keyring, or an error of its backend, of any class
            if keys.get(agent, "") is None:
                text = f"The key of {agent} is in the system's keyring, which cannot be used now."
                raise KapelleError(text, hint="Unlock the keyring and try again.") from error
        if agent in keys:
            self._write({name: key for name, key in keys.items() if name != agent})
        return was_in_keyring or agent in keys

    def all(self) -> list[str]:
        """Return every key that the file held or that was read, for redaction."""
        self._file()
        return sorted(self._seen.union(key for key in self._known.values() if key))

    def _read(self, agent: str) -> str | None:
        """Return the key of an agent from the file or the keyring."""
        keys = self._file()
        if keys.get(agent) is None and agent in keys and self._keyring:
            with contextlib.suppress(Exception):  # a locked keyring has no key for us
                key: str | None = self._keyring.get_password(_SERVICE, self._name(agent))
                return key
        return keys.get(agent)

    def explain_unreadable(self) -> str | None:
        """Return why stored keys cannot be used, for a person; None if they can."""
        try:
            self._file_or_raise()
        except OSError as error:
            return f"{self._home.credentials} cannot be read: {error.strerror}."
        path = self._damaged_file
        if os.path.lexists(path):
            return f"The stored keys could not be read; the file was renamed to {path}."
        return None

    @property
    def _damaged_file(self) -> Path:
        return self._home.credentials.with_suffix(".damaged")

    def _file(self) -> dict[str, str | None]:
        """Return the keys in the file; a file that cannot be read holds none.

        An agent may have replaced the file, and no task may wait for it.
        """
        try:
            keys = self._file_or_raise()
        except OSError as error:
            if not self._is_unreadable:
                _log.warning("%s cannot be read: %s", self._home.credentials, error)
            self._is_unreadable = True
            return {}
        self._is_unreadable = False
        return keys

    def _file_or_raise(self) -> dict[str, str | None]:
        """Return the keys in the file; a damaged file is renamed and counts as empty.

        Raises OSError if the file cannot be read.
        """
        path = self._home.credentials
        try:
            content = json.loads(read_own(path))
            if not isinstance(content, dict):
                raise ValueError("it is no object")
        except FileNotFoundError:
            return {}
        except (NoRegularFile, ValueError, RecursionError) as error:
            # Renamed, not removed: a person may have made a mistake while editing it.
            with contextlib.suppress(FileNotFoundError):
                path.replace(self._damaged_file)
            _log.warning("%s cannot be read (%s); it is now %s", path, error, self._damaged_file)
            return {}
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        keys = {str(agent): key and str(key) for agent, key in content.items()}
        self._seen.update(key for key in keys.values() if key)
        return keys

    def _file_to_change(self) -> dict[str, str | None]:
        """Return the keys in the file; raises KapelleError if writing would lose others."""
        try:
            return self._file_or_raise()
        except OSError as error:
            text = f"{self._home.credentials} cannot be read: {error}."
            raise KapelleError(text, hint="Make it readable, and try again.") from error

    def _write(self, keys: dict[str, str | None]) -> None:
        write_private(self._home.credentials, json.dumps(keys, indent=1).encode())

    def _name(self, agent: str) -> str:
        # The name includes the home: two homes of one user do not share their keys.
        return f"{agent}@{self._home.root}"


def _usable_keyring() -> Any:
    """Return the keyring package if it is installed and has a usable backend, else None."""
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return None
    backend = keyring.get_keyring()
    if isinstance(backend, fail.Keyring | null.Keyring) or backend.priority <= 0:
        return None
    return keyring


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
            yield {**spec, **{name: sorted(value) for name, value in values.items()}}
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


_SHORTEST_SECRET = 8
_URL_PASSWORD = re.compile(r"://[^/@:\s]*:([^/@\s]+)@")


def find_secrets(*environments: Mapping[str, str]) -> list[str]:
    """Return values that are secret by their name, and passwords inside URLs.

    The path of an existing file is not a secret.
    """
    values = []
    for environment in environments:
        for name, value in environment.items():
            values += [unquote(password) for password in _URL_PASSWORD.findall(value)]
            if looks_secret(name) and not os.path.exists(os.path.expanduser(value)):
                values.append(value)
    return [secret for secret in values if len(secret) >= _SHORTEST_SECRET]


def collect_server_values(servers: Iterable[McpServer]) -> list[dict[str, str]]:
    """Return the values that MCP servers receive, as variables.

    The value of a header is always a secret.
    """
    environments: list[dict[str, str]] = []
    for server in servers:
        environments.append(server.env)
        for value in server.headers.values():
            # "Bearer x" as a whole, and x alone.
            for part in (value, *value.split()[-1:]):
                environments.append({"SECRET": part})
    return environments
