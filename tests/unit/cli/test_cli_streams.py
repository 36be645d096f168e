"""Streams and places that cannot be used end in a sentence, never in an internal error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def shell(line: str, home: Path | str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a line in which $K is the command line."""
    environment = {**os.environ, "KAPELLE_HOME": str(home), "K": f"{sys.executable} -m kapelle"}
    for name in ("KAPELLE_URL", "KAPELLE_TOKEN"):
        environment.pop(name, None)
    return subprocess.run(
        ["sh", "-c", line],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_error(redirection: str, tmp_path: Path) -> None:
    done = shell(f"$K config path {redirection}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_stdin_holds_no_prompt(tmp_path: Path) -> None:
    done = shell("$K run - <&-", tmp_path)
    assert done.returncode == 2
    assert "There is no prompt on stdin." in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["config path", "--help", "--version", "config path --json"])
def test_a_full_stdout_is_said_in_a_sentence(command: str, tmp_path: Path) -> None:
    done = shell(f"$K {command} >/dev/full", tmp_path)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "internal error" not in done.stderr
    assert not (tmp_path / "cli-error.log").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_talk_that_nobody_can_read_changes_nothing(tmp_path: Path) -> None:
    assert shell("$K config set default_agent rehearsal 2>/dev/full", tmp_path).returncode == 0


@pytest.mark.parametrize("command", ["list", "config set default_agent rehearsal"])
def test_a_home_that_is_a_file_is_named(command: str, tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("", encoding="utf-8")
    done = shell(f"$K {command}", home)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {home}")
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("command", ["demo --dir .", "init"])
def test_a_deleted_directory_is_said_to_be_gone(command: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(f"rmdir ../gone; $K {command}", tmp_path / "home", cwd=tmp_path / "gone")
    assert done.returncode == 2
    assert "The current directory no longer exists." in done.stderr


def test_a_playbook_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = shell(f"TMPDIR={tmp_path}/tmp $K demo --playbook nofile", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "nofile is not a file" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_completion_is_printed_and_never_installed(tmp_path: Path) -> None:
    assert "install-completion" not in shell("$K --help", tmp_path).stdout
    assert shell("$K --install-completion", tmp_path).returncode == 2
    asked = "COMP_WORDS='kapelle stat' COMP_CWORD=1 _KAPELLE_COMPLETE=bash_complete $K"
    assert shell(asked, tmp_path).stdout.split() == ["plain,status"]
