"""Claude Code's own validation accepts the plugin and the marketplace, and installs from it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.agents.programs import program

ROOT = Path(__file__).parents[3]


@pytest.fixture
def claude(tmp_path: Path) -> Any:
    """Calls the program in a home of its own."""
    path = program("claude")
    if isinstance(path, str):
        pytest.skip(path)

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        command = [str(path), "plugin", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    return call


@pytest.mark.parametrize(
    ("place", "options"),
    [("plugin", ["--strict", "--profile", "directory"]), (".claude-plugin", ["--strict"])],
)
def test_it_passes_the_strict_validation(claude: Any, place: str, options: list[str]) -> None:
    path = ROOT / place
    if place == ".claude-plugin":
        path /= "marketplace.json"
    done = claude("validate", *options, str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout


def test_it_is_installed_from_the_marketplace(claude: Any, tmp_path: Path) -> None:
    for arguments in (["marketplace", "add", str(ROOT)], ["install", "kapelle@kapelle"]):
        done = claude(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    listed = claude("list", "--json")
    (entry,) = [entry for entry in json.loads(listed.stdout) if "kapelle" in entry["id"]]
    assert entry["enabled"] is True
