"""Codex: its command line, and lines that the real program printed or noted."""

import json
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.adapters.codex import CodexAgent, toml
from kapelle.agents.base import AgentCommand, AgentRequest
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify, classify_event
from kapelle.agents.summary import summarise
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

SESSION = "01a1decd-13c8-70b0-b2b9-4352655c3c35"
ENDED = Exit(kind="exited", code=1)

DONE = """\
{"type":"thread.started","thread_id":"01a1decd-13c8-70b0-b2b9-4352655c3c35"}
{"type":"turn.started"}
{"type":"item.started","item":{"id":"item_0","type":"file_change","changes":[{"path":"/w/hi.txt","kind":"add"}],"status":"in_progress"}}
{"type":"item.completed","item":{"id":"item_0","type":"file_change","changes":[{"path":"/w/hi.txt","kind":"add"}],"status":"completed"}}
{"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"now shell"}}
{"type":"item.started","item":{"id":"item_2","type":"command_execution","command":"/bin/bash -lc 'echo shell'","aggregated_output":"","exit_code":null,"status":"in_progress"}}
{"type":"item.completed","item":{"id":"item_2","type":"command_execution","command":"/bin/bash -lc 'echo shell'","aggregated_output":"shell\\n","exit_code":0,"status":"completed"}}
{"type":"item.started","item":{"id":"item_3","type":"mcp_tool_call","server":"web","tool":"pong","arguments":{"a":"1"},"result":null,"error":null,"status":"in_progress"}}
{"type":"item.completed","item":{"id":"item_3","type":"mcp_tool_call","server":"web","tool":"pong","arguments":{"a":"1"},"result":{"content":[{"type":"text","text":"http pong"}],"structured_content":null},"error":null,"status":"completed"}}
{"type":"item.completed","item":{"id":"item_4","type":"agent_message","text":"All done"}}
{"type":"turn.completed","usage":{"input_tokens":3500,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":100,"reasoning_output_tokens":0}}
"""  # noqa: E501

BEGUN = '{"timestamp":"2026-11-15T10:42:24.389Z","ordinal":1,"type":"event_msg","payload":{"type":"task_started","turn_attribution":{"turn_id":"t1","turn_trigger":"exec"},"turn_id":"t1"}}'  # noqa: E501
CONTEXT = '{"timestamp":"2026-11-15T10:42:24.446Z","ordinal":5,"type":"turn_context","payload":{"turn_id":"t1","cwd":"/w","approval_policy":"never","model":"gpt-5.5"}}'  # noqa: E501
# Codex forgets what a killed run used, and all of it when the context overflows.
FORGOTTEN = '{"timestamp":"2026-11-15T10:48:03.488Z","ordinal":10,"type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":0,"output_tokens":0,"total_tokens":258400}}}}'  # noqa: E501

# As 0.166.0 writes it into its rollout.
COUNTED = (
    '{"timestamp":"2026-11-18T02:26:16.359Z","ordinal":12,"type":"event_msg","payload":{"type":'
    '"token_count","info":{"total_token_usage":{"total_tokens":120},"model_context_window":258400}'
    ',"rate_limits":{"limit_id":"codex","limit_name":null,"primary":{"used_percent":42.5,'
    '"window_minutes":300,"resets_at":1794972375},"secondary":{"used_percent":13.0,'
    '"window_minutes":10080,"resets_at":1795055175},"credits":null,"plan_type":null}}}'
)


def answered(response: str, tokens: int, cached: int, output: int) -> str:
    usage = {
        "input_tokens": tokens,
        "cached_input_tokens": cached,
        "cache_write_input_tokens": 0,
        "output_tokens": output,
        "reasoning_output_tokens": 0,
        "total_tokens": tokens + output,
    }
    payload = {"thread_id": SESSION, "response_id": response, "usage": usage}
    return json.dumps({"timestamp": "…", "type": "token_usage_record", "payload": payload})


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CODEX_API_KEY", "OPENAI_API_KEY", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)


