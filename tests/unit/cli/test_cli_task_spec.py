from pathlib import Path
from typing import Any

import pytest

from kapelle.cli.commands import load
from kapelle.cli.task_spec import check_specs, retry_spec, task_spec
from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import TaskSpec


def spec_of(*arguments: str) -> dict[str, Any]:
    return task_spec(load("run").make_context("run", list(arguments)).params)


def test_little_is_asked_of_the_daemon_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_of("do it") == {"prompt": "do it", "directory": str(tmp_path)}


def test_every_option_reaches_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    arguments = """-a claude -m big -C sub --title T -p p0 --after a,b --deps c --deps-policy run
        --continue-from d --timeout 10m --check true --check diff_not_empty --check-timeout 5s
        --retry same --max-attempts 4 --retry-delay 1s --env A=1 --worktree --base main
        --system-prompt S --project P --tag x --tag y --context k=v"""
    spec = spec_of("do it", *arguments.split())
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
        "timeout_s": 600,
        "checks": [
            {"command": "true", "timeout_s": 5},
            {"kind": "diff_not_empty", "timeout_s": 5},
        ],
        "retry": {"policy": "same", "max_attempts": 4, "delay_s": 1},
        "env": {"A": "1"},
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
    assert check_specs(["make test", "no_error_in_output"], None) == [
        "make test",
        "no_error_in_output",
    ]
    with pytest.raises(InvalidInput):
        check_specs([" "], None)


def test_several_attempts_mean_to_retry() -> None:
    assert retry_spec(None, None, None) is None
    assert retry_spec(None, 2, None) == {"policy": "same", "max_attempts": 2}
    assert retry_spec("none", None, None) == {"policy": "none"}


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
