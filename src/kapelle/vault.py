"""API keys that a person gave Kapelle: in the system's keyring, or in a private file."""

import contextlib
import json
from functools import cached_property
from typing import Any, Literal

from kapelle.domain.errors import KapelleError
from kapelle.home import Home, write_private

_SERVICE = "kapelle"
Place = Literal["keyring", "file"]


class Vault:
    """The stored keys of one home by agent; each is read once and then kept in memory.

    The file names every agent that has a key, with null for one that the keyring keeps.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, str | None] = {}

    @cached_property
    def _keyring(self) -> Any:
        # Looked for when a key is put or read there: it takes time and memory.
        return _usable_keyring()

    @property
    def place(self) -> Place:
        return "keyring" if self._keyring else "file"

    def get(self, agent: str) -> str | None:
        if agent not in self._known:
            self._known[agent] = self._read(agent)
        return self._known[agent]

    def put(self, agent: str, key: str) -> None:
        if self._keyring:
            self._keyring.set_password(_SERVICE, self._name(agent), key)
        self._write(self._file() | {agent: None if self._keyring else key})
        self._known[agent] = key

    def forget(self, agent: str) -> bool:
        """Remove a key; False when there was none."""
        self._known.pop(agent, None)
        kept = self._file()
        if agent not in kept:
            return False
        if kept.pop(agent) is None and self._keyring:
            with contextlib.suppress(Exception):
                self._keyring.delete_password(_SERVICE, self._name(agent))
        self._write(kept)
        return True

    def all(self) -> list[str]:
        """Every key in the file or read so far, for the redaction of output."""
        return [key for key in {**self._file(), **self._known}.values() if key]

    def _read(self, agent: str) -> str | None:
        kept = self._file()
        if kept.get(agent) is None and agent in kept and self._keyring:
            with contextlib.suppress(Exception):  # a locked keyring is as good as none
                found: str | None = self._keyring.get_password(_SERVICE, self._name(agent))
                return found
        return kept.get(agent)

    def _file(self) -> dict[str, str | None]:
        try:
            if self._home.credentials.stat().st_mode & 0o077:
                self._home.credentials.chmod(0o600)
            found = json.loads(self._home.credentials.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise KapelleError(
                f"{self._home.credentials} cannot be read: {error}.",
                hint="Correct it, or delete it and store the keys again.",
            ) from error
        if not isinstance(found, dict):
            return {}
        return {str(agent): key and str(key) for agent, key in found.items()}

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