def command(
    settings: dict[str, Any] | None = None, prompt: str = "Go", **more: Any
) -> AgentCommand:
    own = AgentSettings.model_validate({"program": sys.executable, **(settings or {})})
    run = Path("/run/1")
    return CodexAgent("codex", own).command(
        AgentRequest(prompt, Path("/w"), run / "prompt", own, **more)
    )


def configured(made: AgentCommand) -> dict[str, Any]:
    """What -c says, as Codex reads it."""
    values = [after for flag, after in zip(made.argv, made.argv[1:], strict=False) if flag == "-c"]
    return tomllib.loads("\n".join(values))


def parsed(text: str) -> list[AgentEvent]:
    agent = CodexAgent("codex", AgentSettings())
    return [event for line in text.splitlines() for event in agent.parse(line)]


def test_the_prompt_goes_by_stdin_and_options_before_the_subcommand() -> None:
    made = command({"extra_args": ["--search"], "model": "gpt-5.5"}, "--help", session_id=SESSION)
    assert made.argv[:4] == [sys.executable, "exec", "--json", "--skip-git-repo-check"]
    assert made.argv[-4:] == ["--search", "resume", SESSION, "-"]
    assert made.argv[made.argv.index("-m") + 1] == "gpt-5.5"
    assert "--dangerously-bypass-approvals-and-sandbox" in made.argv
    assert made.stdin == b"--help"
    assert command(session_id=SESSION, fork=True).argv[-3:] == ["fork", SESSION, "-"]


@pytest.mark.parametrize("extra", [["-s", "workspace-write"], ["--sandbox=read-only"]])
def test_a_sandbox_that_the_user_chose_is_not_bypassed(extra: list[str]) -> None:
    assert "--dangerously-bypass-approvals-and-sandbox" not in command({"extra_args": extra}).argv


def test_without_a_base_url_the_users_own_provider_stays() -> None:
    made = command(credential="sk-stored")
    assert configured(made) == {"features": {"unbounded_connection_retries": False}}
    assert made.env == {"CODEX_API_KEY": "sk-stored"}


def test_a_base_url_makes_a_provider_that_hardly_retries() -> None:
    config = configured(command({"base_url": "http://127.0.0.1:1/v1"}, credential="sk-stored"))
    assert config["model_provider"] == "kapelle"
    assert config["model_providers"]["kapelle"] == {
        "name": "kapelle",
        "base_url": "http://127.0.0.1:1/v1",
        "wire_api": "responses",
        "request_max_retries": 1,
        "stream_max_retries": 2,
        "env_key": "CODEX_API_KEY",
    }


def test_the_key_is_named_by_the_variable_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**env: str) -> str | None:
        config = configured(command({"base_url": "http://127.0.0.1:1/v1", "env": env}))
        named: str | None = config["model_providers"]["kapelle"].get("env_key")
        return named

    assert key() is None  # a server without keys; Codex refuses to run with one that is not set
    monkeypatch.setenv("CODEX_API_KEY", "sk-1")
    assert key() == "CODEX_API_KEY"
    assert key(OPENAI_API_KEY="sk-2") == "OPENAI_API_KEY"


def test_openai_api_key_counts_only_for_a_server_of_ones_own() -> None:
    assert CodexAgent("codex", AgentSettings()).access.variables == ("CODEX_API_KEY",)
    own = CodexAgent("codex", AgentSettings(base_url="http://127.0.0.1:1/v1")).access
    assert "OPENAI_API_KEY" in own.variables
    assert not own.needed


def test_the_system_prompt_arrives_whatever_is_in_it() -> None:
    text = 'Say "no" to \\ and \x7f,\n\x01 \'\'\' """ 🎻'
    assert configured(command(system_prompt=text))["developer_instructions"] == text


def test_another_tasks_session_gets_the_system_prompt_with_the_prompt() -> None:
    forked = command(system_prompt="Be brief.", session_id=SESSION, fork=True, attempt_number=2)
    assert forked.stdin == b"Be brief.\n\nGo"
    assert command(system_prompt="Be brief.", session_id=SESSION).stdin == b"Go"


