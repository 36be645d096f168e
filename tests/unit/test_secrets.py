"""Stored keys: private on the disk, read once, and forgotten when asked; what must not come out."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kapelle.domain.errors import KapelleError
from kapelle.domain.specs import McpServer
from kapelle.home import Home
from kapelle.secrets.detection import collect_server_values, find_secrets
from kapelle.secrets.vault import Vault

needs_keyring = pytest.mark.skipif(find_spec("keyring") is None, reason="keyring is not installed")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@contextmanager
def keyring_is(backend: Any) -> Iterator[None]:
    keyring: Any = import_module("keyring")
    before = keyring.get_keyring()
    keyring.set_keyring(backend)
    try:
        yield
    finally:
        keyring.set_keyring(before)


@pytest.fixture
def vault(home: Home) -> Iterator[Vault]:
    """A vault where there is no keyring, or none that can keep anything."""
    if find_spec("keyring") is None:
        yield Vault(home)
        return
    with keyring_is(import_module("keyring.backends.null").Keyring()):
        yield Vault(home)


def test_without_a_keyring_a_private_file_keeps_the_keys(vault: Vault, home: Home) -> None:
    assert vault.place == "file"
    assert vault.get("codex") is None
    vault.store_key("codex", "key-of-codex")
    vault.store_key("claude", "key-of-claude")
    vault.store_key("codex", "newer-key")
    assert stat.S_IMODE(home.credentials.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    again = Vault(home)
    assert (again.get("codex"), again.get("claude")) == ("newer-key", "key-of-claude")
    assert sorted(again.all()) == ["key-of-claude", "newer-key"]


def test_a_key_is_forgotten_and_the_others_stay(vault: Vault, home: Home) -> None:
    vault.store_key("codex", "key-of-codex")
    vault.store_key("claude", "key-of-claude")
    assert vault.forget("codex")
    assert not vault.forget("codex")
    assert (vault.get("codex"), vault.get("claude")) == (None, "key-of-claude")
    assert json.loads(home.credentials.read_bytes()) == {"claude": "key-of-claude"}


def test_a_file_that_was_opened_to_others_is_private_after_the_next_key(
    vault: Vault, home: Home
) -> None:
    vault.store_key("codex", "key-of-codex")
    home.credentials.chmod(0o644)
    vault.store_key("claude", "key-of-claude")
    assert stat.S_IMODE(home.credentials.stat().st_mode) == 0o600


def _write_garbage(path: Path) -> None:
    path.write_bytes(b'{"codex": ')


@pytest.mark.parametrize("make", [os.mkfifo, _write_garbage])
def test_a_damaged_file_is_put_aside_and_holds_no_key(
    vault: Vault, home: Home, make: Callable[[Path], None]
) -> None:
    vault.store_key("codex", "key-of-codex")
    home.credentials.unlink()
    make(home.credentials)
    assert vault.all() == ["key-of-codex"]
    assert vault.get("claude") is None
    damaged = home.root / "credentials.damaged"
    assert (damaged.exists(), home.credentials.exists()) == (True, False)
    assert str(damaged) in (vault.explain_unreadable() or "")
    vault.store_key("claude", "key-of-claude")
    assert Vault(home).get("claude") == "key-of-claude"


def test_a_file_that_cannot_be_read_now_is_not_overwritten(vault: Vault, home: Home) -> None:
    vault.store_key("codex", "key-of-codex")
    kept = home.credentials.rename(home.root / "kept")
    home.credentials.symlink_to(home.credentials)  # too many levels of links
    assert Vault(home).get("codex") is None
    with pytest.raises(KapelleError, match=r"credentials\.json cannot be read"):
        Vault(home).store_key("claude", "key-of-claude")
    later = Vault(home)
    assert later.get("codex") is None
    home.credentials.unlink()
    kept.rename(home.credentials)
    assert later.get("codex") == "key-of-codex"


@needs_keyring
def test_a_keyring_keeps_the_keys_of_each_home_apart(tmp_path: Path) -> None:
    with keyring_is(_in_memory()):
        one, other = Home(tmp_path / "one"), Home(tmp_path / "other")
        vault = Vault(one)
        assert vault.place == "keyring"
        vault.store_key("codex", "key-of-codex")
        assert "key-of-codex" not in one.credentials.read_text()
        assert Vault(one).get("codex") == "key-of-codex"
        assert Vault(other).get("codex") is None
        assert vault.forget("codex")
        assert Vault(one).get("codex") is None


@needs_keyring
def test_a_key_that_the_keyring_keeps_is_not_called_forgotten_while_it_is_locked(
    tmp_path: Path,
) -> None:
    home, keyring = Home(tmp_path / "home"), _in_memory()
    with keyring_is(keyring):
        Vault(home).store_key("codex", "key-of-codex")
    with keyring_is(_in_memory(locked=True)), pytest.raises(KapelleError, match="keyring"):
        Vault(home).forget("codex")
    with keyring_is(keyring):
        vault = Vault(home)
        assert vault.get("codex") == "key-of-codex"
        home.credentials.unlink()  # as it is when only the file was lost
        assert vault.forget("codex")
        assert keyring.get_password("kapelle", f"codex@{home.root}") is None


def _raise(*_: object) -> None:
    raise RuntimeError("locked")


def _in_memory(*, locked: bool = False) -> Any:
    """A real backend of the keyring package that keeps passwords for as long as it lives."""
    kept: dict[tuple[str, str], str] = {}
    methods: dict[str, Any] = {
        "priority": 1,
        "get_password": lambda _, service, name: kept.get((service, name)),
        "set_password": lambda _, service, name, word: kept.update({(service, name): word}),
        "delete_password": lambda _, service, name: kept.pop((service, name)),
    }
    if locked:
        methods |= dict.fromkeys(("get_password", "set_password", "delete_password"), _raise)
    base: Any = import_module("keyring.backend").KeyringBackend
    return type(base)("InMemory", (base,), methods)()


def test_headers_of_mcp_servers_are_secrets_with_and_without_their_scheme() -> None:
    web = McpServer(
        url="https://x.example/mcp",
        headers={"Authorization": "Bearer abc-0123456789", "X": "y" * 9},
    )
    local = McpServer(command=["x"], env={"API_TOKEN": "t0ken-t0ken", "REGION": "eu-central"})
    found = find_secrets(*collect_server_values([web, local]))
    assert {"Bearer abc-0123456789", "abc-0123456789", "y" * 9, "t0ken-t0ken"} <= set(found)
    assert "eu-central" not in found
