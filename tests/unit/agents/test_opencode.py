"""opencode: its command and configuration, its lines as recorded, and its endings."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.adapters.opencode import OpencodeAgent
from kapelle.agents.base import AgentCommand, AgentRequest, AgentVerdict, Summary
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

OK, FAILED = Exit(kind="exited", code=0), Exit(kind="exited", code=1)
AGENT = OpencodeAgent("opencode", AgentSettings(program=sys.executable))
SESSION = "ses_e212fbe2dffeQRGLh48BmB7SoS"

KEYS = (
    "data", "tokens", "cache", "cost", "reason", "state", "statusCode", "message",
    "responseHeaders", "retry-after", "responseBody",
)  # fmt: skip


def line(kind: str, part: dict[str, Any] | None = None, **more: Any) -> str:
    head = {"type": kind, "timestamp": 1794739555612, "sessionID": SESSION}
    return json.dumps(head | ({"part": part} if part else {}) | more)


def finish(reason: str, tokens: dict[str, Any] | None = None, cost: float = 0) -> str:
    counts = {"total": 120, "input": 100, "output": 20, "cache": {"write": 0, "read": 0}}
    part = {"reason": reason, "type": "step-finish", "tokens": tokens or counts, "cost": cost}
    return line("step_finish", part)


def failed(name: str, message: str, **data: Any) -> str:
    return line("error", error={"name": name, "data": {"message": message, **data}})


START = line("step_start", {"type": "step-start"})
WRITE = line(
    "tool_use",
    {
        "type": "tool",
        "tool": "write",
        "state": {
            "status": "completed",
            "input": {"filePath": "a.txt", "content": "hi\n"},
            "output": "Wrote file successfully.",
        },
    },
)
DONE = line("text", {"type": "text", "text": "All done now."})
WORK = [START, WRITE, finish("tool-calls")]
ANSWER = [START, DONE, finish("stop")]


def judge(lines: list[str], exit: Exit = OK, stderr: str = "") -> tuple[Summary, AgentVerdict]:
    summary = summarise(AGENT, lines)
    return summary, AGENT.judge(summary, exit, "\n".join([*lines, stderr]))


def build(
    settings: dict[str, Any] | None = None, **request: Any
) -> tuple[AgentCommand, dict[str, Any]]:
    given = AgentSettings(program=sys.executable, **settings or {})
    asked = AgentRequest("--help", Path("/w"), Path("/run/1/prompt"), given, **request)
    command = OpencodeAgent("opencode", given).command(asked)
    return command, json.loads(command.env["OPENCODE_CONFIG_CONTENT"])


class TestCommand:
    def test_the_prompt_goes_by_stdin_and_the_directory_is_named(self) -> None:
        command, config = build({"extra_args": ["--variant", "high"]}, model="anthropic/opus")
        assert command.stdin == b"--help"
        assert "--help" not in command.argv
        assert command.argv[command.argv.index("--dir") + 1] == "/w"
        assert command.argv[command.argv.index("--model") + 1] == "anthropic/opus"
        assert command.argv[-2:] == ["--variant", "high"]
        assert config == {
            "permission": "allow",
            "autoupdate": False,
            "share": "disabled",
            "mcp": {},
        }

    def test_a_session_is_resumed(self) -> None:
        command, _ = build(session_id=SESSION)
        assert command.argv[command.argv.index("--session") + 1] == SESSION

    def test_a_server_of_ones_own_is_a_provider_whose_key_is_only_named(self) -> None:
        command, config = build(
            {"base_url": "http://127.0.0.1:1/v1", "model": "qwen/qwen3"}, credential="sk-secret"
        )
        assert command.argv[command.argv.index("--model") + 1] == "kapelle/qwen/qwen3"
        assert config["small_model"] == "kapelle/qwen/qwen3"
        provider = config["provider"]["kapelle"]
        assert provider["options"]["baseURL"] == "http://127.0.0.1:1/v1"
        assert provider["options"]["apiKey"] == "{env:OPENCODE_API_KEY}"
        assert list(provider["models"]) == ["qwen/qwen3"]
        assert command.env["OPENCODE_API_KEY"] == "sk-secret"
        assert "sk-secret" not in json.dumps([config, command.argv])

    def test_a_server_of_ones_own_needs_a_model(self) -> None:
        with pytest.raises(AgentMisconfigured, match="no model"):
            build({"base_url": "http://127.0.0.1:1/v1"})

    def test_a_stored_key_is_that_of_the_models_provider(self) -> None:
        _, config = build(model="anthropic/opus", credential="sk-secret")
        key = {"apiKey": "{env:OPENCODE_API_KEY}"}
        assert config["provider"] == {"anthropic": {"options": key}}

    def test_a_system_prompt_is_a_file_of_instructions(self) -> None:
        command, config = build(system_prompt="Be brief, {env:HOME}.")
        assert config["instructions"] == ["/run/1/opencode-instructions.md"]
        assert command.files == {"opencode-instructions.md": "Be brief, {env:HOME}."}

    def test_nothing_in_a_servers_values_is_filled_in_by_opencode(self) -> None:
        servers = {
            "box": McpServer(command=["box", "--x"], env={"A": "{env:HOME}{file:/etc/passwd}"}),
            "far": McpServer(url="https://far.example/mcp", headers={"X-Key": "k"}),
        }
        command, config = build(mcp_servers=servers)
        assert config["mcp"]["box"]["environment"] == {"A": "{env:HOME}{file:/etc/passwd}"}
        assert config["mcp"]["box"]["command"] == ["box", "--x"]
        assert config["mcp"]["far"]["headers"] == {"X-Key": "k"}
        text = command.env["OPENCODE_CONFIG_CONTENT"]
        assert "{env:" not in text
        assert "{file:" not in text


class TestOutput:
    def test_a_whole_run(self) -> None:
        summary, verdict = judge([*WORK, *ANSWER])
        assert (verdict.success, verdict.result) == (True, "All done now.")
        assert summary.session_id == SESSION
        assert summary.usage == Usage(input_tokens=200, output_tokens=40, turns=2)

    def test_a_tool_is_called_and_answers(self) -> None:
        call, result = AGENT.parse(WRITE)
        assert (call.kind, call.name, call.data["filePath"]) == ("tool_call", "write", "a.txt")
        assert (result.kind, result.text) == ("tool_result", "Wrote file successfully.")

    def test_cached_and_reasoning_tokens_are_part_of_their_sums(self) -> None:
        tokens = {"input": 60, "output": 15, "reasoning": 5, "cache": {"write": 10, "read": 40}}
        summary, _ = judge([finish("stop", tokens, 0.25)])
        assert summary.usage == Usage(
            input_tokens=110, output_tokens=20, cached_tokens=40, turns=1, cost_usd=0.25
        )

    def test_a_warning_between_the_lines_is_a_notice(self) -> None:
        [event] = AGENT.parse("! permission requested: bash (ls); auto-rejecting\n")
        assert event.kind == "notice"

    @given(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["step_start", "text", "tool_use", "step_finish", "error"])},
            optional={
                key: st.recursive(
                    st.none() | st.integers() | st.text() | st.floats(allow_nan=False),
                    lambda inner: (
                        st.lists(inner, max_size=2)
                        | st.dictionaries(
                            st.sampled_from(KEYS),
                            inner,
                        )
                    ),
                    max_leaves=6,
                )
                for key in ("part", "error", "timestamp", "sessionID")
            },
        ).map(json.dumps)
    )
    def test_any_value_may_be_anything(self, text: str) -> None:
        summary, _ = judge([text])
        classify(summary, FAILED, text)


class TestEndings:
    def test_a_last_step_that_calls_tools_is_no_success(self) -> None:
        _, verdict = judge(WORK)
        assert not verdict.success
        summary, verdict = judge([*ANSWER, *WORK])
        assert not verdict.success
        assert verdict.reason == "opencode ended with tool-calls, without an answer."
        assert classify(summary, OK, "").kind is FailureClass.UNKNOWN

    def test_the_middle_of_a_step_is_no_success(self) -> None:
        _, verdict = judge([*ANSWER, START])
        assert not verdict.success

    def test_an_answer_that_was_cut_off_is_no_success(self) -> None:
        _, verdict = judge([START, DONE, finish("length")])
        assert not verdict.success
        assert verdict.reason == "The model's answer ended with length."

    @pytest.mark.parametrize("exit", [FAILED, Exit(kind="signaled", signal=15), Exit(kind="lost")])
    def test_a_bad_end_is_no_success(self, exit: Exit) -> None:
        _, verdict = judge([*WORK, *ANSWER], exit)
        assert not verdict.success

    def test_a_full_context_that_was_compacted_does_not_fail_the_run(self) -> None:
        full = failed("ContextOverflowError", "This model's maximum context length is 8192 tokens.")
        summary, verdict = judge([*WORK, full, *ANSWER], FAILED)
        assert (verdict.success, verdict.result) == (True, "All done now.")
        summary, verdict = judge([*WORK, *ANSWER, full], FAILED)
        assert not verdict.success
        assert classify(summary, FAILED, "").kind is FailureClass.CONTEXT_OVERFLOW

    def test_a_session_that_is_gone(self) -> None:
        _, verdict = judge([], FAILED, "\x1b[91m\x1b[1mError: \x1b[0mSession not found")
        assert verdict.failure
        assert verdict.failure.kind is FailureClass.SESSION_LOST

    def test_an_unknown_model_is_told_by_the_log(self) -> None:
        log = (
            "timestamp=2026-11-15T10:50:28.226Z level=ERROR run=401499cc message=failed"
            ' ref=err_738b08d2 error="ProviderModelNotFoundError: Model not found: nosuch/x."'
            ' cause="ProviderModelNotFoundError: Model not found: nosuch/x.\\n    at <anonymous>"'
        )
        text = "Unexpected server error. Check server logs for details."
        _, verdict = judge([failed("UnknownError", text, ref="err_738b08d2")], FAILED, log)
        assert verdict.reason == "ProviderModelNotFoundError: Model not found: nosuch/x."
        assert verdict.failure
        assert verdict.failure.kind is FailureClass.CAPABILITY

    def test_the_log_is_not_quoted_as_its_last_words(self) -> None:
        log = 'timestamp=2026-11-15T10:50:25.193Z level=ERROR message="Failed to fetch models.dev"'
        _, verdict = judge(WORK, Exit(kind="signaled", signal=15), log)
        assert verdict.reason == "The agent was killed by SIGTERM."


class TestErrors:
    def test_a_limit_says_when_it_ends(self) -> None:
        body = {"error": {"message": "slow down", "type": "rate_limit_exceeded", "code": None}}
        error = failed(
            "APIError",
            "slow down",
            statusCode=429,
            isRetryable=True,
            responseHeaders={"retry-after": "120"},
            responseBody=json.dumps(body),
        )
        summary, verdict = judge([error], FAILED)
        assert (verdict.success, verdict.reason) == (False, "slow down")
        assert summary.session_id == SESSION
        found = classify(summary, FAILED, "")
        assert found.kind is FailureClass.RATE_LIMIT
        assert found.retry_at
        assert found.retry_at.isoformat() == "2026-11-15T10:47:55.612000+00:00"

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (401, FailureClass.AUTHENTICATION),
            (500, FailureClass.OVERLOADED),
            (529, FailureClass.OVERLOADED),
        ],
    )
    def test_a_status_tells_the_class(self, status: int, kind: FailureClass) -> None:
        summary, _ = judge([failed("APIError", "no", statusCode=status)], FAILED)
        assert classify(summary, FAILED, "").kind is kind

    def test_a_model_that_the_server_does_not_have(self) -> None:
        text = "The model `m1` does not exist"
        summary, _ = judge([failed("APIError", text, statusCode=404)], FAILED)
        assert classify(summary, FAILED, "").kind is FailureClass.CAPABILITY


def test_a_retry_in_its_log_is_a_notice_however_long_the_line_is() -> None:
    agent = OpencodeAgent("opencode", AgentSettings(program=sys.executable))
    line = (
        'timestamp=2026-11-15T11:37:40.749Z level=ERROR run=7 message="stream error" '
        'providerID=p small=false error.error="AI_APICallError: Rate limit \\"r\\" reached" x=1'
    )
    (event,) = agent.parse_stderr(line)
    assert (event.kind, event.text) == ("notice", 'AI_APICallError: Rate limit "r" reached')
    hostile = 'level=ERROR message="stream error" error.error=' * 100_000
    began = time.process_time()
    assert agent.parse_stderr(hostile) == []
    assert time.process_time() - began < 2