def test_a_system_prompt_too_long_for_an_argument_is_refused() -> None:
    with pytest.raises(AgentMisconfigured, match="developer_instructions"):
        command(system_prompt="x" * 100_000)


@given(
    st.recursive(
        st.text() | st.booleans() | st.integers(-(2**60), 2**60),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )
)
def test_any_value_survives_toml(value: Any) -> None:
    written = toml(value)
    assert "\n" not in written
    assert tomllib.loads(f"x = {written}") == {"x": value}


def test_half_a_character_does_not_break_toml() -> None:
    written = toml("a\ud83d")
    assert tomllib.loads(f"x = {written}") == {"x": "a?"}


def test_mcp_servers_are_required_and_their_secrets_stay_out_of_argv(tmp_path: Path) -> None:
    servers = {
        "plain": McpServer(command=["serve", "--fast"]),
        "box-2": McpServer(command=["printenv", "A B", "TOKEN"], env={"TOKEN": "it's\na $ecret"}),
        "web": McpServer(url="http://127.0.0.1:1/mcp", headers={"Authorization": "Bearer s3cret"}),
    }
    made = command(mcp_servers=servers)
    config = configured(made)["mcp_servers"]
    assert all(server["required"] is True for server in config.values())
    assert (config["plain"]["command"], config["plain"]["args"]) == ("serve", ["--fast"])
    assert config["box-2"]["args"] == ["/run/1/codex-mcp-box-2.sh"]
    [variable] = config["web"]["env_http_headers"].values()
    assert made.env == {variable: "Bearer s3cret"}
    assert "cret" not in " ".join(made.argv)
    script = tmp_path / "start.sh"
    script.write_text(made.files["codex-mcp-box-2.sh"])
    printed = subprocess.run(["/bin/sh", script], capture_output=True, text=True).stdout
    assert printed == "it's\na $ecret\n"


@pytest.mark.parametrize(
    ("env", "home"),
    [
        ({"HOME": "/h"}, "/h/.codex"),
        ({"HOME": "/h", "CODEX_HOME": "/c/[x]"}, "/c/[[]x]"),
        ({"CODEX_HOME": "own"}, "/w/own"),
    ],
)
def test_usage_is_in_the_rollout_of_the_session(env: dict[str, str], home: str) -> None:
    assert command({"env": env}).side_log == f"{home}/sessions/**/rollout-*-{{session}}.jsonl"


def test_hooks_of_the_repository_are_never_let_run_with_ours(tmp_path: Path) -> None:
    inner = tmp_path / "repo" / "src"
    inner.mkdir(parents=True)
    (tmp_path / ".codex").mkdir()  # the user's own, outside of the repository
    (tmp_path / "repo" / ".git").mkdir()

    def asked() -> AgentCommand:
        own = AgentSettings.model_validate({"program": sys.executable})
        request = AgentRequest("Go", inner, tmp_path / "prompt", own, daemon={"url": "x"})
        return CodexAgent("codex", own).command(request)

    assert "--dangerously-bypass-hook-trust" in asked().argv
    (tmp_path / "repo" / ".codex").mkdir()
    refused = asked()
    assert not any("hook" in word for word in refused.argv)
    assert refused.files == {}


def test_a_run_that_succeeded_is_read() -> None:
    agent = CodexAgent("codex", AgentSettings())
    summary = summarise(agent, DONE.splitlines())
    assert (summary.session_id, summary.result) == (SESSION, "All done")
    assert agent.judge(summary, Exit(kind="exited", code=0), DONE).success
    tools = [event for event in parsed(DONE) if event.kind.startswith("tool_")]
    assert [(event.name, event.text) for event in tools if event.kind == "tool_result"] == [
        ("apply_patch", "add /w/hi.txt"),
        ("shell", "shell\n"),
        ("mcp__web__pong", "http pong"),
    ]
    assert tools[4].data == {"a": "1"}


def test_a_run_without_turn_completed_is_no_success() -> None:
    agent = CodexAgent("codex", AgentSettings())
    cut = DONE.splitlines()[:-1]
    assert not agent.judge(summarise(agent, cut), Exit(kind="exited", code=0), "").success


