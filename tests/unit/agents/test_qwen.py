"""Qwen Code: how it is called, and what its recorded output means."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.adapters.qwen import QwenAgent
from kapelle.agents.base import LONGEST_ARGUMENT, AgentCommand, AgentRequest
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify, classify_event
from kapelle.agents.summary import complete_summary, summarise
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

SESSION = "2103e060-bb9c-4bc7-b1a8-ea23d8c53bdd"
OK = Exit(kind="exited", code=0)
FAILED = Exit(kind="exited", code=1)
INIT = (
    '{"type":"system","subtype":"init","uuid":"' + SESSION + '","session_id":"' + SESSION + '",'
    '"cwd":"/w","tools":["edit"],"mcp_servers":[{"name":"bad","status":"disconnected"}],'
    '"model":"m1","permission_mode":"yolo","qwen_code_version":"0.24.4"}'
)
GOAL = (
    '{"type":"stream_event","uuid":"8","session_id":"2","parent_tool_use_id":null,"event":'
    '{"type":"goal_state","goal_state":{"v":2,"goal":null,"activity":"idle"}}}'
)
CALLS = (
    '{"type":"assistant","uuid":"9","session_id":"2","parent_tool_use_id":null,"message":{"id":"9",'
    '"type":"message","role":"assistant","model":"m1","content":[{"type":"tool_use","id":"call_7",'
    '"name":"run_shell_command","input":{"command":"ls"}}],"stop_reason":"tool_use","usage":'
    '{"input_tokens":1100,"output_tokens":60,"cache_read_input_tokens":0,"total_tokens":1160}}}'
)
RETURNS = (
    '{"type":"user","uuid":"d","session_id":"2","parent_tool_use_id":null,"message":{"role":"user",'
    '"content":[{"type":"tool_result","tool_use_id":"call_7","is_error":true,"content":"a.txt"}]}}'
)
DONE = (
    '{"type":"result","subtype":"success","uuid":"4","session_id":"2","is_error":false,'
    '"num_turns":1,"result":"Resumed.","usage":{"input_tokens":5400,"output_tokens":210,'
    '"cache_read_input_tokens":0,"total_tokens":5610},"permission_denials":[]}'
)
RETRY = (
    '{"type":"system","subtype":"retry","uuid":"2","session_id":"c","parent_tool_use_id":null,"data":'
    '{"reason":"retry","attempt":1,"maxRetries":10,"delayMs":60000,"discardedToolCalls":0}}'
)
GONE = "No saved session found with ID 00000000-0000-4000-8000-000000000000. Run `qwen --resume`"


def noted(tokens: int, output: int, cached: int = 0, **more: Any) -> str:
    """A line of the session's own file."""
    told = {
        "event.name": "qwen-code.api_response",
        "model": "m1",
        "input_token_count": tokens,
        "output_token_count": output,
        "cached_content_token_count": cached,
    }
    fork = {"forkedFrom": more.pop("forked")} if "forked" in more else {}
    line = {"uuid": "9a", "sessionId": SESSION, "type": "system", "subtype": "ui_telemetry", **fork}
    return json.dumps({**line, "systemPayload": {"uiEvent": {**told, **more}}})


def refused(message: str) -> str:
    end = {"type": "result", "subtype": "error_during_execution", "is_error": True, "num_turns": 1}
    return json.dumps({**end, "error": {"message": message}, "usage": {"input_tokens": 0}})


def agent(**more: Any) -> QwenAgent:
    return QwenAgent("qwen", AgentSettings(program=sys.executable, **more))


def build(tmp_path: Path, prompt: str = "Do it", own: Any = None, **more: Any) -> AgentCommand:
    qwen = agent(**(own or {}))
    return qwen.command(AgentRequest(prompt, tmp_path, tmp_path / "prompt", qwen.settings, **more))


def failure(*lines: str, exit: Exit = FAILED, stderr: str = "") -> Failure:
    summary = summarise(agent(), lines)
    verdict = agent().judge(summary, exit, stderr)
    assert not verdict.success
    return verdict.failure or classify(summary, exit, stderr)


