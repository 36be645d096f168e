"""The state directory: its paths, its privacy, and where a repository's config is looked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kapelle.domain.errors import InvalidInput
from kapelle.home import Home, write_private
from kapelle.settings.trust import find_executable


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_kapelle_home_holds_the_config_too(tmp_path: Path) -> None:
    home = Home.default({"KAPELLE_HOME": str(tmp_path)})
    assert home.root == tmp_path
    assert home.config == tmp_path / "config.toml"


def test_a_relative_kapelle_home_is_made_absolute() -> None:
    assert Home.default({"KAPELLE_HOME": "here"}).root == Path.cwd() / "here"


def test_without_kapelle_home_state_and_config_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = Home.default({})
    assert home.root == tmp_path / "state" / "kapelle"
    assert home.config == tmp_path / "config" / "kapelle" / "config.toml"


def test_directories_are_private_even_if_they_were_not(tmp_path: Path) -> None:
    root = tmp_path / "home"
    root.mkdir(mode=0o755)
    home = Home(root)
    home.create()
    home.create()
    for directory in (root, home.backups, home.attempts, home.worktrees, home.runner, home.secrets):
        assert mode(directory) == 0o700


def test_a_short_socket_path_is_in_the_home(tmp_path: Path) -> None:
    assert Home(Path("/h")).socket == Path("/h/daemon.sock")


def test_a_long_socket_path_moves_to_a_private_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home, other = Home(tmp_path / ("d" * 100)), Home(tmp_path / ("e" * 100))
    home.create()
    assert home.socket.parent.parent == tmp_path
    assert home.socket != other.socket
    assert mode(home.socket.parent) == 0o700


@pytest.mark.parametrize("kind", ["file", "shared directory"])
def test_a_root_that_cannot_be_private_is_refused(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    if kind == "file":
        root.write_text("", encoding="utf-8")
    else:
        root.mkdir()
        root.chmod(0o1777)
    with pytest.raises(InvalidInput, match=str(root)) as caught:
        Home(root).create()
    assert "KAPELLE_HOME" in (caught.value.hint or "")


def test_write_private_replaces_at_once_and_keeps_links(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles" / "config.toml", tmp_path / "config.toml"
    write_private(target, b"old")
    link.symlink_to(target)
    write_private(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert mode(target) == 0o600
    assert os.listdir(target.parent) == ["config.toml"]


def repository_config(home: Home, directory: Path) -> Path | None:
    return find_executable(home, directory).config


def config(directory: Path) -> Path:
    path = directory / ".kapelle" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("", encoding="utf-8")
    return path


def test_the_nearest_repository_config_is_found(tmp_path: Path) -> None:
    config(tmp_path)
    repository = tmp_path / "repository"
    expected = config(repository)
    deep = repository / "a" / "b"
    deep.mkdir(parents=True)
    assert repository_config(Home(tmp_path / "home"), deep) == expected


def test_the_search_ends_at_the_git_toplevel(tmp_path: Path) -> None:
    config(tmp_path)
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    assert repository_config(Home(tmp_path / "home"), tmp_path / "repository") is None


def test_a_home_called_dot_kapelle_is_not_a_repository_config(tmp_path: Path) -> None:
    config(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    assert repository_config(Home(tmp_path / ".kapelle"), work) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_somebody_elses_config_above_is_refused(tmp_path: Path) -> None:
    os.chown(config(tmp_path), 12345, 12345)
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(InvalidInput, match="another user"):
        repository_config(Home(tmp_path / "home"), work)


def test_importing_home_is_cheap() -> None:
    heavy = "{'pydantic', 'platformdirs', 'tempfile', 'hashlib'} & set(sys.modules)"
    code = f"import sys, kapelle.home; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
