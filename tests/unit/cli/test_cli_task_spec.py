from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kapelle.cli.field_errors import name_options
from kapelle.cli.restarts import forked_spec
from kapelle.cli.work_commands import WorkStarter
from kapelle.domain.errors import InvalidInput, invalid_spec
from kapelle.domain.specs import TaskSpec

STARTER = WorkStarter.built_in("run")


def spec_of(*arguments: str) -> dict[str, Any]:
    context = STARTER.build_command().make_context("run", list(arguments))
    return STARTER.spec(context.params)


def test_little_is_asked_of_the_daemon_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_of("do it") == {"prompt": "do it", "directory": str(tmp_path)}


def test_auto_is_the_agent_that_calls_or_the_configured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CLAUDECODE", "CODEX_SANDBOX", "OPENCODE", "GEMINI_CLI", "QWEN_CODE"):
        monkeypatch.delenv(name, raising=False)
    assert "agent" not in spec_of("x", "--agent", "auto")
    monkeypatch.setenv("CODEX_SESSION_ID", "1")
    assert spec_of("x", "-a", "auto")["agent"] == "codex"
    assert spec_of("x", "-a", "aider")["agent"] == "aider"


def test_every_option_reaches_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    arguments = """-a claude -m big -C sub --title T -p p0 --after a,b --deps c --deps-policy run
        --continue-from d --fork --fallback e --fallback f,g --max-turns 9 --budget 2.5
        --timeout 10m --check true --check diff_not_empty --check-timeout 5s
        --retry analyze --max-attempts 4 --retry-delay 1s --env A=1 --worktree --base main
        --system-prompt S --project P --tag x --tag y --context k=v
        --mcp web=https://example.org/mcp"""
    spec = spec_of("do it", *arguments.split(), "--mcp", "docs=npx -y 'a server'")
    assert spec == {
        "prompt": "do it",
        "directory": str(tmp_path / "sub"),
        "agent": "claude",
        "model": "big",
        "title": "T",
        "priority": "P0",
        "depends_on": ["a", "b", "c"],
        "deps_policy": "run",
        "continue_from": "d",
        "fork_session": True,
        "fallback_agents": ["e", "f", "g"],
        "max_turns": 9,
        "budget_usd": 2.5,
        "timeout_s": 600,
        "checks": [
            {"command": "true", "timeout_s": 5},
            {"kind": "diff_not_empty", "timeout_s": 5},
        ],
        "retry": {"policy": "analyze", "max_attempts": 4, "delay_s": 1},
        "env": {"A": "1"},
        "mcp": {
            "web": {"url": "https://example.org/mcp"},
            "docs": {"command": ["npx", "-y", "a server"]},
        },
        "workspace": "worktree",
        "base": "main",
        "system_prompt": "S",
        "project": "P",
        "tags": ["x", "y"],
        "context": {"k": "v"},
    }
    TaskSpec.model_validate(spec)


def test_in_place() -> None:
    assert spec_of("do it", "--in-place")["workspace"] == "in_place"


def test_a_prompt_that_looks_like_an_option() -> None:
    assert spec_of("--", "--help")["prompt"] == "--help"


@pytest.mark.parametrize(
    "arguments",
    [["-p", "P9"], ["--deps-policy", "x"], ["--retry", "x"], ["-C", "/no/such/place"]],
)
def test_values_that_do_not_exist(arguments: list[str]) -> None:
    with pytest.raises(InvalidInput):
        spec_of("do it", *arguments)


def test_checks() -> None:
    checks = ["make test", "no_error_in_output"]
    assert spec_of("do it", "--check", checks[0], "--check", checks[1])["checks"] == checks
    with pytest.raises(InvalidInput):
        spec_of("do it", "--check", " ")


def test_several_attempts_mean_to_retry() -> None:
    assert "retry" not in spec_of("do it")
    retry = spec_of("do it", "--max-attempts", "2")["retry"]
    assert retry == {"policy": "same", "max_attempts": 2}
    assert spec_of("do it", "--retry", "none")["retry"] == {"policy": "none"}


