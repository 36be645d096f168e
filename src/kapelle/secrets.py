"""Secrets: the API keys that a person gave Kapelle, the values of the variables of tasks, runs and
schedules, and what must not come back out of a process."""

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
    """The stored keys of one home by agent; each is read once and then kept in memory.

    The file names every agent that has a key, with null for one that the keyring keeps.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, str | None] = {}
        # Every key that the file ever held, to redact it even when the file is lost.
        self._seen = set[str]()
        self._is_unreadable = False

    @cached_property
    def _keyring(self) -> Any:
        # Looked for when a key is put or read there: it takes time and memory.
        return _usable_keyring()

    @property
    def place(self) -> KeyStorage:
        return "keyring" if self._keyring else "file"

    def get(self, agent: str) -> str | None:
        if agent not in self._known:
            key = self._read(agent)
            if self._is_unreadable:
                return key  # the next read may find it
            self._known[agent] = key
        return self._known[agent]

    def put(self, agent: str, key: str) -> None:
        # Named first: what a crash leaves in the keyring can be removed later.
        self._write(self._file_to_change() | {agent: None if self._keyring else key})
        if self._keyring:
            self._keyring.set_password(_SERVICE, self._name(agent), key)
        self._known[agent] = key

    def forget(self, agent: str) -> bool:
        """Remove a key from wherever it is; False when there was none."""
        self._known.pop(agent, None)
        kept = self._file_to_change()
        had = False
        try:
            if had := self._keyring.get_password(_SERVICE, self._name(agent)) is not None:
                self._keyring.delete_password(_SERVICE, self._name(agent))
        except Exception as error:  # there is none, or one of its own errors, of any class
            if kept.get(agent, "") is None:
                text = f"The key of {agent} is in the system's keyring, which cannot be used now."
                raise KapelleError(text, hint="Unlock the keyring and try again.") from error
        if agent in kept:
            self._write({name: key for name, key in kept.items() if name != agent})
        return had or agent in kept

    def all(self) -> list[str]:
        """Every key in the file or read so far, for the redaction of output."""
        self._file()
        return sorted(self._seen.union(key for key in self._known.values() if key))

    def _read(self, agent: str) -> str | None:
        kept = self._file()
        if kept.get(agent) is None and agent in kept and self._keyring:
            with contextlib.suppress(Exception):  # a locked keyring is as good as none
                found: str | None = self._keyring.get_password(_SERVICE, self._name(agent))
                return found
        return kept.get(agent)

    def unreadable(self) -> str | None:
        """Return why stored keys cannot be used, for a person; None if they can."""
        try:
            self._file_or_raise()
        except OSError as error:
            return f"{self._home.credentials} cannot be read: {error.strerror}."
        damaged = self._damaged_file
        if os.path.lexists(damaged):
            return f"The stored keys could not be read and were put aside as {damaged}."
        return None

    @property
    def _damaged_file(self) -> Path:
        return self._home.credentials.with_suffix(".damaged")

    def _file(self) -> dict[str, str | None]:
        """Return the keys in the file; a file that cannot be read holds none.

        No work waits for the file of the keys, which an agent may have replaced.
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
        path = self._home.credentials
        try:
            keys = json.loads(read_own(path))
            if not isinstance(keys, dict):
                raise ValueError("it is no object")
        except FileNotFoundError:
            return {}
        except (NoRegularFile, ValueError, RecursionError) as error:
            # Moved, not removed: a person may have made a mistake in it.
            with contextlib.suppress(FileNotFoundError):
                path.replace(self._damaged_file)
            _log.warning("%s cannot be read (%s); it is now %s", path, error, self._damaged_file)
            return {}
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        found = {str(agent): key and str(key) for agent, key in keys.items()}
        self._seen.update(key for key in found.values() if key)
        return found

    def _file_to_change(self) -> dict[str, str | None]:
        """Return the keys in the file; raises if others would be lost by writing it again."""
        try:
            return self._file_or_raise()
        except OSError as error:
            text = f"{self._home.credentials} cannot be read: {error}."
            raise KapelleError(text, hint="Make it readable, and try again.") from error

    def _write(self, keys: dict[str, str | None]) -> None:
        write_private(self._home.credentials, json.dumps(keys, indent=1).encode())

    def _name(self, agent: str) -> str:
        # Two homes of one user do not share their keys.
        return f"{agent}@{self._home.root}"


