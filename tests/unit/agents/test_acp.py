"""The acp adapter: its command, what it knows about well-known agents, and its choices."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.adapters.acp import AcpAgent
from kapelle.agents.base import AgentCommand, AgentRequest
from kapelle.agents.bridges.acp import Job
from kapelle.agents.bridges.acp.session import choice
from kapelle.agents.bridges.acp.updates import ToolCallState, Updates
from kapelle.agents.events import JsonObject
from kapelle.agents.failures import classify_event
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.specs import McpServer
from kapelle.settings import AgentSettings

CLAUDE_MODES = {
    "modes": {
        "currentModeId": "default",
        "availableModes": [
            {"id": "acceptEdits", "name": "Accept Edits"},
            {"id": "bypassPermissions", "name": "Bypass Permissions"},
        ],
    }
}
OPENCODE = {
    "configOptions": [
        {
            "id": "model",
            "category": "model",
            "type": "select",
            "currentValue": "scripted/m1",
            "options": [{"group": "g", "options": [{"value": "scripted/m1", "name": "M1"}]}],
        },
        {"id": "mode", "type": "select", "currentValue": "build", "options": [{"value": "plan"}]},
    ]
}  # fmt: skip
CODEX_MODELS = {
    "models": {
        "currentModelId": "gpt-5.5[medium]",
        "availableModels": [
            {"modelId": "gpt-6-sol[low]", "name": "6 Sol (low)"},
            {"modelId": "gpt-6-sol[medium]", "name": "6 Sol (medium)"},
        ],
    }
}


def ordered(tmp_path: Path, settings: AgentSettings, **more: Any) -> AgentCommand:
    request = AgentRequest("--help $& {model}", tmp_path, tmp_path / "prompt", settings, **more)
    return AcpAgent("mine", settings).command(request)


def program(path: Path, name: str) -> AgentSettings:
    file = path / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return AgentSettings(command=[name], env={"PATH": str(path)}, extra_args=["--last"])


def test_the_bridge_gets_the_command_and_everything_private_as_a_file(tmp_path: Path) -> None:
    settings = program(tmp_path, "tool").model_copy(update={"permissions": "ask", "mode": "plan"})
    server = McpServer(command=["box"], env={"KEY": "secret"})
    command = ordered(
        tmp_path,
        settings,
        model="m",
        session_id="s",
        system_prompt="sys",
        mcp_servers={"b": server},
    )
    job = str(tmp_path / "acp.json")
    assert command.argv[0] == sys.executable
    assert command.argv[3:] == [
        "kapelle.agents.bridges.acp", "--job", job, "--", str(tmp_path / "tool"), "--last"
    ]  # fmt: skip
    assert command.stdin == b"--help $& {model}"
    read = Job.of_text(command.files["acp.json"])
    assert (read.permissions, read.mode, read.model, read.session_id) == ("ask", "plan", "m", "s")
    assert read.mcp_servers["b"]["env"] == {"KEY": "secret"}
    assert "secret" not in json.dumps(command.argv)


def test_short_forms_are_written_out(tmp_path: Path) -> None:
    program(tmp_path, "gemini")
    settings = AgentSettings(command=["gemini"], env={"PATH": str(tmp_path)})
    command = ordered(tmp_path, settings, credential="key")
    assert command.argv[-2:] == [str(tmp_path / "gemini"), "--acp"]
    assert command.env["GEMINI_CLI_NO_RELAUNCH"] == "true"
    assert command.env["GEMINI_API_KEY"] == "key"


def test_a_provider_is_named_where_the_agent_takes_it(tmp_path: Path) -> None:
    settings = program(tmp_path, "claude-agent-acp").model_copy(update={"base_url": "http://x"})
    assert ordered(tmp_path, settings).env["ANTHROPIC_BASE_URL"] == "http://x"
    settings = program(tmp_path, "codex-acp").model_copy(update={"base_url": "http://x"})
    with pytest.raises(AgentMisconfigured, match="cannot set the base URL"):
        ordered(tmp_path, settings)


def test_a_missing_command_or_program_is_told(tmp_path: Path) -> None:
    assert AcpAgent("mine", AgentSettings()).installed() is None
    with pytest.raises(AgentMisconfigured, match="has no command"):
        ordered(tmp_path, AgentSettings())
    with pytest.raises(AgentMisconfigured, match="'nothing-here'"):
        ordered(tmp_path, AgentSettings(command=["nothing-here"]))


def test_what_is_known_of_an_agent_goes_by_its_program() -> None:
    claude = AcpAgent("a", AgentSettings(command=["/opt/bin/claude-agent-acp"]))
    assert claude.capabilities.cost
    assert "CLAUDECODE" in claude.drops
    other = AcpAgent("b", AgentSettings(command=["other"]))
    assert not other.access.needed
    assert not other.capabilities.fork


@pytest.mark.parametrize(
    ("permissions", "answer", "decision"),
    [
        ("allow", None, "allow"),
        ("allow", "stop", "allow"),
        ("deny", "yes", "deny"),
        ("ask", None, "ask"),
        ("ask", " Allow\n", "allow"),
        ("ask", "allow nothing", "deny"),
        ("ask", "yes but not rm", "deny"),
        ("ask", "nothing of the kind", "deny"),
    ],
)
def test_an_answer_settles_only_what_is_asked(
    permissions: str, answer: str | None, decision: str
) -> None:
    assert Job(permissions=permissions, answer=answer).decision == decision


def test_modes_are_found_in_both_places() -> None:
    modes = choice(JsonObject(CLAUDE_MODES), "mode")
    assert modes is not None
    assert (modes.method, modes.most_autonomous()) == ("session/set_mode", "bypassPermissions")
    assert modes.pick("accept edits") == "acceptEdits"
    modes = choice(JsonObject(OPENCODE), "mode")
    assert modes is not None
    assert (modes.method, modes.params) == ("session/set_config_option", {"configId": "mode"})
    assert modes.most_autonomous() is None


def test_models_are_found_in_both_places_with_variants_and_in_groups() -> None:
    models = choice(JsonObject(CODEX_MODELS), "model")
    assert models is not None
    assert (models.method, models.key) == ("session/set_model", "modelId")
    assert models.pick("gpt-6-sol") == "gpt-6-sol[medium]"
    assert models.pick("gpt-7") is None
    models = choice(JsonObject(OPENCODE), "model")
    assert models is not None
    assert models.options == {"scripted/m1": "M1"}
    assert (
        choice(JsonObject({"models": 7, "configOptions": ["x", {"id": "model"}]}), "model") is None
    )


CALL, UPDATE = {"sessionUpdate": "tool_call"}, {"sessionUpdate": "tool_call_update"}
CLAUDE_TOOL = [
    CALL | {"title": "Write", "status": "pending", "rawInput": {}}
    | {"_meta": {"claudeCode": {"toolName": "Write"}}},
    UPDATE | {"rawInput": {"file_path": "a"}, "title": "Write a"},
    UPDATE | {"status": "completed", "rawOutput": "ok"},
]  # fmt: skip
CODEX_EDIT = [
    CALL | {"kind": "edit", "title": "Editing files", "status": "in_progress"}
    | {"content": [{"type": "diff", "path": "/w/a.txt"}]},
    UPDATE | {"status": "failed"},
]  # fmt: skip
CODEX_SHELL = [
    CALL | {"name": "exec_command", "status": "in_progress", "rawInput": {"command": "ls"}}
    | {"content": 3, "locations": [None]},
    UPDATE | {"status": "completed", "_meta": {"terminal_output_delta": {"data": "a.txt"}}},
]  # fmt: skip
OPENCODE_TOOL = [
    CALL | {"title": "bash", "status": "pending", "rawInput": {"cwd": "/"}},
    UPDATE | {"status": "in_progress", "rawInput": {"command": "ls"}},
    UPDATE | {"status": "completed", "rawOutput": {"output": "a"}},
]


@pytest.mark.parametrize(
    ("updates", "name", "data", "text"),
    [
        (CLAUDE_TOOL, "Write", {"file_path": "a"}, "ok"),
        (CODEX_EDIT, "edit", {"title": "Editing files", "paths": ["/w/a.txt"]}, ""),
        (CODEX_SHELL, "exec_command", {"command": "ls"}, "a.txt"),
        (OPENCODE_TOOL, "bash", {"command": "ls"}, "a"),
    ],
)
def test_tool_calls_are_told_once_with_their_input_and_output(
    updates: list[dict[str, Any]],
    name: str,
    data: dict[str, Any],
    text: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tool = ToolCallState(JsonObject(updates[0]))
    for update in updates:
        tool.take(JsonObject(update))
    call, result = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (call["kind"], call["name"], call["data"]) == ("tool_call", name, data)
    assert (result["kind"], result["name"], result.get("text", "")) == ("tool_result", name, text)


def test_a_call_of_copilot_is_told_when_it_begins(capfd: pytest.CaptureFixture[str]) -> None:
    updates = Updates("Copilot")
    call = {"status": "pending", "kind": "execute", "rawInput": {"command": "sleep 8"}}
    updates.take(JsonObject(CALL | call))
    kinds = [json.loads(line)["kind"] for line in capfd.readouterr().out.splitlines()]
    assert kinds[-1] == "tool_call"


def retried(program: str, line: str) -> list[tuple[str, object]]:
    """What a line of a known agent's standard error, or of its side log, says of a refusal."""
    agent = AcpAgent("mine", AgentSettings(command=[program]))
    found = agent.parse_stderr(line) or agent.parse(line)
    failures = [(classify_event(event), event) for event in found if event.kind == "notice"]
    return [(str(failure.kind), failure.retry_at) for failure, _ in failures if failure]


