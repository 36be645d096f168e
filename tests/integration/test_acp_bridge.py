"""The ACP bridge as a real process, with a small real agent."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.warm_agent import warm_agent

from kapelle.agents.adapters.acp import AcpAgent
from kapelle.agents.base import AgentCommand, AgentRequest, AgentVerdict, Summary
from kapelle.agents.bridges.acp import Job
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

USED = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}


@dataclass
class Run:
    """An ended bridge: its events, its verdict and what the agent was sent."""

    code: int
    events: list[dict[str, Any]]
    summary: Summary
    verdict: AgentVerdict
    failure: str
    sent: list[dict[str, Any]]
    stderr: str

    def texts(self, kind: str) -> list[str]:
        return [event.get("text", "") for event in self.events if event["kind"] == kind]

    def got(self, method: str) -> dict[str, Any]:
        return next(entry for entry in self.sent if entry["method"] == method)


class Parts:
    """Where a bridge runs: a workspace and a directory for its files."""

    def __init__(self, path: Path, argv: list[str]) -> None:
        self.path, self.log, self._argv = path, path / "log", argv
        self.workspace = path / "workspace"
        self.workspace.mkdir()

    def command(self, script: dict[str, Any], **more: Any) -> AgentCommand:
        env = {"ACP_LOG": str(self.log)} | more.pop("env", {})
        wanted = {key: more.pop(key) for key in ("permissions", "mode") if key in more}
        settings = AgentSettings(command=more.pop("argv", self._argv), env=env, **wanted)
        self.agent = AcpAgent("small", settings)
        prompt = json.dumps(script)
        request = AgentRequest(prompt, self.workspace, self.path / "prompt", settings, **more)
        command = self.agent.command(request)
        for name, text in command.files.items():
            (self.path / name).write_text(text, encoding="utf-8")
        return command

    def start(self, command: AgentCommand) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command.argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self.workspace,
            env=command.env,
        )
        assert process.stdin
        process.stdin.write(command.stdin or b"")
        process.stdin.close()
        process.stdin = None
        return process

    def end(self, process: subprocess.Popen[bytes]) -> Run:
        stdout, stderr = process.communicate(timeout=60)
        lines = stdout.decode().splitlines()
        summary = summarise(self.agent, lines)
        exit = Exit(kind="exited", code=process.returncode)
        tail = stdout.decode() + stderr.decode()
        sent = self.log.read_text().splitlines() if self.log.exists() else []
        return Run(
            process.returncode,
            [json.loads(line) for line in lines],
            summary,
            self.agent.judge(summary, exit, tail),
            classify(summary, exit, tail).kind,
            [json.loads(line) for line in sent],
            stderr.decode(),
        )

    def run(self, *steps: list[Any], script: dict[str, Any] | None = None, **more: Any) -> Run:
        return self.end(self.start(self.command({"do": list(steps), **(script or {})}, **more)))

    def wait_for(self, method: str) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.log.exists() and f'"{method}"' in self.log.read_text():
                return
            time.sleep(0.02)
        raise AssertionError(f"the agent was never sent {method}")


@pytest.fixture(scope="module")
def small_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with warm_agent(tmp_path_factory.mktemp("warm")) as argv:
        yield argv


@pytest.fixture
def stage(tmp_path: Path, small_agent: list[str]) -> Parts:
    return Parts(tmp_path, small_agent)


def test_a_turn_becomes_events_and_ends_with_its_last_answer(stage: Parts) -> None:
    run = stage.run(
        ["say", "I wi", "ll look.\nAnd ", "then"],
        ["plan", "look", "answer"],
        ["tool", "shell", {"command": "ls"}, "a.txt"],
        ["say", "The end", ".\n\nReally"],
    )
    assert run.verdict.success, run.stderr
    assert run.verdict.result == "The end.\n\nReally"
    assert run.texts("text") == ["I will look.", "And then", "The end.\n", "Really"]
    assert run.texts("plan") == ["[x] look\n[x] answer"]
    assert {"kind": "tool_call", "name": "shell", "data": {"command": "ls"}} in run.events
    assert {"kind": "tool_result", "name": "shell", "text": "a.txt"} in run.events
    assert run.summary.session_id == "new-1"
    assert run.summary.usage is not None
    assert run.summary.usage.turns == 2


def test_it_takes_the_most_autonomous_mode_and_no_file_system(stage: Parts) -> None:
    run = stage.run(["say", "done"])
    assert run.got("mode")["mode_id"] == "yolo"
    assert run.got("new")["cwd"] == str(stage.workspace)
    told = run.got("initialize")["client_capabilities"]
    assert not told["fs"]["read_text_file"]
    assert not told["terminal"]


def test_modes_and_models_that_are_asked_for(stage: Parts) -> None:
    run = stage.run(["say", "done"], mode="plan", model="Large-1")
    assert run.got("mode")["mode_id"] == "plan"
    assert run.got("option")["value"] == "large-1"
    assert run.summary.model == "large-1"


def test_an_unknown_mode_or_model_is_told_with_those_there_are(stage: Parts) -> None:
    run = stage.run(["say", "done"], mode="wild")
    assert (run.code, run.failure) == (1, "capability")
    assert "default, plan, yolo" in (run.verdict.reason or "")
    run = stage.run(["say", "done"], model="nonsense")
    assert (run.code, run.failure) == (1, "capability")
    assert "small-1, large-1" in (run.verdict.reason or "")


def test_a_model_is_only_noted_where_there_is_no_choice(stage: Parts) -> None:
    run = stage.run(["say", "done"], model="large-1", env={"ACP_OFFERS": "load"})
    assert run.verdict.success
    assert "large-1 is not used" in run.texts("notice")[0]


@pytest.mark.parametrize("way", ["resume", "load"])
def test_an_earlier_session_goes_on_without_its_old_story(stage: Parts, way: str) -> None:
    run = stage.run(["say", "new"], session_id="known-1", env={"ACP_OFFERS": way})
    assert run.got(way)["session_id"] == "known-1"
    assert run.got("prompt")["session_id"] == "known-1"
    assert run.summary.session_id == "known-1"
    assert run.texts("text") == ["new"]


def test_a_fork_has_a_session_of_its_own(stage: Parts) -> None:
    run = stage.run(["say", "new"], session_id="known-1", fork=True)
    assert run.got("fork")["session_id"] == "known-1"
    assert run.got("prompt")["session_id"] == run.summary.session_id == "copy-1"


@pytest.mark.parametrize(
    ("offers", "fork"), [("resume", False), ("load", False), ("modes", False), ("load", True)]
)
def test_a_session_that_cannot_go_on_is_lost(stage: Parts, offers: str, fork: bool) -> None:
    run = stage.run(["say", "x"], session_id="gone", fork=fork, env={"ACP_OFFERS": offers})
    assert (run.code, run.failure) == (1, "session_lost")


def test_mcp_servers_are_given_as_the_agent_takes_them(stage: Parts) -> None:
    servers = {
        "box": McpServer(command=["box", "-v"], env={"KEY": "secret"}),
        "web": McpServer(url="http://127.0.0.1:1/mcp", headers={"X-Key": "secret"}),
    }
    command = stage.command({"do": [["say", "x"]]}, mcp_servers=servers)
    assert "secret" not in " ".join(command.argv)
    box, web = stage.end(stage.start(command)).got("new")["mcp_servers"]
    assert (box["command"], box["args"]) == ("box", ["-v"])
    assert box["env"][0]["value"] == web["headers"][0]["value"] == "secret"
    stage.log.unlink()
    run = stage.run(["say", "x"], mcp_servers=servers, env={"ACP_OFFERS": "load"})
    assert len(run.got("new")["mcp_servers"]) == 1
    assert "MCP server web" in run.texts("notice")[0]


def test_a_system_prompt_goes_in_the_agents_own_way_or_before_the_prompt(stage: Parts) -> None:
    run = stage.run(["say", "x"], system_prompt="Be kind.")
    text = run.got("prompt")["text"]
    assert text.startswith('<instructions>\nBe kind.\n</instructions>\n\n{"do"')
    stage.log.unlink()
    run = stage.run(["say", "x"], system_prompt="Be kind.", env={"ACP_NAME": "claude-agent-acp"})
    assert run.got("new")["systemPrompt"] == {"append": "Be kind."}
    assert run.got("prompt")["text"].startswith('{"do"')


@pytest.mark.parametrize(
    ("permissions", "answer", "option"),
    [
        ("allow", None, "id_allow_always"),
        ("allow", "no such thing", "id_allow_always"),
        ("deny", None, "id_reject_once"),
        ("ask", "allow", "id_allow_always"),
        ("ask", "better not", "id_reject_once"),
    ],
)
def test_permissions_are_answered_by_the_policy(
    stage: Parts, permissions: str, answer: str | None, option: str
) -> None:
    run = stage.run(["ask", "Delete all"], ["say", "x"], permissions=permissions, answer=answer)
    assert run.got("outcome")["option_id"] == option
    assert run.verdict.success


def test_who_only_reports_gets_no_permission_to_change_files(stage: Parts) -> None:
    run = stage.run(["ask", "Delete all", "delete"], ["say", "x"], read_only=True)
    assert run.got("outcome")["option_id"] == "id_reject_once"
    stage.log.unlink()
    run = stage.run(["ask", "Run tests", "execute"], ["say", "x"], read_only=True)
    assert run.got("outcome")["option_id"] == "id_allow_once"


def test_a_turn_that_ends_with_a_refusal_of_ours_is_no_success(stage: Parts) -> None:
    run = stage.run(["say", "I will"], ["ask", "Delete all"], permissions="deny")
    assert (run.code, run.failure) == (1, "task")
    assert "not permitted: Delete all" in (run.verdict.reason or "")
    run = stage.run(["say", "I will"], ["ask", "Delete"], ["say", "Not so"], permissions="deny")
    assert run.verdict.result == "Not so"


def test_a_permission_that_a_person_must_give_becomes_a_question(stage: Parts) -> None:
    run = stage.run(["say", "Well"], ["ask", "Delete all"], ["say", "x"], permissions="ask")
    assert run.code == 0
    question = run.verdict.question or ""
    assert question.startswith('May the agent do this? Delete all\n{"command": "rm -r /"}')
    assert 'Answer "allow" to permit' in question
    assert run.got("outcome")["outcome"] == "cancelled"
    assert run.got("cancel")["session_id"] == "new-1"
    assert run.texts("text") == ["Well"]
    assert not run.texts("error")


def test_usage_is_estimated_and_then_replaced_by_what_the_agent_counts(stage: Parts) -> None:
    steps: list[list[Any]] = [
        ["used", 101],
        ["used", 120],
        ["tool", "a", {"x": 1}, ""],
        ["used", 201],
        ["used", 230, 0.5],
    ]
    run = stage.run(*steps, ["say", "x"], ["fail", -32603, "no"])
    assert run.summary.usage is not None
    told = run.summary.usage
    assert (told.input_tokens, told.output_tokens, told.cached_tokens) == (302, 48, 120)
    assert told.cost_usd == 0.5
    assert run.summary.of_session == {"cost_usd"}
    counted = {"inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 100, "totalTokens": 115}
    run = stage.run(*steps, ["say", "x"], script={"usage": counted})
    assert run.summary.usage is not None
    told = run.summary.usage
    assert (told.input_tokens, told.output_tokens, told.cached_tokens) == (110, 5, 100)
    assert told.cost_usd == 0.5


def test_geminis_quota_counts_too(stage: Parts) -> None:
    quota = {
        "token_count": {"input_tokens": 60, "output_tokens": 9},
        "model_usage": [{"model": "g"}],
    }
    run = stage.run(["say", "x"], script={"meta": {"quota": quota}})
    assert run.summary.model == "g"
    assert run.summary.usage is not None
    assert (run.summary.usage.input_tokens, run.summary.usage.output_tokens) == (60, 9)


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        ("max_tokens", "context_overflow"),
        ("max_turn_requests", "limit"),
        ("refusal", "task"),
        ("cancelled", "task"),
    ],
)
def test_a_turn_that_does_not_end_well_is_an_error(stage: Parts, reason: str, failure: str) -> None:
    run = stage.run(["say", "half"], script={"stop": reason})
    assert (run.code, run.failure) == (1, failure)
    assert run.summary.result is None
    assert run.texts("text") == ["half"]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ((-32603, "API Error: 401 no", {"errorKind": "authentication_failed"}), "authentication"),
        ((-32603, "API Error: Request rejected (429)", {"errorKind": "rate_limit"}), "rate_limit"),
        ((429, "Quota", None), "rate_limit"),
        ((-32603, "x", {"error": {"data": {"statusCode": 529}}}), "overloaded"),
        ((-32603, "x", {"codexErrorInfo": "contextWindowExceeded"}), "context_overflow"),
        ((-32000, "Authentication required", None), "authentication"),
        ((-32603, "something", "else"), "task"),
    ],
)  # fmt: skip
def test_errors_tell_what_the_provider_said(
    stage: Parts, error: tuple[int, str, Any], failure: str
) -> None:
    run = stage.run(["fail", *error])
    assert (run.code, run.failure) == (1, failure)
    assert error[1] in (run.verdict.reason or "")


def test_a_failure_that_looks_like_an_answer_is_an_error(stage: Parts) -> None:
    failure = {"severity": "error", "title": "retry limit, last status: 429 Too Many Requests"}
    meta = {"jetbrains": {"air": {"sessionFailure": failure}}}
    run = stage.run(["say", "oh"], script={"meta": meta})
    assert (run.code, run.failure, run.summary.result) == (1, "rate_limit", None)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("Error: Authentication failed with provider at http://x/v1 (HTTP 401).", "authentication"),
        ("Error: Failed to get response; retried 5 times Last error: 429 Slow down", "rate_limit"),
        ("Error: 400 This model's maximum context length is 128000 tokens.", "context_overflow"),
        ("Error: something else", "task"),
    ],
)
def test_an_error_told_as_an_answer_is_no_success(stage: Parts, text: str, failure: str) -> None:
    retried = "Info: Request failed due to a transient API error. Retrying..."
    run = stage.run(
        ["say", "I look first."], ["tool", "a", {"x": 1}, ""], ["used", 10], ["say", retried],
        ["used", 10], ["say", text], script={"usage": USED}, env={"ACP_NAME": "Copilot"},
    )  # fmt: skip
    assert (run.code, run.failure, run.summary.result) == (1, failure, None)
    assert run.texts("notice") == [retried]


def test_an_answer_that_comes_after_its_usage_stands_alone(stage: Parts) -> None:
    run = stage.run(
        ["used", 10], ["say", "I write first."], ["tool", "a", {"x": 1}, ""], ["used", 20],
        ["say", "Error: is what it ", "printed."], env={"ACP_OFFERS": "autopilot"},
    )  # fmt: skip
    assert run.summary.result == "Error: is what it printed."
    assert not [entry for entry in run.sent if entry["method"] == "mode"]


def test_what_each_answer_took_counts_where_it_is_told(stage: Parts) -> None:
    """As Qwen does; and no price that is nothing, as OpenCode tells it, is believed."""
    took = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ""}}
    took["_meta"] = {"usage": {"inputTokens": 1000, "outputTokens": 50, "totalTokens": 1050}}
    run = stage.run(
        ["say", "first"], ["told", took], ["tool", "a", {"x": 1}, ""], ["say", "x"],
        ["told", took], ["used", 9, 0.0],
    )  # fmt: skip
    assert run.summary.usage is not None
    told = run.summary.usage
    assert (told.input_tokens, told.output_tokens, told.turns) == (2000, 100, 2)
    assert told.cost_usd is None


def test_a_limit_that_codex_waits_for_is_named(stage: Parts) -> None:
    failure = {"severity": "warning", "title": "Reconnecting... 1/5", "category": "limit"}
    meta = {"jetbrains": {"air": {"sessionFailure": failure}}}
    run = stage.run(["told", {"sessionUpdate": "session_info_update", "_meta": meta}], ["say", "x"])
    notice = next(event for event in run.events if event["kind"] == "notice")
    assert (notice["text"], notice["name"]) == ("Reconnecting... 1/5", "rate_limit")


def test_a_login_that_is_missing_is_told(stage: Parts) -> None:
    run = stage.run(["say", "x"], env={"ACP_OFFERS": "login"})
    assert (run.code, run.failure) == (1, "authentication")


def test_a_key_in_the_environment_is_used_to_log_in(stage: Parts) -> None:
    run = stage.run(["say", "x"], env={"ACP_OFFERS": "login", "OPENAI_API_KEY": "key"})
    assert run.got("authenticate")["method_id"] == "api-key"
    assert run.verdict.success


def test_an_agent_that_dies_is_told_with_its_last_words(stage: Parts) -> None:
    run = stage.run(["say", "half a "], ["die", 3])
    assert (run.code, run.failure) == (1, "crash")
    assert run.verdict.reason == "The agent ended with exit code 3: the sky fell"
    assert "the sky fell" in run.stderr
    assert run.texts("text") == ["half a "]


def test_what_is_no_message_goes_to_standard_error(stage: Parts) -> None:
    lines = ["hello", "[1]", "7", '{"id": [], "result": 1}', '{"id": 1, "error": "x"}']
    run = stage.run(["garbage", *lines], ["say", "done"])
    assert run.verdict.success
    assert "hello" in run.stderr


def test_an_agent_that_speaks_no_acp_fails_at_once(stage: Parts) -> None:
    run = stage.run(argv=["sh", "-c", "echo usage: tool; echo wrong >&2; exit 2"])
    assert (run.code, run.failure) == (1, "environment")
    assert "exit code 2" in (run.verdict.reason or "")
    assert "wrong" in (run.verdict.reason or "")


def test_an_agent_that_never_answers_is_given_up(stage: Parts) -> None:
    command = stage.command({"do": []}, env={"ACP_OFFERS": "silent"})
    job = Job(initialize_s=1.0)
    (stage.path / "acp.json").write_text(job.to_text(), encoding="utf-8")
    run = stage.end(stage.start(command))
    assert (run.code, run.failure) == (1, "environment")
    assert "did not answer initialize" in (run.verdict.reason or "")


@pytest.mark.parametrize(
    ("number", "step"),
    [(signal.SIGTERM, "wait"), (signal.SIGINT, "wait"), (signal.SIGTERM, "ignore")],
)
def test_a_signal_cancels_the_turn_and_reports_no_result(
    stage: Parts, number: signal.Signals, step: str
) -> None:
    process = stage.start(stage.command({"do": [["say", "half"], [step], ["say", "x"]]}))
    stage.wait_for("prompt")
    process.send_signal(number)
    run = stage.end(process)
    assert run.code == 128 + number
    assert run.got("cancel")
    assert run.summary.result is None
    assert not run.texts("error")


def test_a_prompt_of_a_megabyte_arrives_whole(stage: Parts) -> None:
    run = stage.run(["say", "x" * 2**20])
    assert run.verdict.result == "x" * 100_000
    assert len(run.got("prompt")["text"]) > 2**20


def test_modules_of_the_workspace_are_not_imported(stage: Parts) -> None:
    for name in ("acp", "kapelle", "json"):
        (stage.workspace / f"{name}.py").write_text("raise SystemExit('mine')")
    assert stage.run(["say", "x"]).verdict.success


def test_the_bridge_imports_little() -> None:
    program = (
        "import sys, kapelle.agents.bridges.acp.__main__;"
        "print({'acp', 'pydantic', 'sqlalchemy', 'starlette', 'click'} & set(sys.modules))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "set()"
