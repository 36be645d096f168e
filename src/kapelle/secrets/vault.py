"""The API keys that a person stored, in the system's keyring or in a private file."""

import contextlib
import json
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from kapelle.domain.errors import KapelleError
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
            del keys[agent]
            self._write(keys)
            return True
        return was_in_keyring

    def all(self) -> list[str]:
        """Return every key that the file held or that was read, for redaction."""
        self._file()
        return sorted(self._seen.union(filter(None, self._known.values())))

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
        self._seen.update(filter(None, keys.values()))
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
