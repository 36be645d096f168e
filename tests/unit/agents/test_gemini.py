"""Gemini CLI: how it is called, and what its recorded output means."""

import json
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.adapters import gemini
from kapelle.agents.adapters.gemini import GeminiAgent
from kapelle.agents.base import AgentCommand, AgentRequest
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

SESSION = "8d1ca61e-e0a7-402d-9e15-2d59e8b99ea2"
INIT = f'{{"type":"init","timestamp":"T","session_id":"{SESSION}","model":"pro"}}'
USER = '{"type":"message","timestamp":"T","role":"user","content":"Do it"}'
SAID = '{"type":"message","timestamp":"T","role":"assistant","content":"All done.","delta":true}'
CALL = (
    '{"type":"tool_use","timestamp":"T","tool_name":"run_shell_command","tool_id":"run_shell_command'
    '__fc_01493b14","parameters":{"command":"echo hi"}}'
)
RETURN = (
    '{"type":"tool_result","timestamp":"T","tool_id":"run_shell_command__fc_01493b14",'
    '"status":"success","output":"hi"}'
)
STATS = (
    '"stats":{"total_tokens":700,"input_tokens":600,"output_tokens":60,"cached":50,"input":550,'
    '"duration_ms":450,"tool_calls":1,"models":{"gemini-3.5-flash-lite":{"total_tokens":20},'
    '"gemini-3.1-pro-preview":{"total_tokens":680,"input_tokens":590}}}'
)
DONE = f'{{"type":"result","timestamp":"T","status":"success",{STATS}}}'
LOOP = (
    '{"type":"error","timestamp":"T","severity":"warning","message":"Loop detected, stopping'
    ' execution"}'
)
EMPTY = (
    '{"type":"error","timestamp":"T","severity":"error","message":"The model returned an empty'
    ' response with no text or thoughts. This may be a transient API issue; please try again."}'
)
ANSWER = (
    '{"id":"7b272d72","timestamp":"T","type":"gemini","content":"I write.","thoughts":[],"tokens":'
    '{"input":100,"output":10,"cached":40,"thoughts":5,"tool":0,"total":115},'
    '"model":"gemini-3.1-pro-preview"}'
)
NO_SESSION = """\
Error resuming session: Invalid session identifier "11111111-2222-3333-4444-555555555555".
  Searched for sessions in /root/.gemini/tmp/ws/chats.
  Use --list-sessions to see available sessions, then use --resume {number}, or --resume latest.
"""


def failed(message: str, kind: str = "unknown") -> str:
    error = json.dumps({"type": kind, "message": message})
    return f'{{"type":"result","timestamp":"T","status":"error","error":{error},{STATS}}}'


def refused(code: int, status: str, message: str = "scripted") -> str:
    body = {"error": {"code": code, "message": message, "status": status}}
    return failed(f"[API Error: {json.dumps(body)}]")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "gemini"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def secure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the run's directory were one that Gemini reads settings in."""
    monkeypatch.setattr("kapelle.agents.adapters.gemini.is_trusted", lambda directory: True)


def agent(**settings: Any) -> GeminiAgent:
    return GeminiAgent("gemini", AgentSettings(**settings))


def command(tmp_path: Path, program: str, prompt: str = "Do it", **more: Any) -> AgentCommand:
    made = agent(program=program, **more.pop("settings", {}))
    return made.command(AgentRequest(prompt, tmp_path, tmp_path / "prompt", made.settings, **more))


def settings_in(command: AgentCommand) -> dict[str, Any]:
    (content,) = command.files.values()
    found: dict[str, Any] = json.loads(content)
    return found


def kinds(line: str) -> list[AgentEvent]:
    return agent().parse(line)


def failure_of(lines: list[str], code: int, stderr: str = "") -> Failure:
    """What a run comes to, as the engine finds it out."""
    adapter, exit = agent(), Exit(kind="exited", code=code)
    summary, tail = summarise(adapter, lines), "\n".join([*lines, stderr])
    verdict = adapter.judge(summary, exit, tail)
    assert not verdict.success
    assert verdict.reason
    return verdict.failure or classify(summary, exit, tail)