def _usable_keyring() -> Any:
    """The keyring package if it is installed and has somewhere to keep things, else None."""
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return None
    backend = keyring.get_keyring()
    if isinstance(backend, fail.Keyring | null.Keyring) or backend.priority <= 0:
        return None
    return keyring


# What a specification may hold that is nobody's business.
_FIELDS = ("env", "mcp", "shell")
# Longer than any request that stores or archives a task, run or schedule is at work on it.
REQUEST_AGE_S = 600.0
_SHELL_AGE_S = 30 * 86_400.0


class SpecSecrets:
    """The values of the variables and MCP servers of tasks, runs and schedules.

    Each of these owners has a private file beside the database, which holds only the names.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def kept(self, owner: str, spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Put the values away while the owner is being stored, and forget them if that fails.

        Gives the specification with only the names of them.
        """
        values = {name: spec[name] for name in _FIELDS if isinstance(spec.get(name), dict)}
        try:
            if any(values.values()):
                self._write(owner, values)
            yield {**spec, **{name: sorted(kept) for name, kept in values.items()}}
        except asyncio.CancelledError:
            raise  # its row may be stored all the same; if not, upkeep drops the values
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
        """The values of its own variables."""
        values: dict[str, str] = (self._read(owner) or {}).get("env", {})
        return values

    def mcp(self, owner: str) -> dict[str, McpServer]:
        """The MCP servers that it brings along."""
        found = (self._read(owner) or {}).get("mcp", {})
        return {name: McpServer.model_validate(server) for name, server in found.items()}

    def whole(self, owner: str, spec: dict[str, Any]) -> dict[str, Any]:
        """A specification that was kept, with its values again."""
        if not any(spec.get(name) for name in _FIELDS):
            return {key: value for key, value in spec.items() if key not in _FIELDS}
        values = self._read(owner)
        if values is None:
            text = "The values of its variables are not there any more."
            raise InvalidInput(text, hint="Create the schedule anew.")
        return {**spec, **values}

    def keep_shell(self, shell: Shell | None) -> str | None:
        """Put an environment away, once for all that is asked for in it; returns its digest."""
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
        """The environment of this digest; None if there is none, or none any more."""
        if digest is None:
            return None
        try:
            return Shell.model_validate_json(read_own(self._path(f"shell_{digest}")))
        except (FileNotFoundError, NoRegularFile, ValidationError):
            return None

    def old_shells(self) -> list[str]:
        """The digests of environments in which nothing was asked for of late."""
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
        self._path(owner).unlink(missing_ok=True)

    def owners(self, *kinds: str) -> list[str]:
        """Those of these kinds that have values here, except such as are just being stored."""
        return [name for kind in kinds for name in self._older(kind, REQUEST_AGE_S)]

    def _older(self, kind: str, age_s: float) -> Iterator[str]:
        for path in self._directory.glob(f"{kind}_*.json"):
            with contextlib.suppress(FileNotFoundError):  # its owner was faster
                if path.stat().st_mtime < time.time() - age_s:
                    yield path.stem

    def _path(self, owner: str) -> Path:
        return self._directory / f"{owner}.json"


_SHORTEST_SECRET = 8
_URL_PASSWORD = re.compile(r"://[^/@:\s]*:([^/@\s]+)@")


def secrets_in(*environments: Mapping[str, str]) -> list[str]:
    """Values that are secret by their names, and passwords inside addresses; files are none."""
    found = []
    for environment in environments:
        for name, value in environment.items():
            found += [unquote(password) for password in _URL_PASSWORD.findall(value)]
            if looks_secret(name) and not os.path.exists(os.path.expanduser(value)):
                found.append(value)
    return [secret for secret in found if len(secret) >= _SHORTEST_SECRET]


def server_secrets(servers: Iterable[McpServer]) -> list[dict[str, str]]:
    """What MCP servers are given, as variables: the value of a header is always a secret."""
    found: list[dict[str, str]] = []
    for server in servers:
        found.append(server.env)
        for value in server.headers.values():
            # "Bearer x" as a whole, and the x alone.
            found += [{"SECRET": part} for part in (value, *value.split()[-1:])]
    return found
