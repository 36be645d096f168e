"""What the doctor finds about ports, sandboxes and the patience of other programs."""

import json
import socket
from pathlib import Path

import pytest

from kapelle.cli.examine_hosts import mcp_hosts
from kapelle.cli.examine_ports import port
from kapelle.cli.examine_sandbox import sandbox
from kapelle.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KAPELLE_URL", "MCP_TOOL_TIMEOUT", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return Home(tmp_path / "home")


def test_a_port_that_somebody_else_has_is_broken(home: Home) -> None:
    assert [finding.state for finding in port(home)] == ["ok"]
    home.root.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        home.config.write_text(f"[server]\nport = {number}\n", encoding="utf-8")
        [finding] = port(home)
    assert finding.state == "broken"
    assert str(number) in finding.text
    [finding] = port(home)
    assert finding.text == f"127.0.0.1:{number} is free"


def test_sandboxes_on_the_path_are_named(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [finding.text.startswith("none of") for finding in sandbox(home)] == [True]
    (tmp_path / "podman").write_text("", encoding="utf-8")
    (tmp_path / "podman").chmod(0o755)
    [finding] = sandbox(home)
    assert (finding.state, finding.text) == ("ok", f"on PATH: podman ({tmp_path}/podman)")


def test_patient_hosts_are_no_news(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TOOL_TIMEOUT", "120000")
    assert [finding.state for finding in mcp_hosts(home)] == ["ok"]


def test_claude_code_with_little_patience_is_told(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_TOOL_TIMEOUT", "59000")
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"env": {"MCP_TOOL_TIMEOUT": "30000"}}), encoding="utf-8")
    found = [finding.text for finding in mcp_hosts(home)]
    assert any("59 s (the environment)" in text for text in found)
    assert any(f"30 s ({settings})" in text for text in found)


def test_codex_with_little_patience_for_kapelle_is_told(home: Home, tmp_path: Path) -> None:
    config = tmp_path / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        '[mcp_servers.other]\ncommand = "x"\ntool_timeout_sec = 5\n'
        '[mcp_servers.tasks]\ncommand = "kapelle"\nargs = ["mcp"]\ntool_timeout_sec = 30\n',
        encoding="utf-8",
    )
    [finding] = mcp_hosts(home)
    assert finding.state == "warning"
    assert f"Codex gives tools 30 s ({config})" in finding.text
    assert "mcp_servers.tasks.tool_timeout_sec" in (finding.hint or "")


@pytest.mark.parametrize("text", ["{", "[]", '{"env": 3}', '{"env": {"MCP_TOOL_TIMEOUT": []}}'])
def test_what_others_wrote_badly_is_their_affair(home: Home, tmp_path: Path, text: str) -> None:
    for path in (tmp_path / ".claude/settings.json", tmp_path / ".codex/config.toml"):
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
    assert [finding.state for finding in mcp_hosts(home)] == ["ok"]