class TestCommand:
    def test_the_prompt_goes_by_stdin_and_a_model_is_always_named(
        self, tmp_path: Path, program: str
    ) -> None:
        made = command(tmp_path, program, "--help")
        assert made.stdin == b"--help"
        assert made.argv[:7] == [
            program, "-o", "stream-json", "--approval-mode", "yolo", "-m", "pro",
        ]  # fmt: skip
        assert (
            made.env["GEMINI_CLI_NO_RELAUNCH"] == made.env["GEMINI_CLI_TRUST_WORKSPACE"] == "true"
        )

    def test_a_prompt_is_no_command_of_its_own(self, tmp_path: Path, program: str) -> None:
        assert command(tmp_path, program, "/clear").stdin == b"\n/clear"

    def test_the_system_prompt_stands_before_the_prompt(self, tmp_path: Path, program: str) -> None:
        given = command(tmp_path, program, "/x", system_prompt="Be brief.").stdin
        assert given == b"<instructions>\nBe brief.\n</instructions>\n\n/x"

    def test_a_new_session_has_an_id_that_its_log_is_found_by(
        self, tmp_path: Path, program: str
    ) -> None:
        env = {"GEMINI_CLI_HOME": "/home/[me]"}
        made = command(tmp_path, program, settings={"env": env, "extra_args": ["--debug"]})
        option, session, last = made.argv[-3:]
        assert (option, last) == ("--session-id", "--debug")
        name = f"session-*-{session[:8]}.jsonl"
        assert made.side_log == f"/home/[[]me]/.gemini/tmp/*/chats/{name}"

    def test_a_resumed_session_goes_on_in_the_first_of_its_logs(
        self, tmp_path: Path, program: str
    ) -> None:
        chats = tmp_path / ".gemini/tmp/project/chats"
        chats.mkdir(parents=True)
        for minute in ("10-58", "10-59"):
            (chats / f"session-2026-11-15T{minute}-8d1ca61e.jsonl").touch()
        first = str(chats / "session-2026-11-15T10-58-8d1ca61e.jsonl")
        env = {"env": {"GEMINI_CLI_HOME": str(tmp_path)}}
        made = command(tmp_path, program, session_id=SESSION, settings=env)
        assert made.argv[-2:] == ["--resume", SESSION]
        assert made.side_log == first
        made = command(tmp_path, program, session_id=SESSION, fork=True, settings=env)
        assert made.argv[-2:] == ["--session-file", first]
        assert made.side_log is None

    @pytest.mark.usefixtures("secure")
    def test_what_has_no_flag_goes_by_a_file_that_yields_to_the_users(
        self, tmp_path: Path, program: str
    ) -> None:
        settings = {"base_url": "http://127.0.0.1:1"}
        made = command(tmp_path, program, max_turns=7, credential="a-key", settings=settings)
        assert set(made.files) == {"gemini-settings.json"}
        path = str(tmp_path / "gemini-settings.json")
        assert made.env["GEMINI_CLI_SYSTEM_DEFAULTS_PATH"] == path
        assert made.env["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:1"
        assert made.env["GEMINI_API_KEY"] == "a-key"
        found = settings_in(made)
        assert found["model"] == {"maxSessionTurns": 7}
        assert found["security"] == {"auth": {"selectedType": "gemini-api-key"}}
        assert "a-key" not in str(made.files)

    @pytest.mark.usefixtures("secure")
    def test_the_way_to_log_in_is_left_to_the_user(
        self, tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GEMINI_API_KEY", raising=False)
        assert "security" not in settings_in(command(tmp_path, program, credential="a-key"))
        settings = {"base_url": "http://127.0.0.1:1"}
        assert "security" not in settings_in(command(tmp_path, program, settings=settings))

    @pytest.mark.usefixtures("secure")
    def test_nothing_in_a_servers_settings_is_taken_for_a_variable(
        self, tmp_path: Path, program: str
    ) -> None:
        servers = {
            "box": McpServer(command=["run", "$HOME"], env={"KEY": "pa$$word"}),
            "net": McpServer(url="http://127.0.0.1:1/mcp", headers={"Authorization": "Bearer $1"}),
        }
        found = settings_in(command(tmp_path, program, mcp_servers=servers))["mcpServers"]
        once, twice = "${KAPELLE_NOT_SET:-$}", "${KAPELLE_NOT_SET:-\\$}"
        assert found["box"] == {
            "command": "run",
            "args": [f"{once}HOME"],
            "env": {"KEY": f"pa{twice}{twice}word"},
            "trust": True,
        }
        assert found["net"]["type"] == "http"
        assert found["net"]["headers"] == {"Authorization": f"Bearer {twice}1"}

    def test_servers_are_refused_where_the_settings_would_be_skipped(
        self, tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kapelle.agents.adapters.gemini.is_trusted", lambda directory: False)
        made = command(tmp_path, program)
        assert not made.files
        assert "GEMINI_CLI_SYSTEM_DEFAULTS_PATH" not in made.env
        if GeminiAgent.capabilities.mcp:
            with pytest.raises(AgentMisconfigured):
                command(tmp_path, program, mcp_servers={"box": McpServer(command=["run"])})

    def test_settings_are_read_only_where_nobody_else_can_write(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        assert not gemini.is_trusted(tmp_path)
        assert not gemini.is_trusted(tmp_path / "missing")


class TestParse:
    def test_a_session(self) -> None:
        assert kinds(INIT) == [AgentEvent("session", SESSION)]
        named = kinds(INIT.replace('"pro"', '"gemini-2.5-pro"'))
        assert named[1:] == [AgentEvent("model", "gemini-2.5-pro")]

    def test_tools(self) -> None:
        name = "run_shell_command"
        assert kinds(CALL) == [AgentEvent("tool_call", name=name, data={"command": "echo hi"})]
        assert kinds(RETURN) == [AgentEvent("tool_result", "hi", name)]

    def test_the_prompt_and_what_is_no_json_say_nothing(self) -> None:
        assert [kinds(line) for line in (USER, "", "YOLO mode is enabled.", "[1]")] == [[]] * 4

    def test_a_result_has_the_sums_with_thinking_as_output(self) -> None:
        usage = {"input_tokens": 600, "output_tokens": 100, "cached_tokens": 50, "total": True}
        assert kinds(DONE) == [
            AgentEvent("usage", data=usage),
            AgentEvent("model", "gemini-3.1-pro-preview"),
            AgentEvent("result"),
        ]

    def test_the_chat_log_counts_every_answer_once(self) -> None:
        again = ANSWER.replace('"thoughts":[]', '"thoughts":[],"toolCalls":[]')
        other = ANSWER.replace("7b272d72", "86d48ec4")
        usage = summarise(agent(), [ANSWER, '{"$set":{"lastUpdated":"T"}}', again, other]).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (200, 30, 80)
        assert usage.turns == 2

    def test_the_last_sums_replace_what_was_counted_live(self) -> None:
        summary = summarise(agent(), [INIT, ANSWER, SAID, DONE])
        assert summary.usage is not None
        assert (summary.usage.input_tokens, summary.usage.turns) == (600, 1)
        assert summary.model == "gemini-3.1-pro-preview"

    @pytest.mark.parametrize(
        "line",
        [
            '{"type":["result"]}',
            '{"type":"result","status":"success","stats":{"models":{"a":1},"total_tokens":"x"}}',
            '{"type":"result","status":"error","error":"x","stats":[]}',
            '{"type":"result","error":{"type":1,"message":"[API Error: {\\"error\\": 1}]"}}',
            '{"type":"gemini","tokens":{"input":true,"output":null},"id":[],"model":{}}',
            '{"type":"init","session_id":7,"model":null}',
            '{"type":"tool_result","tool_id":{},"error":"x","output":[1]}',
        ],
    )
    def test_any_value_may_be_anything(self, line: str) -> None:
        for event in kinds(line):
            json.dumps(event.to_json())


class TestJudge:
    def test_success_is_a_result_after_an_answer(self) -> None:
        lines, exit = [INIT, USER, CALL, RETURN, SAID, DONE], Exit(kind="exited", code=0)
        summary = summarise(agent(), lines)
        verdict = agent().judge(summary, exit, "\n".join([*lines, "Ripgrep is not available."]))
        assert verdict.success
        assert verdict.result == "All done."

    def test_a_signal_leaves_exit_code_0_and_no_result(self) -> None:
        assert failure_of([INIT, USER, SAID], 0).kind is FailureClass.UNKNOWN

    @pytest.mark.parametrize("lines", [[SAID, CALL, RETURN], []])
    def test_a_success_without_an_answer_is_a_full_context(self, lines: list[str]) -> None:
        found = failure_of([INIT, USER, *lines, DONE], 0)
        assert found.kind is FailureClass.CONTEXT_OVERFLOW

    def test_a_success_after_a_loop_is_none(self) -> None:
        assert failure_of([INIT, SAID, CALL, RETURN, LOOP, DONE], 0).kind is FailureClass.TASK

    def test_an_empty_answer_is_the_providers_trouble(self) -> None:
        end = f'{{"type":"result","status":"error",{STATS}}}'
        assert failure_of([INIT, EMPTY, end], 0).kind is FailureClass.OVERLOADED

    def test_the_limit_of_turns(self) -> None:
        end = failed("Reached max session turns for this session.", "FatalTurnLimitedError")
        assert failure_of([INIT, CALL, RETURN, end], 53).kind is FailureClass.LIMIT

    @pytest.mark.parametrize(
        ("code", "end", "expected"),
        [
            (145, refused(401, "UNAUTHENTICATED"), FailureClass.AUTHENTICATION),
            (147, refused(403, "PERMISSION_DENIED"), FailureClass.AUTHENTICATION),
            (144, refused(400, "INVALID_ARGUMENT"), FailureClass.TASK),
            (244, refused(500, "INTERNAL"), FailureClass.OVERLOADED),
            (17, refused(529, "UNAVAILABLE"), FailureClass.OVERLOADED),
            (247, failed("[API Error: scripted 503]"), FailureClass.OVERLOADED),
            (173, failed("[API Error: scripted 429]\nPlease wait."), FailureClass.RATE_LIMIT),
            (
                144,
                refused(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid one."),
                FailureClass.AUTHENTICATION,
            ),
            (
                144,
                refused(400, "INVALID_ARGUMENT", "The input token count (99) exceeds the maximum."),
                FailureClass.CONTEXT_OVERFLOW,
            ),
        ],
    )
    def test_the_exit_code_tells_the_status(
        self, code: int, end: str, expected: FailureClass
    ) -> None:
        assert failure_of([INIT, USER, end], code).kind is expected

    def test_a_quota_is_a_limit_that_ends(self) -> None:
        message = (
            "[API Error: You exceeded your current quota, please check your plan and billing"
            " details. limit: 5 Please retry in 34.07s.]"
        )
        found = failure_of([INIT, failed(message)], 173)
        assert found.kind is FailureClass.RATE_LIMIT
        assert found.retry_at is not None
        none_at_all = failed(message.replace("limit: 5", "limit: 0"))
        assert failure_of([INIT, none_at_all], 173).kind is FailureClass.BILLING

    def test_an_unknown_model_is_told_only_on_stderr(self) -> None:
        end, stderr = failed("[API Error: scripted 404]"), "ModelNotFoundError: scripted 404"
        assert failure_of([INIT, end], 1, stderr).kind is FailureClass.CAPABILITY

    def test_a_lost_session(self) -> None:
        found = failure_of([], 42, NO_SESSION)
        assert found.kind is FailureClass.SESSION_LOST
        assert "Error resuming session: Invalid session identifier" in found.evidence

    def test_bad_input_amid_a_session_is_not_a_lost_one(self) -> None:
        end = failed("[API Error: Exiting due to an error processing the @ command]")
        assert failure_of([INIT, end], 42).kind is FailureClass.TASK

    def test_no_way_to_log_in(self) -> None:
        found = failure_of([], 41, "Invalid auth method selected.")
        assert found.kind is FailureClass.AUTHENTICATION
        assert "selectedType" in found.evidence
