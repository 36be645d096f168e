"""Claude Code: how it is called, and what its recorded output means."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.adapters.claude import ClaudeAgent
from kapelle.agents.base import LONGEST_ARGUMENT, AgentCommand, AgentRequest, Summary
from kapelle.agents.bridges.hook import sign_message
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify, classify_event
from kapelle.agents.summary import summarise
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

SESSION = "97f35233-e88f-4bb1-a69b-e6f09fa08595"
OK = Exit(kind="exited", code=0)
FAILED = Exit(kind="exited", code=1)
RESET = datetime(2026, 11, 15, 14, 7, 17, tzinfo=UTC)
INIT = (
    '{"type":"system","subtype":"init","cwd":"/w","session_id":"' + SESSION + '","tools":["Bash"],'
    '"mcp_servers":[{"name":"lock","status":"connected","source":"dynamic"},'
    '{"name":"bad","status":"failed","source":"dynamic"}],"model":"claude-sonnet-4-5",'
    '"permissionMode":"bypassPermissions","claude_code_version":"2.1.325"}'
)
SAYS = (
    '{"type":"assistant","message":{"id":"msg_fc94","type":"message","role":"assistant","model":'
    '"claude-sonnet-4-5","content":[{"type":"text","text":"I write it."}],"stop_reason":null,'
    '"usage":{"input_tokens":100,"output_tokens":1,"cache_creation_input_tokens":300,'
    '"cache_read_input_tokens":600}},"parent_tool_use_id":null,"session_id":"' + SESSION + '"}'
)
WRITES = (
    '{"type":"assistant","message":{"id":"msg_fc94","type":"message","role":"assistant","model":'
    '"claude-sonnet-4-5","content":[{"type":"tool_use","id":"toolu_b9","name":"Write","input":'
    '{"file_path":"/w/a.txt","content":"hi"}}],"stop_reason":null,"usage":{"input_tokens":100,'
    '"output_tokens":1,"cache_creation_input_tokens":300,"cache_read_input_tokens":600}},'
    '"parent_tool_use_id":null,"session_id":"' + SESSION + '"}'
)
WRITTEN = (
    '{"type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_b9","type":'
    '"tool_result","content":[{"type":"text","text":"File created"}]}]},"parent_tool_use_id":null}'
)
DENIED = (
    '{"type":"system","subtype":"permission_denied","tool_name":"Write","tool_use_id":"toolu_25",'
    '"decision_reason_type":"asyncAgent","decision_reason":"no approval surface in this session"}'
)
RETRY = (
    '{"type":"system","subtype":"api_retry","attempt":1,"max_retries":2,"retry_delay_ms":1000,'
    '"error_status":429,"error":"rate_limit","session_id":"x","uuid":"y"}'
)
LIMIT_EVENT = (
    '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1794751637,'
    '"rateLimitType":"five_hour","isUsingOverage":false},"uuid":"5","session_id":"f"}'
)
# As 2.1.325 prints it with a login of a subscription.
WINDOWS_EVENT = (
    '{"type":"rate_limit_event","rate_limit_info":{"status":"allowed","resetsAt":1794972375,'
    '"rateLimitType":"five_hour","isUsingOverage":false,"unifiedWindows":{"five_hour":'
    '{"utilization":0.85,"resetsAt":1794972375,"status":"allowed"},"seven_day":{"utilization":0.2,'
    '"resetsAt":1795055175,"status":"allowed"}}},"uuid":"4","session_id":"a"}'
)
BAD_RESUME = (
    '{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,'
    '"session_id":"00000000-0000-4000-8000-000000000000","total_cost_usd":0,"usage":{},'
    '"errors":["No conversation found with session ID: 00000000-0000-4000-8000-000000000000"],'
    '"result_index":0}'
)
NO_HELP = (
    '{"type":"assistant","message":{"id":"8a","role":"assistant","model":"<synthetic>","content":'
    '[{"type":"text","text":"/help isn\'t available in this environment."}],"usage":'
    '{"input_tokens":0,"output_tokens":0}},"parent_tool_use_id":null,'
    '"local_command_outcome":{"kind":"unavailable_headless"}}'
)


ASKED = (
    '{"type":"queue-operation","operation":"enqueue","timestamp":"2026-11-15T11:04:39.024Z",'
    '"sessionId":"5b40e9da","content":"go on"}'
)


def noted(message_id: str, **more: Any) -> str:
    """A line of the transcript."""
    usage = {
        "input_tokens": 100,
        "cache_creation_input_tokens": 300,
        "cache_read_input_tokens": 600,
        "output_tokens": 50,
    }
    message = {"id": message_id, "model": "claude-sonnet-4-5", "content": [], "usage": usage}
    line = {"type": "assistant", "sessionId": SESSION, "timestamp": "2026-11-15T11:04:39.206Z"}
    return json.dumps({**line, "isSidechain": False, "message": message, **more})


def used(tokens: int, output: int, cost: float, **more: Any) -> dict[str, Any]:
    model = {"inputTokens": tokens, "outputTokens": output, "cacheReadInputTokens": 0}
    return {"claude-sonnet-4-5": {**model, "costUSD": cost, "costBasis": "list", **more}}


def result(text: str = "All done.", **more: Any) -> str:
    event = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": text,
        "session_id": SESSION,
        "total_cost_usd": 0.01875,
        "usage": {"input_tokens": 2000, "output_tokens": 10},
        "modelUsage": used(5300, 190, 0.01875),
        "model_usage_since_last_result": used(2000, 10, 0.00615),
        "terminal_reason": "completed",
        "result_index": 0,
    }
    return json.dumps({**event, **more})


def refused(text: str, error: str, **more: Any) -> list[str]:
    """An API error as it ends a run: a message that says why, and a result of subtype success."""
    message = {"model": "<synthetic>", "content": [{"type": "text", "text": text}]}
    said = {"type": "assistant", "message": message, "parent_tool_use_id": None, "error": error}
    end = result(text, is_error=True, terminal_reason="api_error", **more)
    return [json.dumps({**said, "is_api_error_message": True, **more}), end]


def agent(**more: Any) -> ClaudeAgent:
    return ClaudeAgent("claude", AgentSettings(program=sys.executable, **more))


def build(tmp_path: Path, prompt: str = "Do it", own: Any = None, **more: Any) -> AgentCommand:
    claude = agent(**(own or {}))
    request = AgentRequest(prompt, tmp_path, tmp_path / "prompt", claude.settings, **more)
    return claude.command(request)


def read(*lines: str) -> Summary:
    return summarise(agent(), lines)


def failure(*lines: str, exit: Exit = FAILED) -> Failure:
    summary = read(*lines)
    verdict = agent().judge(summary, exit, "\n".join(lines))
    assert not verdict.success
    return verdict.failure or classify(summary, exit, "")


def notices(*lines: str) -> list[AgentEvent]:
    return [event for line in lines for event in agent().parse(line) if event.kind == "notice"]


class TestCommand:
    @pytest.mark.parametrize("prompt", ["--help", "-", "$& {model}", "x" * 1_000_000])
    def test_the_prompt_goes_by_stdin_alone(self, tmp_path: Path, prompt: str) -> None:
        command = build(tmp_path, prompt)
        assert command.stdin == prompt.encode()
        assert command.argv[1:] == [
            "-p",
            "--output-format",
            "stream-json",
            "--verbose",
            "--dangerously-skip-permissions",
        ]

    def test_options(self, tmp_path: Path) -> None:
        own = {"model": "sonnet", "extra_args": ["--effort", "low"], "base_url": "http://x"}
        command = build(tmp_path, own=own, session_id=SESSION, max_turns=7, budget_usd=1.5)
        argv = command.argv[6:]
        assert argv[:4] == ["--model", "sonnet", "--resume", SESSION]
        assert argv[4:8] == ["--max-turns", "7", "--max-budget-usd", "1.5000"]
        assert argv[8:] == ["--effort", "low"]
        assert command.env["ANTHROPIC_BASE_URL"] == "http://x"
        forked = build(tmp_path, session_id=SESSION, fork=True, model="opus").argv
        assert forked[6:] == ["--model", "opus", "--resume", SESSION, "--fork-session"]

    def test_few_tools_or_none_that_write(self, tmp_path: Path) -> None:
        reports = build(tmp_path, read_only=True).argv[5:]
        assert reports == [
            "--dangerously-skip-permissions",
            "--disallowedTools=Edit,MultiEdit,Write,NotebookEdit",
        ]
        servers = {"web": McpServer(command=["w"])}
        named = build(tmp_path, tools=["Read", "Bash(git log:*)"], mcp_servers=servers).argv
        assert named[5:9] == [
            "--permission-mode",
            "dontAsk",
            "--tools=Read,Bash",
            "--allowedTools=Read,Bash(git log:*),mcp__web",
        ]

    def test_it_is_told_once_what_people_say(self, tmp_path: Path) -> None:
        folder = tmp_path / "what is said"
        request = build(tmp_path, messages=folder, message_key="k")
        hooks = json.loads(request.files["claude-hooks.json"])["hooks"]

        def write(name: str, text: str) -> None:
            (folder / name).write_bytes(sign_message("k", name, text.encode()))

        def told(event: str) -> str:
            [[command]] = [entry["hooks"] for entry in hooks[event]]
            given = json.dumps({"hook_event_name": event})
            run = subprocess.run(
                command["command"], shell=True, input=given, capture_output=True, text=True
            )
            assert run.returncode == 0, run.stderr
            return run.stdout

        assert told("PostToolUse") == ""
        folder.mkdir()
        write("1.txt", "Violins first.")
        write("2.txt", "“Softly.”")
        # What nobody signed, what was signed for another one, and what is no file.
        (folder / "0.txt").write_text("Forged.", encoding="utf-8")
        (folder / "4.txt").write_bytes(sign_message("k", "1.txt", b"Again."))
        os.mkfifo(folder / "5.txt")
        (folder / "6.txt").symlink_to("/dev/zero")
        context = json.loads(told("PostToolUse"))["hookSpecificOutput"]["additionalContext"]
        assert context.endswith("Violins first.\n\n“Softly.”")
        assert told("Stop") == ""
        write("3.txt", "Louder.")
        stop = json.loads(told("Stop"))
        assert stop["decision"] == "block"
        assert stop["reason"].endswith("Louder.")

    def test_a_budget_that_is_nearly_spent_is_still_one(self, tmp_path: Path) -> None:
        assert build(tmp_path, budget_usd=0.00001).argv[-1] == "0.0001"

    def test_few_retries_unless_the_user_wants_more(self, tmp_path: Path) -> None:
        name = "CLAUDE_CODE_MAX_RETRIES"
        assert build(tmp_path).env[name] == "2"
        assert name not in build(tmp_path, environ={name: "9"}).env
        assert build(tmp_path, own={"env": {name: "5"}}).env[name] == "5"

    def test_only_root_says_that_it_is_in_a_sandbox(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert build(tmp_path).env["IS_SANDBOX"] == "1"
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert "IS_SANDBOX" not in build(tmp_path).env

    def test_a_system_prompt_of_any_size_and_look(self, tmp_path: Path) -> None:
        assert build(tmp_path, system_prompt="--help").argv[-1] == "--append-system-prompt=--help"
        long = "ü" * LONGEST_ARGUMENT
        command = build(tmp_path, system_prompt=long)
        path = tmp_path / "claude-system.txt"
        assert command.argv[-1] == f"--append-system-prompt-file={path}"
        assert command.files == {path.name: long}

    def test_a_fork_gets_its_own_system_prompt(self, tmp_path: Path) -> None:
        forked = build(tmp_path, system_prompt="Be kind", session_id=SESSION, fork=True).argv
        assert forked[-2:] == ["--system-prompt-snapshot", "off"]
        resumed = build(tmp_path, system_prompt="Be kind", session_id=SESSION).argv
        assert "--system-prompt-snapshot" not in resumed

    def test_mcp_servers_and_their_secrets_are_in_a_file(self, tmp_path: Path) -> None:
        servers = {
            "lock": McpServer(command=["lock", "-v"], env={"KEY": "s3cret${HOME}$1"}),
            "web": McpServer(url="http://127.0.0.1:1/mcp", headers={"Authorization": "s3cret"}),
        }
        command = build(tmp_path, mcp_servers=servers)
        assert command.argv[6:8] == ["--mcp-config", str(tmp_path / "claude-mcp.json")]
        assert not any("s3cret" in argument for argument in command.argv)
        assert command.env["ENABLE_TOOL_SEARCH"] == "false"
        assert json.loads(command.files["claude-mcp.json"])["mcpServers"] == {
            "lock": {
                "type": "stdio",
                "command": "lock",
                "args": ["-v"],
                "env": {"KEY": "s3cret${KAPELLE_NOT_SET:-$}{HOME}$1"},
            },
            "web": {
                "type": "http",
                "url": "http://127.0.0.1:1/mcp",
                "headers": {"Authorization": "s3cret"},
            },
        }

    def test_login_and_sessions_are_where_the_user_keeps_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
        monkeypatch.setenv("HOME", "/h")
        assert agent().access.login_files == ("/h/.claude/.credentials.json",)
        assert build(tmp_path).side_log == "/h/.claude/projects/*/{session}.jsonl"
        moved = {"env": {"CLAUDE_CONFIG_DIR": "/o[w]n"}}
        assert agent(**moved).access.login_files == ("/o[w]n/.credentials.json",)
        assert build(tmp_path, own=moved).side_log == "/o[[]w]n/projects/*/{session}.jsonl"

    def test_a_cloud_needs_no_key_of_ours(self) -> None:
        assert not agent(env={"CLAUDE_CODE_USE_BEDROCK": "1"}).access.needed


class TestWork:
    def test_what_it_says_and_does(self) -> None:
        lines = [INIT, SAYS, WRITES, WRITTEN]
        events = [event for line in lines for event in agent().parse(line)]
        told = [event for event in events if event.kind not in {"usage", "notice"}]
        assert told == [
            AgentEvent("session", SESSION),
            AgentEvent("model", "claude-sonnet-4-5"),
            AgentEvent("text", "I write it."),
            AgentEvent("tool_call", name="Write", data={"file_path": "/w/a.txt", "content": "hi"}),
            AgentEvent("tool_result", "File created"),
        ]

    def test_the_transcript_tells_what_is_used_while_it_works(self) -> None:
        assert read(INIT, SAYS, WRITES).usage is None
        lines = [ASKED, noted("a"), noted("a"), noted("b"), noted("s", isSidechain=True)]
        assert read(*lines).usage == Usage(
            input_tokens=3000, output_tokens=150, cached_tokens=1800, turns=2
        )

    def test_what_a_fork_copied_was_used_before(self) -> None:
        copied = noted("a", timestamp="2026-11-15T11:04:36.572Z")
        assert read(ASKED, copied).usage is None
        assert read(ASKED, copied, noted("b")).usage == read(noted("b")).usage

    def test_a_todo_list_is_a_plan(self) -> None:
        todos = [{"content": "Look", "status": "completed"}, {"content": "Leap", "status": "x"}]
        block = {"type": "tool_use", "name": "TodoWrite", "input": {"todos": todos}}
        line = json.dumps({"type": "assistant", "message": {"content": [block]}})
        assert agent().parse(line)[-1] == AgentEvent("plan", "[x] Look\n[ ] Leap")

    def test_a_resumed_session_counts_only_the_run(self) -> None:
        summary = read(INIT, SAYS, result("Resumed."))
        assert summary.usage == Usage(input_tokens=2000, output_tokens=10, cost_usd=0.00615)
        assert summary.of_session == frozenset()
        assert agent().judge(summary, OK, "").result == "Resumed."

    def test_a_version_that_tells_only_the_cost_of_the_session(self) -> None:
        event = json.loads(result())
        del event["model_usage_since_last_result"]
        summary = read(json.dumps(event))
        assert summary.usage == Usage(input_tokens=2000, output_tokens=10, cost_usd=0.01875)
        assert summary.of_session == {"cost_usd"}

    def test_the_results_of_one_run_add_up(self) -> None:
        first = result("First.", model_usage_since_last_result=used(3000, 30, 0.25))
        second = result(
            "Second.", model_usage_since_last_result=used(4000, 40, 0.5), result_index=1
        )
        summary = read(INIT, SAYS, first, SAYS, second)
        assert summary.result == "Second."
        assert summary.usage == Usage(input_tokens=7000, output_tokens=70, cost_usd=0.75)
        assert summary.of_session == frozenset()
        alone = read(second)
        assert alone.usage == Usage(input_tokens=5300, output_tokens=190, cost_usd=0.01875)
        assert "input_tokens" in alone.of_session

    def test_a_guessed_price_is_none(self) -> None:
        since = used(1000, 100, 0.006, costBasis="unknown")
        usage = read(result(model_usage_since_last_result=since)).usage
        assert usage == Usage(input_tokens=1000, output_tokens=100)

    def test_a_command_that_did_nothing_is_no_success(self) -> None:
        lines = [INIT, NO_HELP, result("/help isn't available in this environment.")]
        verdict = agent().judge(read(*lines), OK, "")
        assert not verdict.success
        assert "slash commands" in (verdict.reason or "")

    def test_what_goes_wrong_on_the_way(self) -> None:
        absent, denied, retry, limit = notices(INIT, DENIED, RETRY, LIMIT_EVENT)
        assert (absent.name, "bad" in absent.text) == ("tool", True)
        assert (denied.name, denied.text.split(":")[0]) == ("tool", "Write was denied")
        assert retry.data == {"status": 429, "type": "rate_limit"}
        assert (classify_event(limit) or classify_event(denied)) == Failure(
            FailureClass.RATE_LIMIT, f"it reported: {limit.text}", RESET
        )

    def test_a_limit_that_is_near_is_no_failure(self) -> None:
        near = {"status": "allowed_warning", "rateLimitType": "seven_day", "utilization": 0.9}
        (warning,) = notices(json.dumps({"type": "rate_limit_event", "rate_limit_info": near}))
        assert warning.text == "90% of the seven day limit is used"
        assert classify_event(warning) is None
        assert told(json.dumps({"type": "rate_limit_event", "rate_limit_info": near})) == {
            "weekly": {"used": 0.9}
        }
        fine = {"status": "allowed", "rateLimitType": "five_hour"}
        assert notices(json.dumps({"type": "rate_limit_event", "rate_limit_info": fine})) == []

    def test_the_windows_of_a_subscription_are_told(self) -> None:
        assert told(WINDOWS_EVENT) == {
            "5-hour": {"used": 0.85, "resets_at": 1794972375},
            "weekly": {"used": 0.2, "resets_at": 1795055175},
        }
        assert told(LIMIT_EVENT) == {"5-hour": {"used": 1.0, "resets_at": 1794751637}}
        # What is not told is not made up.
        assert told(WINDOWS_EVENT.replace('"utilization":0.85,', ""))["5-hour"] == {
            "resets_at": 1794972375
        }


def told(line: str) -> dict[str, Any]:
    """What a line says of the limits of the account."""
    events = ClaudeAgent("claude", AgentSettings()).parse(line)
    return {event.name: event.data for event in events if event.kind == "window"}


class TestEndings:
    @pytest.mark.parametrize(
        ("expected", "text", "error", "status", "kind"),
        [
            ("authentication", "401 x", "authentication_failed", 401, "authentication_error"),
            ("authentication", "Please run /login", "authentication_failed", None, ""),
            ("authentication", "On hold", "account_on_hold", 403, "permission_error"),
            ("rate_limit", "Rejected (429) · x", "rate_limit", 429, "rate_limit_error"),
            ("overloaded", "API Error: 500 x", "server_error", 500, "api_error"),
            ("overloaded", "API Error: 529 x", "server_error", 529, "overloaded_error"),
            ("overloaded", "Request timed out", "unknown", None, "api_error"),
            ("billing", "Credit balance is too low", "billing_error", 400, "invalid_request_error"),
            ("billing", "You're out of usage credits", "rate_limit", 429, "rate_limit_error"),
            ("capability", "Not there", "model_not_found", 404, "not_found_error"),
            ("context_overflow", "Prompt is too long · x", "invalid_request", 400, "x"),
        ],
    )  # fmt: skip
    def test_an_api_error_ends_it_though_the_subtype_is_success(
        self, expected: str, text: str, error: str, status: int | None, kind: str
    ) -> None:
        lines = refused(text, error, api_error_status=status, api_error_type=kind)
        assert failure(INIT, *lines).kind == expected
        assert read(*lines).usage is not None

    def test_no_connection_is_the_environments(self) -> None:
        text = "API Error: Connection refused — a firewall may be blocking it (ECONNREFUSED)"
        lines = refused(text, "server_error", api_error="connection_failed")
        assert failure(*lines).kind == "environment"

    def test_a_used_up_subscription_says_when_it_goes_on(self) -> None:
        info = {"status": "rejected", "resetsAt": 1794751637, "rateLimitType": "five_hour"}
        text = "You've hit your 5-hour limit · resets 2:07pm (UTC)"
        lines = refused(
            text, "rate_limit", api_error_status=429, api_error_params={"rate_limit_info": info}
        )
        found = failure(INIT, LIMIT_EVENT, *lines)
        assert (found.kind, found.retry_at) == ("rate_limit", RESET)

    @pytest.mark.parametrize(
        "text",
        [
            "Claude AI usage limit reached|1794751637",
            "You've hit your limit · resets 3pm (America/New_York)",
            "You've hit your weekly limit · resets Nov 18, 6:07am (America/New_York)",
        ],
    )
    def test_an_older_version_says_it_in_the_result_alone(self, text: str) -> None:
        found = failure(result(text, is_error=True, terminal_reason=None))
        assert found.kind == "rate_limit"
        assert found.retry_at is not None

    @pytest.mark.parametrize("subtype", ["error_max_turns", "error_max_budget_usd"])
    def test_a_limit_of_ours(self, subtype: str) -> None:
        end = result("", subtype=subtype, is_error=True, errors=["Reached maximum"])
        assert failure(INIT, SAYS, end).kind == "limit"

    def test_a_session_that_is_gone(self) -> None:
        assert failure(BAD_RESUME).kind == "session_lost"
        assert read(BAD_RESUME).session_id is None

    def test_an_interrupt_is_no_success_though_the_code_is_0(self) -> None:
        end = result(
            "",
            subtype="error_during_execution",
            is_error=True,
            terminal_reason="aborted_tools",
            errors=["[ede_diagnostic] result_type=user"],
        )
        verdict = agent().judge(read(INIT, SAYS, end), OK, "")
        assert (verdict.success, verdict.reason) == (False, "It was interrupted.")

    def test_silence_after_a_signal_is_no_success(self) -> None:
        assert failure(INIT, SAYS, exit=Exit(kind="exited", code=143)).kind == "crash"
        assert not agent().judge(read(INIT, SAYS), OK, "").success

    def test_an_error_of_a_subagent_does_not_end_the_run(self) -> None:
        message = {"content": [{"type": "text", "text": "API Error: 500"}]}
        line = {"type": "assistant", "message": message, "error": "server_error"}
        lines = [INIT, json.dumps({**line, "parent_tool_use_id": "toolu_1"}), result()]
        summary = read(*lines)
        assert summary.error is None
        assert agent().judge(summary, OK, "").success


@pytest.mark.parametrize(
    "event",
    [
        {"type": "assistant", "message": {"content": [1, {"type": "text", "text": 2}]}},
        {"type": "assistant", "message": {"usage": {"input_tokens": "1"}}, "error": 3},
        {"type": "assistant", "error": "x", "api_error": [], "api_error_status": 10**400},
        {"type": "user", "message": {"content": [{"type": "tool_result", "content": {}}]}},
        {"type": "system", "subtype": "init", "mcp_servers": [None, {"status": []}]},
        {"type": "system", "subtype": "api_retry", "retry_delay_ms": 10**400},
        {"type": "system", "subtype": ["init"]},
        {"type": "rate_limit_event", "rate_limit_info": {"status": "allowed_warning"}},
        {"type": "result", "is_error": "no", "errors": [1], "error": "x", "usage": []},
        {"type": "result", "model_usage_since_last_result": {"m": {"costUSD": 10**400}}},
        {"type": "result", "model_usage_since_last_result": {"m": 1}, "result_index": 3},
        {"type": ["result"]},
    ],
)
def test_values_of_any_type_are_read(event: dict[str, Any]) -> None:
    summary = read(json.dumps(event))
    if not agent().judge(summary, FAILED, "").success:
        classify(summary, FAILED, "")
