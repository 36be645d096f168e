import os
import time
from pathlib import Path

import pytest
from tests.e2e.support.repositories import make_repository

from kapelle.cli.doctor import (
    examine_config,
    examine_daemon,
    examine_database,
    examine_disk,
    examine_git,
)
from kapelle.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAPELLE_HOME", str(tmp_path))
    monkeypatch.delenv("KAPELLE_URL", raising=False)
    return Home(tmp_path)


def test_a_file_that_is_no_database_is_broken(home: Home) -> None:
    assert list(examine_database(home)) == []
    home.database.write_bytes(b"garbage")
    [finding] = examine_database(home)
    assert finding.state == "broken"
    assert "damaged" in finding.text


def test_why_the_last_daemon_gave_up_is_told(home: Home) -> None:
    home.database.write_bytes(b"")
    said = "2026-01-01 00:00:00,000 INFO x\nkapelle: The database x is damaged: y\nPage 7: z.\n"
    home.log.write_text(said, encoding="utf-8")
    [finding] = examine_daemon(home)
    assert finding.state == "broken"
    assert "The database x is damaged: y Page 7: z." in finding.text


def test_a_failure_that_may_be_mended_is_only_a_warning(home: Home) -> None:
    home.log.write_text("kapelle: config.toml is wrong.\n", encoding="utf-8")
    os.utime(home.log, (1, 1))
    home.config.write_text("", encoding="utf-8")
    assert [finding.state for finding in examine_daemon(home)] == ["warning"]


def test_a_daemon_that_stopped_in_order_is_no_news(home: Home) -> None:
    home.log.write_text("2026-01-01 00:00:00,000 INFO kapelle stopped\n", encoding="utf-8")
    assert [finding.state for finding in examine_daemon(home)] == ["ok"]


def test_a_broken_config_is_to_be_edited(home: Home) -> None:
    home.config.write_text("a = = 1\n", encoding="utf-8")
    [finding] = examine_config(home)
    assert "line 1" in finding.text
    assert finding.hint == f"Edit {home.config}."


def test_a_full_disk_is_never_fine(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.config.write_text("[limits]\nmin_free_disk_mb = 0\n", encoding="utf-8")
    usage = type("Usage", (), {"free": 5_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert examine_disk(home.root).state == "warning"


def test_a_pipe_for_the_own_configuration_of_git_is_named_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(home.root / "repo")
    monkeypatch.chdir(home.root / "repo")
    monkeypatch.setenv("HOME", str(home.root))
    os.mkfifo(home.root / ".gitconfig")
    began = time.monotonic()
    assert [finding.state for finding in examine_git(home)] == ["ok", "broken"]
    assert time.monotonic() - began < 10