@pytest.mark.parametrize(
    "options",
    [["--after", ""], ["--after", "a,,b"], ["--tag", ""], ["--continue-from", ""]],
)
def test_an_empty_id_or_tag_is_refused(options: list[str]) -> None:
    with pytest.raises(InvalidInput, match="is empty"):
        spec_of("do it", *options)


def test_two_kinds_of_workspace_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="exclude each other"):
        spec_of("do it", "--in-place", "--worktree")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fallback", ""], "--fallback is empty"),
        (["--budget", "much"], "--budget is not a number: 'much'"),
        (["--budget", "nan"], "--budget is not a number: 'nan'"),
        (["--mcp", "docs"], "--mcp 'docs' needs"),
        (["--mcp", "=x"], "--mcp needs a name"),
        (["--mcp", "docs="], "--mcp 'docs' needs"),
        (["--mcp", "docs=run 'it"], "the command cannot be read: no closing quotation"),
        (["--mcp", "a=x", "--mcp", "a=y"], "--mcp a is there twice"),
    ],
)
def test_a_bad_value_gets_a_sentence(arguments: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        spec_of("do it", *arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "0"], "--budget must be more than 0"),
        (["--budget", "2000000"], "--budget must be at most"),
        (
            ["--mcp", "bad name=https://user:secret@example.org"],
            "--mcp bad name contains a character",
        ),
        (["--env", "1A=secret"], "--env 1A contains a character"),
        (["--env", "a-b=secret"], "--env a-b contains a character"),
        (["--env", "A B=secret"], "--env A B contains a character"),
    ],
)
def test_what_the_daemon_refuses_is_named_as_it_was_typed(arguments: list[str], words: str) -> None:
    spec = spec_of("do it", *arguments)
    with pytest.raises(ValidationError) as invalid:
        TaskSpec.model_validate(spec)
    with pytest.raises(InvalidInput, match=words) as caught, name_options(STARTER.options):
        raise invalid_spec(invalid.value)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("number", ["0", "-1", "x", "1000001"])
def test_turns_are_counted_from_one(number: str) -> None:
    with pytest.raises(InvalidInput, match="--max-turns cannot be"):
        spec_of("do it", "--max-turns", number)


def test_a_dollar_sign_is_understood() -> None:
    assert spec_of("do it", "--budget", "$5")["budget_usd"] == 5


EARLIER: Any = {
    "id": "task_1",
    "agent": "claude",
    "model": "big",
    "directory": "/w",
    "workspace": {"kind": "worktree"},
    "project": None,
    "tags": [],
    "priority": "P1",
    "timeout_s": None,
    "max_turns": 5,
    "budget_usd": 1.0,
    "retry": {"policy": "same", "max_attempts": 2, "delay_s": 1.0, "max_delay_s": 9.0},
    "fallback_agents": ["codex"],
    "attempts": [{"agent": "claude"}],
}


def test_a_forked_task_takes_over_what_makes_sense() -> None:
    spec = forked_spec(EARLIER, "and now?", {"budget_usd": 2.0, "max_turns": None})
    assert TaskSpec.model_validate(spec).fork_session
    assert spec == {
        "prompt": "and now?",
        "agent": "claude",
        "model": "big",
        "continue_from": "task_1",
        "fork_session": True,
        "workspace": "worktree",
        "directory": "/w",
        "priority": "P1",
        "max_turns": 5,
        "budget_usd": 2.0,
        "retry": EARLIER["retry"],
        "fallback_agents": ["codex"],
    }


def test_a_fork_belongs_to_the_agent_that_had_the_conversation_last() -> None:
    task: Any = {**EARLIER, "attempts": [{"agent": "codex"}]}
    spec = forked_spec(task, "and now?", {})
    assert spec["agent"] == "codex"
    assert "model" not in spec
