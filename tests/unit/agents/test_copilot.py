"""GitHub Copilot CLI: its command, its lines and spans as recorded, and its endings."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.adapters.copilot import CopilotAgent
from kapelle.agents.base import AgentCommand, AgentRequest, AgentVerdict, Summary
from kapelle.agents.failures import classify, classify_event
from kapelle.agents.summary import summarise
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

OK, FAILED = Exit(kind="exited", code=0), Exit(kind="exited", code=1)
AGENT = CopilotAgent("copilot", AgentSettings(program=sys.executable))
SESSION = "11111111-2222-4333-8444-555555555555"
SERVER = {"base_url": "http://127.0.0.1:1/v1", "model": "m1"}

KINDS = (
    "assistant.message", "tool.execution_start", "tool.execution_complete", "model.call_failure",
    "session.error", "session.warning", "result", "span",
)  # fmt: skip
KEYS = (
    "content", "result", "error", "message", "statusCode", "errorCode", "errorType", "errorMessage",
    "exitCode", "gen_ai.operation.name", "gen_ai.usage.input_tokens",
)  # fmt: skip


def line(kind: str, data: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": kind, "data": data, "id": "x", **more})


def message(text: str, **more: Any) -> str:
    return line("assistant.message", {"model": "gpt-4.1", "content": text}, **more)


def result(code: int) -> str:
    usage = {"premiumRequests": 0, "codeChanges": {"linesAdded": 0}}
    return json.dumps({"type": "result", "sessionId": SESSION, "exitCode": code, "usage": usage})


def span(**attributes: Any) -> str:
    named = {"gen_ai." + name.replace("__", "."): value for name, value in attributes.items()}
    return json.dumps({"type": "span", "name": "chat gpt-4.1", "attributes": named})


CALL = line("tool.execution_start", {"toolName": "bash", "arguments": {"command": "echo hi"}})
OUTPUT = line("tool.execution_complete", {"success": True, "result": {"content": "hi\n"}})
DELTA = line("assistant.message_delta", {"deltaContent": "All"}, ephemeral=True)


def judge(lines: list[str], exit: Exit = OK, stderr: str = "") -> tuple[Summary, AgentVerdict]:
    summary = summarise(AGENT, lines)
    return summary, AGENT.judge(summary, exit, "\n".join([*lines, stderr]))


def build(settings: dict[str, Any] | None = None, **request: Any) -> AgentCommand:
    given = AgentSettings(program=sys.executable, **settings or {})
    asked = AgentRequest("--help", Path("/w"), Path("/run [1]/prompt"), given, **request)
    return CopilotAgent("copilot", given).command(asked)


class TestCommand:
    def test_the_prompt_goes_by_stdin_and_nobody_is_asked(self) -> None:
        command = build({"extra_args": ["--agent", "x"]}, model="gpt-5", session_id=SESSION)
        assert command.stdin == b"--help"
        assert "--help" not in command.argv
        assert {"--allow-all", "--no-ask-user", f"--resume={SESSION}"} <= set(command.argv)
        assert command.argv[command.argv.index("--model") + 1] == "gpt-5"
        assert command.argv[-2:] == ["--agent", "x"]

    def test_usage_is_noted_beside_the_prompt(self) -> None:
        command = build()
        path = "/run [1]/copilot-spans.jsonl"
        assert command.env["COPILOT_OTEL_FILE_EXPORTER_PATH"] == path
        assert command.side_log == "/run [[]1]/copilot-spans.jsonl"

    def test_a_stored_token_is_githubs_or_that_of_the_server(self) -> None:
        assert build(credential="gho_1").env["COPILOT_GITHUB_TOKEN"] == "gho_1"
        env = build(SERVER, credential="sk-1").env
        assert env["COPILOT_PROVIDER_BASE_URL"] == "http://127.0.0.1:1/v1"
        assert env["COPILOT_PROVIDER_API_KEY"] == "sk-1"
        assert "COPILOT_GITHUB_TOKEN" not in env

    def test_a_server_of_ones_own_needs_a_model(self) -> None:
        with pytest.raises(AgentMisconfigured, match="no model"):
            build({"base_url": "http://127.0.0.1:1/v1"})

    def test_a_system_prompt_joins_the_users_own_instructions(self) -> None:
        own = {"COPILOT_CUSTOM_INSTRUCTIONS_DIRS": "/mine"}
        command = build({"env": own}, system_prompt="Be brief.")
        assert command.files == {"kapelle.instructions.md": "Be brief."}
        assert command.env["COPILOT_CUSTOM_INSTRUCTIONS_DIRS"] == "/run [1],/mine"

    def test_servers_are_in_a_file_of_their_own(self) -> None:
        servers = {
            "box": McpServer(command=["box", "--x"], env={"KEY": "secret"}),
            "far": McpServer(url="https://far.example/mcp", headers={"X-Key": "secret"}),
        }
        command = build(mcp_servers=servers)
        assert "--additional-mcp-config=@/run [1]/copilot-mcp.json" in command.argv
        given = json.loads(command.files["copilot-mcp.json"])["mcpServers"]
        assert given["box"]["command"] == "box"
        assert given["box"]["args"] == ["--x"]
        assert given["box"]["env"] == {"KEY": "secret"}
        assert (given["far"]["type"], given["far"]["headers"]) == ("http", {"X-Key": "secret"})
        assert "secret" not in json.dumps([command.argv, command.env])


class TestOutput:
    def test_a_whole_run(self) -> None:
        lines = [message("I look."), CALL, OUTPUT, DELTA, message("All done now."), result(0)]
        summary, verdict = judge(lines)
        assert (verdict.success, verdict.result) == (True, "All done now.")
        assert (summary.session_id, summary.model) == (SESSION, "gpt-4.1")
        assert summary.usage is None

    def test_a_tool_is_called_and_answers(self) -> None:
        [call], [output] = AGENT.parse(CALL), AGENT.parse(OUTPUT)
        assert (call.kind, call.name, call.data) == ("tool_call", "bash", {"command": "echo hi"})
        assert (output.kind, output.text) == ("tool_result", "hi\n")

    def test_what_a_sub_agent_says_is_not_the_answer(self) -> None:
        lines = [message("All done now."), message("sub says hi", agentId="8c1f"), result(0)]
        assert judge(lines)[1].result == "All done now."

    def test_spans_of_requests_tell_the_tokens(self) -> None:
        chat = {"operation__name": "chat", "conversation__id": SESSION}
        used = {"usage__input_tokens": 100, "usage__output_tokens": 20}
        lines = [
            span(**chat, **used, usage__cache_read__input_tokens=40),
            span(**chat),
            span(operation__name="invoke_agent", **used),
            span(**chat, usage__input_tokens=1000, usage__output_tokens=50),
            json.dumps({"type": "metric", "name": "gen_ai.client.inference.usage.input_tokens"}),
        ]
        summary = summarise(AGENT, lines)
        assert summary.session_id == SESSION
        assert summary.usage == Usage(
            input_tokens=1100, output_tokens=70, cached_tokens=40, turns=2
        )

    @given(
        st.sampled_from(KINDS),
        st.recursive(
            st.none() | st.integers() | st.text() | st.floats(allow_nan=False),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(KEYS),
                    inner,
                )
            ),
            max_leaves=6,
        ),
    )
    def test_any_value_may_be_anything(self, kind: str, value: Any) -> None:
        text = json.dumps({"type": kind, "data": value, "attributes": value, "exitCode": value})
        summary, _ = judge([text])
        classify(summary, FAILED, text)
        for event in AGENT.parse(text):
            classify_event(event)


class TestEndings:
    def test_an_end_without_its_own_word_is_no_success(self) -> None:
        assert not judge([message("All done now.")])[1].success
        assert not judge([message("All done now."), result(1)])[1].success

    @pytest.mark.parametrize("exit", [FAILED, Exit(kind="signaled", signal=15), Exit(kind="lost")])
    def test_a_bad_end_is_no_success(self, exit: Exit) -> None:
        _, verdict = judge([message("All done now."), result(0)], exit)
        assert not verdict.success
        assert "{" not in (verdict.reason or "")

    @pytest.mark.parametrize(
        ("said", "kind"),
        [
            ("Error: No session, task, or name matched '0cb9'.", FailureClass.SESSION_LOST),
            ("Error: No authentication information found.\n\n{}", FailureClass.AUTHENTICATION),
            (
                "Error: Authentication token found but could not be validated.\n\n"
                "Your token may still be valid. Check your network connection and try again.\n\n{}",
                FailureClass.ENVIRONMENT,
            ),
        ],
    )
    def test_what_only_stderr_tells(self, said: str, kind: FailureClass) -> None:
        ways = "To authenticate, you can use any of the following methods:\n  • Start 'copilot'"
        _, verdict = judge([], FAILED, said.format(ways))
        assert verdict.failure
        assert verdict.failure.kind is kind


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"errorType": "authentication", "statusCode": 401}, FailureClass.AUTHENTICATION),
            ({"errorType": "rate_limit", "statusCode": 429}, FailureClass.RATE_LIMIT),
            ({"errorType": "quota", "errorCode": "quota_exceeded"}, FailureClass.BILLING),
            ({"errorType": "context_limit"}, FailureClass.CONTEXT_OVERFLOW),
            ({"errorType": "query", "statusCode": 500}, FailureClass.OVERLOADED),
            ({"errorType": "query", "statusCode": 529}, FailureClass.OVERLOADED),
            (
                {
                    "errorType": "query",
                    "statusCode": 404,
                    "message": "Model 'm1' not found on provider at http://127.0.0.1 (HTTP 404).",
                },
                FailureClass.CAPABILITY,
            ),
            (
                {
                    "errorType": "query",
                    "statusCode": 400,
                    "message": "400 This model's maximum context length is 8192 tokens.",
                },
                FailureClass.CONTEXT_OVERFLOW,
            ),
        ],
    )
    def test_an_error_tells_its_class(self, error: dict[str, Any], kind: FailureClass) -> None:
        lines = [line("session.error", {"message": "It failed.", **error}), result(1)]
        summary, verdict = judge(lines, FAILED)
        assert (verdict.success, verdict.reason) == (False, error.get("message", "It failed."))
        assert classify(summary, FAILED, "").kind is kind

    def test_a_request_that_is_tried_again_is_a_notice(self) -> None:
        data = {
            "statusCode": 429,
            "retryAttempt": 0,
            "errorMessage": '{"message":"scripted 429","type":"rate_limit_exceeded"}',
        }
        lines = [line("model.call_failure", data), message("fine"), result(0)]
        [notice] = AGENT.parse(lines[0])
        assert (notice.kind, notice.text) == ("notice", "scripted 429")
        found = classify_event(notice)
        assert found
        assert found.kind is FailureClass.RATE_LIMIT
        assert judge(lines)[1].success