class TestCommand:
    @pytest.mark.parametrize("prompt", ["--help", "-", "$& {model}", "x" * 1_000_000])
    def test_the_prompt_goes_by_stdin_alone(self, tmp_path: Path, prompt: str) -> None:
        command = build(tmp_path, prompt)
        assert command.stdin == prompt.encode()
        assert command.argv[1:] == ["--yolo", "-o", "stream-json"]

    def test_options(self, tmp_path: Path) -> None:
        own = {"model": "m1", "extra_args": ["-d"], "base_url": "http://x/v1"}
        more: Any = {"session_id": SESSION, "fork": True, "max_turns": 7, "system_prompt": "--help"}
        argv = build(tmp_path, own=own, **more).argv[4:]
        assert argv[:4] == ["--auth-type", "openai", "--openai-base-url", "http://x/v1"]
        assert argv[4:9] == ["-m", "m1", "--resume", SESSION, "--fork-session"]
        assert argv[9:] == ["--max-session-turns", "7", "--append-system-prompt=--help", "-d"]

    def test_a_stored_key_is_used_whatever_its_settings_say(self, tmp_path: Path) -> None:
        command = build(tmp_path, credential="sk-0123456789")
        assert command.argv[4:] == ["--auth-type", "openai"]
        assert command.env["OPENAI_API_KEY"] == "sk-0123456789"

    def test_defaults_that_yield_to_the_users_settings(self, tmp_path: Path) -> None:
        command = build(tmp_path)
        path = tmp_path / "qwen-defaults.json"
        assert command.env["QWEN_CODE_SYSTEM_DEFAULTS_PATH"] == str(path)
        defaults = json.loads(command.files[path.name])
        assert defaults["security"]["auth"]["selectedType"] == "openai"
        assert defaults["model"]["generationConfig"]["maxRetries"] == 0
        assert command.env["QWEN_CODE_NO_RELAUNCH"] == "true"

    def test_a_system_prompt_that_fits_no_argument_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(AgentMisconfigured, match="bytes"):
            build(tmp_path, system_prompt="x" * (LONGEST_ARGUMENT + 1))

    def test_mcp_servers_and_their_secrets_are_in_a_file(self, tmp_path: Path) -> None:
        servers = {
            "lock": McpServer(command=["lock", "-v"], env={"KEY": "s3cret"}),
            "web": McpServer(url="http://127.0.0.1:1/mcp", headers={"Authorization": "s3cret"}),
        }
        command = build(tmp_path, mcp_servers=servers)
        assert command.argv[4:6] == ["--mcp-config", str(tmp_path / "qwen-mcp.json")]
        assert not any("s3cret" in argument for argument in command.argv)
        written = json.loads(command.files["qwen-mcp.json"])["mcpServers"]
        assert written["lock"]["env"] == {"KEY": "s3cret"}
        assert written["lock"]["alwaysLoadTools"] is True
        assert written["web"]["httpUrl"] == "http://127.0.0.1:1/mcp"

    @pytest.mark.parametrize(
        ("env", "expected"),
        [
            ({"HOME": "/h"}, "/h/.qwen"),
            ({"HOME": "/h", "QWEN_HOME": "/q"}, "/q"),
            ({"HOME": "/h", "QWEN_HOME": "/q", "QWEN_RUNTIME_DIR": "/[r]"}, "/[[]r]"),
        ],
    )
    def test_its_sessions_are_where_the_user_keeps_them(
        self, tmp_path: Path, env: dict[str, str], expected: str
    ) -> None:
        assert (
            build(tmp_path, environ=env).side_log
            == f"{expected}/projects/*/chats/{{session}}.jsonl"
        )


class TestOutput:
    def test_what_it_says_and_does(self) -> None:
        events = [e for line in (INIT, GOAL, CALLS, RETURNS, DONE) for e in agent().parse(line)]
        absent = events.pop(2)
        assert (absent.kind, absent.name) == ("notice", "tool")
        assert events == [
            AgentEvent("session", SESSION),
            AgentEvent("model", "m1"),
            AgentEvent("tool_call", name="run_shell_command", data={"command": "ls"}),
            AgentEvent("tool_result", "a.txt", data={"is_error": True}),
            AgentEvent("result", "Resumed."),
        ]

    def test_usage_is_what_its_session_file_notes(self) -> None:
        told = summarise(agent(), [INIT, CALLS, DONE])
        assert told.usage is None
        sub = noted(200, 2, subagent_name="general-purpose")
        side = [noted(1000, 10, 600), sub, noted(2000, 20), noted(9, 9, forked={"sessionId": "x"})]
        other = '{"sessionId":"x","type":"assistant","message":{"role":"model"},"usageMetadata":{}}'
        summary = complete_summary(told, summarise(agent(), [*side, other]))
        assert summary.usage == Usage(
            input_tokens=3200, output_tokens=32, cached_tokens=600, turns=2
        )
        assert agent().judge(summary, OK, "").success

    def test_a_refusal_is_told_by_its_session_file_alone(self) -> None:
        error = {
            "event.name": "qwen-code.api_error",
            "error_message": "429 slow",
            "status_code": 429,
        }
        line = json.dumps({"sessionId": "x", "type": "system", "systemPayload": {"uiEvent": error}})
        assert agent().parse(line) == [AgentEvent("notice", "429 slow", data={"status": 429})]

    def test_a_retry_with_a_pause_is_about_a_limit(self) -> None:
        (notice,) = agent().parse(RETRY)
        found = classify_event(notice)
        assert found is not None
        assert found.kind == "rate_limit"
        bare = '{"type":"system","subtype":"retry","data":{"reason":"retry"}}'
        assert agent().parse(bare) == []

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("[API Error: 401 scripted 401]", "authentication"),
            ("[API Error: 404 The model `m1` does not exist]", "capability"),
            ("[API Error: 429 x]\nPossible quota limitations in place", "rate_limit"),
            ("[API Error: 500 scripted 500]", "overloaded"),
            ("[API Error: 529 scripted 529]", "overloaded"),
            (
                "[API Error: 400 This model's maximum context length is 1 tokens]",
                "context_overflow",
            ),
            ("[API Error: Context is too large to send safely after x]", "context_overflow"),
            ("[API Error: Connection error. (cause: fetch failed)]", "environment"),
            ("No auth type is selected. Please configure an auth type", "authentication"),
            ("Missing API key for OpenAI-compatible auth. Set settings", "authentication"),
            ('The command "/help" is not supported in this mode.', "task"),
        ],
    )
    def test_an_error_is_named(self, message: str, expected: str) -> None:
        assert failure(INIT, refused(message)).kind == expected

    @pytest.mark.parametrize("code", [53, 55])
    def test_a_limit_has_an_exit_code_and_no_result(self, code: int) -> None:
        assert failure(INIT, CALLS, exit=Exit(kind="exited", code=code)).kind == "limit"

    def test_a_session_that_is_gone(self) -> None:
        assert failure(stderr=GONE).kind == "session_lost"
        assert failure(INIT, CALLS, stderr=GONE).kind == "crash"

    def test_a_signal_after_the_result_is_no_success(self) -> None:
        lines = [INIT, DONE]
        assert failure(*lines, exit=Exit(kind="signaled", signal=15)).kind == "crash"
