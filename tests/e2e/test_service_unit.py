"""`kapelle service`: what systemd and launchd are told, and that a daemon comes of it."""

import json
import os
import plistlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kapelle.cli.daemon import Unit
from kapelle.home import Home
from tests.e2e.support.instance import Instance

# A systemctl that notes what it is told, and knows what is enabled.
_SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$HOME/told"
case "$2" in
  enable) [ -e "$HOME/refuse" ] && { echo "no bus" >&2; exit 1; }; touch "$HOME/active";;
  disable) rm -f "$HOME/active";;
  is-active) [ -e "$HOME/active" ];;
esac
"""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """A home with a strange name, and a systemctl of our own; no daemon runs."""
    instance = Instance(tmp_path / "ho me 100%$x")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "systemctl").write_text(_SYSTEMCTL, encoding="utf-8")
    (tools / "systemctl").chmod(0o755)
    instance.env["PATH"] = f"{tools}:{instance.env['PATH']}"
    try:
        yield instance
    finally:
        instance.destroy()


def _unit(instance: Instance) -> Path:
    [path] = Path(instance.env["HOME"], ".config/systemd/user").iterdir()
    return path


def _section(text: str, key: str) -> list[str]:
    """The words of a setting of a unit, as systemd reads them."""
    lines = [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(" ".join(lines))]


def test_it_is_installed_reported_and_uninstalled(instance: Instance) -> None:
    assert instance.cli("service", "status").returncode == 1
    shown = instance.cli("service", "install", "--print", check=True).stdout
    assert not Path(instance.env["HOME"], ".config").exists()
    installed = instance.cli("service", "install", check=True)
    assert installed.stdout.strip() == str(_unit(instance))
    assert _unit(instance).read_text(encoding="utf-8") == shown
    told = Path(instance.env["HOME"], "told").read_text(encoding="utf-8").splitlines()
    assert told == ["--user daemon-reload", f"--user enable --now {_unit(instance).name}"]
    status = instance.cli("service", "status", "--json", check=True)
    assert json.loads(status.stdout)["active"]
    instance.cli("service", "uninstall", check=True)
    again = instance.cli("service", "uninstall")
    assert again.returncode == 2
    assert "is not installed" in again.stderr


def test_a_manager_that_refuses_leaves_nothing_behind(instance: Instance) -> None:
    Path(instance.env["HOME"], "refuse").touch()
    refused = instance.cli("service", "install")
    assert refused.returncode == 2
    assert "systemctl refused: no bus" in refused.stderr
    assert "--print" in refused.stderr
    assert not list(Path(instance.env["HOME"], ".config/systemd/user").iterdir())


def test_what_the_unit_says_starts_the_daemon_and_takes_over_from_another(
    instance: Instance,
) -> None:
    instance.start()
    before = instance.get("/daemon")["pid"]
    unit = instance.cli("service", "install", "--print", check=True).stdout
    environment = dict(word.split("=", 1) for word in _section(unit, "Environment"))
    assert environment["KAPELLE_HOME"] == str(instance.home.root)
    with instance.home.log.open("ab") as log:
        started = subprocess.Popen(
            _section(unit, "ExecStart"), env=environment, stderr=log, cwd="/"
        )
    try:
        assert instance.get("/daemon")["pid"] == before
        instance.kill()
        instance.process = started
        instance.await_ready()
        assert instance.get("/daemon")["pid"] == started.pid
    finally:
        started.kill()
        started.wait()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(instance: Instance, tmp_path: Path) -> None:
    unit = instance.cli("service", "install", "--print", check=True).stdout
    path = tmp_path / "kapelle.service"
    path.write_text(unit, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(path)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert str(path) not in done.stderr, done.stderr


def test_launchd_is_told_the_same(tmp_path: Path) -> None:
    unit = Unit(Home(tmp_path / "home"), {"HOME": "/Users/me", "PATH": "/bin"}, launchd=True)
    assert unit.path.parent == Path("/Users/me/Library/LaunchAgents")
    facts = plistlib.loads(unit.text.encode())
    assert facts["ProgramArguments"][1:] == ["-P", "-m", "kapelle.daemon", "--wait"]
    assert facts["KeepAlive"] == {"SuccessfulExit": False}
    assert facts["EnvironmentVariables"]["KAPELLE_HOME"] == str(tmp_path / "home")