def test_usage_is_that_of_this_run_alone() -> None:
    earlier = [BEGUN, CONTEXT, answered("r1", 1000, 0, 10), answered("r2", 2000, 0, 20), FORGOTTEN]
    own = [BEGUN, CONTEXT, answered("r3", 1100, 900, 7), FORGOTTEN]
    agent = CodexAgent("codex", AgentSettings())
    assert summarise(agent, earlier).usage == Usage(input_tokens=3000, output_tokens=30, turns=2)
    summary = summarise(agent, [*earlier, *own])
    assert summary.usage == Usage(input_tokens=1100, output_tokens=7, cached_tokens=900, turns=1)
    assert summary.model == "gpt-5.5"
    assert summary.of_session == frozenset()


def test_a_turn_that_codex_began_itself_goes_on_counting() -> None:
    lines = [BEGUN, answered("r1", 10, 0, 1), BEGUN.replace('"exec"', '"goal"')]
    usage = summarise(
        CodexAgent("codex", AgentSettings()), [*lines, answered("r2", 20, 0, 2)]
    ).usage
    assert usage == Usage(input_tokens=30, output_tokens=3, turns=2)


def test_the_windows_of_a_subscription_are_told() -> None:
    (five_hour, weekly) = parsed(COUNTED)
    assert (five_hour.kind, five_hour.name) == ("window", "5-hour")
    assert five_hour.data == {"used": 0.425, "resets_at": 1794972375}
    assert (weekly.name, weekly.data["used"]) == ("weekly", 0.13)
    # What is not told is not made up, and limits of single models have their names.
    bare = COUNTED.replace('"used_percent":42.5,', "").replace('"window_minutes":300,', "")
    (unknown, named) = parsed(bare.replace('"limit_name":null', '"limit_name":"spark"'))
    assert (unknown.name, unknown.data) == ("primary spark", {"resets_at": 1794972375})
    assert named.name == "weekly spark"


def test_the_output_tells_no_usage() -> None:
    assert summarise(CodexAgent("codex", AgentSettings()), DONE.splitlines()).usage is None


def test_a_plan_is_shown_as_lines() -> None:
    line = '{"type":"item.updated","item":{"id":"i","type":"todo_list","items":[{"text":"a","completed":true},{"text":"b","completed":false}]}}'  # noqa: E501
    assert parsed(line) == [AgentEvent("plan", "[x] a\n[ ] b")]


FATAL = {
    "authentication": [
        "unexpected status 401 Unauthorized: Incorrect API key provided, url: http://x/429",
        "Missing environment variable: `CODEX_API_KEY`.",
        "Your access token could not be refreshed. Please log out and sign in again.",
    ],
    "rate_limit": [
        "exceeded retry limit, last status: 429 Too Many Requests",
        "rate limit exceeded: Rate limit reached for gpt-5.5 on tokens per min.",
    ],
    "overloaded": [
        "unexpected status 529 <unknown status code>: scripted 529, url: http://x",
        "We\u2019re currently experiencing high demand, which may cause temporary errors.",
        "Selected model is at capacity. Please try a different model.",
        "stream disconnected before completion: stream closed before response.completed",
    ],
    "billing": [
        "unexpected status 402 Payment Required: pay, url: http://x",
        "Quota exceeded. Check your plan and billing details.",
        "To use Codex with your ChatGPT plan, upgrade to Plus: https://chatgpt.com/explore/plus.",
    ],
    "capability": [
        "The model `nope` does not exist or you do not have access to it.",
        '{"detail":"The nope model is not supported when using Codex with a ChatGPT account."}',
    ],
    "context_overflow": [
        "Codex ran out of room in the model's context window. Start a new thread.",
        '{"error": {"message": "Your input exceeds the context window of this model."}}',
    ],
    "environment": ["Connection failed: error sending request"],
    "task": ["I could not pay 402 euros"],
}