def test_a_refusal_that_an_agent_keeps_to_itself_is_read_where_it_notes_it(tmp_path: Path) -> None:
    gemini = "Attempt 3 failed with status 429. Retrying with backoff... _ApiError: {"
    assert retried("gemini", gemini) == [("rate_limit", None)]
    assert retried("gemini", "YOLO mode is enabled.") == []
    logged = (
        'timestamp=2026-11-16T07:22:39Z level=ERROR message="stream error" a=b error.error="{}"'
    )
    for words, kind in (("slow down", "rate_limit"), ("scripted 429", "rate_limit"),
                        ("Internal error", "overloaded")):  # fmt: skip
        assert retried("opencode", logged.format(f"AI_APICallError: {words}")) == [(kind, None)]
    limit = "AI_APICallError: Resource has been exhausted (e.g. check quota)."
    assert retried("opencode", logged.format(limit)) == [("rate_limit", None)]
    noted = {"event.name": "qwen-code.api_error", "status_code": 429, "error_message": "no"}
    chat = {"sessionId": "s", "systemPayload": {"uiEvent": noted}}
    assert retried("qwen", json.dumps(chat)) == [("rate_limit", None)]
    facts = {"http_status": 429, "retry_after_ms": 600_000}
    log = "2026-11-16T06:40:51.343Z [WARNING] [rust:model] Model provider request failed "
    ((kind, until),) = retried("copilot", log + json.dumps(facts))
    assert (kind, until is not None) == ("rate_limit", True)
    assert retried("copilot", "2026-11-16T06:40:51.343Z [INFO] Rate limit exceeded") == []
    # Where they note it is said to those that watch them.
    for name in ("gemini", "qwen", "copilot"):
        assert ordered(tmp_path, program(tmp_path, name)).side_log
    assert "--print-logs" in ordered(tmp_path, program(tmp_path, "opencode")).argv
    assert ordered(tmp_path, program(tmp_path, "claude-agent-acp")).env["CLAUDE_CODE_MAX_RETRIES"]


def test_copilot_gets_servers_and_model_beside_the_protocol(tmp_path: Path) -> None:
    server = McpServer(command=["box"], env={"KEY": "secret"})
    settings = program(tmp_path, "copilot")
    command = ordered(tmp_path, settings, model="gpt-4.1", mcp_servers={"b": server})
    job = Job.of_text(command.files["acp.json"])
    assert (job.mcp_servers, job.model, command.env["COPILOT_MODEL"]) == ({}, None, "gpt-4.1")
    assert f"--additional-mcp-config=@{tmp_path / 'copilot-mcp.json'}" in command.argv
    assert "secret" in command.files["copilot-mcp.json"]