@pytest.mark.parametrize(
    ("message", "kind"), [(message, kind) for kind, said in FATAL.items() for message in said]
)
def test_what_ended_a_run_is_told(message: str, kind: str) -> None:
    lines = [
        json.dumps({"type": "thread.started", "thread_id": SESSION}),
        json.dumps({"type": "error", "message": message}),
        json.dumps({"type": "turn.failed", "error": {"message": message}}),
    ]
    agent = CodexAgent("codex", AgentSettings())
    summary = summarise(agent, lines)
    assert not agent.judge(summary, ENDED, "").success
    assert classify(summary, ENDED, "").kind == kind


def test_a_usage_limit_says_when_it_ends() -> None:
    def retry_at(when: str) -> datetime:
        message = f"You\u2019ve hit your usage limit. Visit https://x or try again at {when}."
        [event] = parsed(json.dumps({"type": "turn.failed", "error": {"message": message}}))
        found = classify_event(event)
        assert found
        assert found.kind is FailureClass.RATE_LIMIT
        assert found.retry_at
        return found.retry_at

    at = datetime(2026, 11, 18, 11, 48).astimezone(UTC)
    assert retry_at("Nov 18th, 2026 11:48 AM") == at
    # It names the day where that is not today: a time that is past has been, however long ago.
    today = datetime.now().replace(hour=13, minute=18, second=0, microsecond=0)
    assert retry_at("1:18 PM") == today.astimezone(UTC)
    assert retry_at("12:00 AM") == today.replace(hour=0, minute=0).astimezone(UTC)


def test_retries_and_warnings_do_not_end_a_run() -> None:
    lines = """\
{"type":"error","message":"Reconnecting... 1/1 (exceeded retry limit, last status: 429 Too Many Requests)"}
{"type":"error","message":"Reconnecting... waiting for network (Connection failed: error sending request)"}
{"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `m1` not found."}}
"""  # noqa: E501
    events = parsed(lines)
    assert [event.kind for event in events] == ["notice"] * 3
    assert [dict(event.data) for event in events] == [{"status": 429}, {}, {}]
    told = [found and found.kind for found in map(classify_event, events)]
    assert told == [FailureClass.RATE_LIMIT, FailureClass.ENVIRONMENT, None]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("thread/resume failed: no rollout found for thread id 01a1 (code -32600)", "session_lost"),
        ("thread/fork failed: no rollout found for thread id 01a1 (code -32600)", "session_lost"),
        ("thread/resume failed: failed to read thread: … is empty (code -32603)", "session_lost"),
        (
            "thread/resume failed: error resuming thread: Fatal error: Failed to initialize"
            " session: required MCP servers failed to initialize: x: No such file or directory",
            "tool",
        ),
    ],
)
def test_what_it_cannot_begin_with_is_told_by_stderr(said: str, kind: str) -> None:
    agent = CodexAgent("codex", AgentSettings())
    verdict = agent.judge(summarise(agent, []), ENDED, f"Error: thread/resume: {said}\n")
    assert verdict.failure
    assert verdict.failure.kind == kind


def test_words_about_lost_sessions_in_its_work_prove_nothing() -> None:
    agent = CodexAgent("codex", AgentSettings())
    summary = summarise(agent, DONE.splitlines()[:-1])
    words = "thread/resume failed: no rollout found for thread id x"
    assert agent.judge(summary, ENDED, words).failure is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
ITEMS = ["agent_message", "error", "todo_list", "command_execution", "file_change", "mcp_tool_call"]
TYPES = [
    "thread.started", "turn.completed", "turn.failed", "error", "item.started", "item.updated",
    "item.completed", "token_usage_record", "event_msg", "turn_context",
]  # fmt: skip


@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(TYPES)},
        optional={
            "message": anything,
            "error": anything,
            "thread_id": anything,
            "payload": anything | st.fixed_dictionaries({"usage": anything}),
            "item": anything
            | st.fixed_dictionaries(
                {"type": st.sampled_from(ITEMS)},
                optional={
                    key: anything
                    for key in ("text", "message", "items", "changes", "arguments", "result")
                },
            ),
        },
    )
)
def test_every_line_can_be_read(said: dict[str, Any]) -> None:
    summarise(CodexAgent("codex", AgentSettings()), [json.dumps(said)])
