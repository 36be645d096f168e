"""What the commands of the patterns ask of the daemon, and what they refuse before they do."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kapelle.cli.field_errors import name_options
from kapelle.cli.schema import schemas
from kapelle.cli.spec_options import options_of
from kapelle.cli.work_commands import WorkStarter
from kapelle.domain.errors import FieldProblem, InvalidInput, invalid_spec
from kapelle.patterns import registry
from kapelle.patterns.pipeline import PipelineSpec

PATTERNS = {pattern.name: pattern.spec for pattern in registry.load_built_in()}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec_of(line: str) -> dict[str, Any]:
    """The specification that a command line asks for, as the daemon would take it."""
    name, *arguments = shlex.split(line)
    starter = WorkStarter.built_in(name)
    spec = starter.spec(starter.build_command().make_context(name, arguments).params)
    with name_options(starter.options):
        try:
            PATTERNS[name].model_validate(spec)
        except ValidationError as error:
            raise invalid_spec(error) from None
    return spec


def refusal(line: str) -> InvalidInput:
    """What the command line, or else the specification, says against it."""
    with pytest.raises(InvalidInput) as caught:
        spec_of(line)
    return caught.value


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("pipeline design build", {"steps": ["design", "build"]}),
        ("pipeline design --step build --step test", {"steps": ["design", "build", "test"]}),
        ("pipeline --step a --step b", {"steps": ["a", "b"]}),
        ("pipeline a --step '{\"prompt\": \"b\", \"agent\": \"codex\"}'",
         {"steps": ["a", {"prompt": "b", "agent": "codex"}]}),
        ("pipeline a b --workspaces each", {"steps": ["a", "b"], "workspaces": "each"}),
        ("loop fix --until 'make test'", {"prompt": "fix", "until": ["make test"]}),
        ("loop fix --until a --until diff_not_empty",
         {"prompt": "fix", "until": ["a", "diff_not_empty"]}),
        ("loop fix --step check --until a", {"steps": ["fix", "check"], "until": ["a"]}),
        ("loop --step one --until a", {"steps": ["one"], "until": ["a"]}),
        ("loop faster --eval ./bench --minimize",
         {"prompt": "faster", "eval": "./bench", "direction": "minimize"}),
        ("loop better --eval ./bench --direction maximize --target 0.9",
         {"prompt": "better", "eval": "./bench", "direction": "maximize", "target": 0.9}),
        ("loop x --eval e --minimize --direction minimize",
         {"prompt": "x", "eval": "e", "direction": "minimize"}),
        ("loop x --eval e --maximize --target -3",
         {"prompt": "x", "eval": "e", "direction": "maximize", "target": -3}),
        ("loop x --until a --max-iterations 0 --max-failures 5 --convergence 0 --cooldown 2m "
         "--eval-timeout 90 --checkpoint",
         {"prompt": "x", "until": ["a"], "max_iterations": 0, "max_failures": 5, "convergence": 0,
          "cooldown_s": 120, "eval_timeout_s": 90, "checkpoint": True}),
        ("loop x --until a --cooldown 0", {"prompt": "x", "until": ["a"], "cooldown_s": 0}),
        ("loop x --judge claude", {"prompt": "x", "eval_mode": "agent", "judge": "claude"}),
        ("loop x --eval-mode agent", {"prompt": "x", "eval_mode": "agent"}),
        ("loop x --eval-prompt 'is it nice?' --judge-model big --maximize",
         {"prompt": "x", "eval_mode": "agent", "eval_prompt": "is it nice?", "judge_model": "big",
          "direction": "maximize"}),
        ("team 'build it'", {"goal": "build it"}),
        ("team g --criteria a --criteria b --verify 'make test' --planner p --worker w "
         "--reviewer r --planner-model pm --worker-model wm --reviewer-model rm "
         "--max-iterations 2 --max-workers 3 --ask",
         {"goal": "g", "success_criteria": ["a", "b"], "verify": ["make test"], "planner": "p",
          "worker": "w", "reviewer": "r", "planner_model": "pm", "worker_model": "wm",
          "reviewer_model": "rm", "max_iterations": 2, "max_workers": 3, "ask": True}),
        ("team g --non-interactive", {"goal": "g", "ask": False}),
        ("best-of x", {"prompt": "x"}),
        ("best-of x --candidate claude --candidate codex:big,gemini",
         {"prompt": "x", "candidates": ["claude", "codex:big", "gemini"]}),
        ("best-of x --candidate claude --candidate claude",
         {"prompt": "x", "candidates": ["claude", "claude"]}),
        ("best-of x --candidate claude -n 3",
         {"prompt": "x", "candidates": ["claude"], "count": 3}),
        ("best-of x --check a --check diff_not_empty --eval e --minimize --eval-timeout 5m",
         {"prompt": "x", "checks": ["a", "diff_not_empty"], "eval": "e", "direction": "minimize",
          "eval_timeout_s": 300}),
        ("best-of x --judge claude --judge-model big",
         {"prompt": "x", "judge": "claude", "judge_model": "big"}),
    ],
)  # fmt: skip
def test_what_is_asked_for(line: str, asked: dict[str, Any], here: Path) -> None:
    assert spec_of(line) == {**asked, "directory": str(here)}


@pytest.mark.parametrize("command", ["pipeline a b", "loop a --until b", "team a", "best-of a"])
def test_what_every_pattern_takes(command: str, here: Path) -> None:
    (here / "sub").mkdir()
    bare = spec_of(command)
    shared = """-a claude -m big -C sub --title T --project P -p p0 --fallback e,f --env A=1
        --worktree --base dev --system-prompt S --task-timeout 10m --max-seconds 2h
        --max-agent-calls 7 --budget $2.5"""
    assert spec_of(f"{command} {shared}") == {
        **bare,
        "directory": str(here / "sub"),
        "agent": "claude",
        "model": "big",
        "title": "T",
        "project": "P",
        "priority": "P0",
        "fallback_agents": ["e", "f"],
        "env": {"A": "1"},
        "workspace": "worktree",
        "base": "dev",
        "system_prompt": "S",
        "task_timeout_s": 600,
        "max_seconds": 7200,
        "max_agent_calls": 7,
        "budget_usd": 2.5,
    }


@pytest.mark.parametrize(
    ("line", "problem", "instead"),
    [
        ("pipeline", "There are no steps", "kapelle pipeline"),
        ("pipeline alone", "must have at least 2 items", "--step"),
        (f"pipeline {'x ' * 21}", "must have at most 20 items", "PROMPT"),
        ("pipeline a ''", "is empty", ""),
        ("pipeline - -", "Only one step can come from stdin", ""),
        ("pipeline a b --var x=1", "for the steps of a file", "-F"),
        ("pipeline a -F steps.yaml", "given twice", "Leave the file out"),
        ("pipeline a b --workspaces both", "cannot be 'both'", "shared or each"),
        ("loop x", "needs a condition", "--until"),
        ("loop x --until a --eval b --minimize", "passes or not", "--eval instead"),
        ("loop x --until a --minimize", "no number", "--eval"),
        ("loop x --eval a", "need a direction", "--minimize or --maximize"),
        ("loop x --minimize", "no number", "add --eval"),
        ("loop x --eval a --minimize --maximize", "exclude each other", "Leave one"),
        ("loop x --eval a --minimize --direction maximize", "exclude each other", ""),
        ("loop x --eval a --direction up", "cannot be 'up'", "minimize or maximize"),
        ("loop x --until a --target 3", "--target", "--minimize"),
        ("loop x --eval a --minimize --target much", "not a number", "--target 100"),
        ("loop x --eval a --minimize --target nan", "not a number", "--target 100"),
        ("loop x --eval a --minimize --eval-mode agent", "a judge decides", "--eval-prompt"),
        ("loop x --eval a --minimize --judge b", "a judge decides", "--eval-prompt"),
        ("loop x --until a --judge b", "a judge decides", "leave out --until"),
        ("loop x --until a --eval-mode shell --judge b", "--judge need --eval-mode", "agent"),
        ("loop x --eval-mode magic", "cannot be 'magic'", "shell or agent"),
        ("loop x --until ' '", "--until is empty", "make test"),
        ("loop x --until no_error_in_output", "output of a single task", "diff_not_empty"),
        ("loop x --until a --cooldown soon", "not a duration", "10m"),
        ("loop --until a", "There is no prompt", "kapelle loop"),
        ("team g --ask --non-interactive", "exclude each other", "Leave one"),
        ("team", "There is no goal", "--goal-file"),
        ("team ''", "The goal is empty", "kapelle team"),
        ("team g --verify no_error_in_output", "output of a single task", "diff_not_empty"),
        ("team g --criteria ''", "--criteria is empty", ""),
        ("best-of x --candidate a", "no choice", "--count"),
        ("best-of x --candidate a --candidate b -n 2", "several candidates", "--count"),
        ("best-of x --candidate ''", "--candidate is empty", ""),
        ("best-of x --eval a", "--minimize or --maximize says which is better", ""),
        ("best-of x --minimize", "--eval prints a number", ""),
        ("best-of x --eval a --minimize --judge b", "either the number of --eval", "leave one"),
        ("best-of x --candidate claude: -n 2", "'claude:' lacks the model", "AGENT:MODEL"),
        ("best-of", "There is no prompt", "kapelle best-of"),
        ("team g --in-place --worktree", "exclude each other", "Leave one"),
        ("team g --budget 0", "--budget must be more than 0", ""),
        ("team g --max-seconds x", "--max-seconds is not a duration", "10m"),
        ("team g -C /no/such/place", "is not a directory", "-C"),
    ],
)  # fmt: skip
def test_contradictions_get_a_sentence(line: str, problem: str, instead: str) -> None:
    error = refusal(line)
    assert problem in error.message
    assert instead in f"{error.message} {error.hint}"


def test_the_judges_schema_is_read_from_a_file(here: Path) -> None:
    schema = {"type": "object", "properties": {"done": {"type": "boolean"}}}
    (here / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    spec = spec_of("loop x --eval-schema schema.json")
    assert spec["eval_schema"] == schema
    assert spec["eval_mode"] == "agent"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read"), ("{", "is not JSON"), ("[]", "is not a schema"), ("{}", "no")],
)
def test_a_schema_that_is_none(here: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (here / "schema.json").write_text(content, encoding="utf-8")
    assert problem in refusal("loop x --eval-schema schema.json").message


def test_prompts_and_goals_come_from_files_too(here: Path) -> None:
    (here / "prompt").write_text("from a file\n", encoding="utf-8")
    assert spec_of("loop --prompt-file prompt --until a")["prompt"] == "from a file\n"
    assert spec_of("team --goal-file prompt")["goal"] == "from a file\n"
    assert "given twice" in refusal("team again --goal-file prompt").message
    assert "The goal file none cannot be read" in refusal("team --goal-file none").message


def test_options_go_before_what_a_pipelines_file_says(here: Path) -> None:
    text = "agent: one\ntitle: Release\nsteps: ['build ${version}', test]\n"
    (here / "release.yaml").write_text(text, encoding="utf-8")
    spec = spec_of("pipeline -F release.yaml --var version=2 -a other --workspaces each")
    pipeline = PipelineSpec.model_validate(spec)
    assert (pipeline.agent, pipeline.title, pipeline.workspaces) == ("other", "Release", "each")
    assert [step.prompt for step in pipeline.steps] == ["build 2", "test"]
    assert pipeline.directory == str(here)


def test_a_secret_of_the_environment_is_not_repeated() -> None:
    assert "secret" not in refusal("loop x --until a --env 'a b=secret'").message


def test_a_field_is_spelled_as_its_option_and_a_setting_as_it_is() -> None:
    problem = FieldProblem(("limits", 0, "turns"), "must be at least 1")
    setting = "/r/.kapelle/config.toml: workspace.docker.workdir holds it"
    options = options_of(schemas()["workflow"])
    with pytest.raises(InvalidInput) as caught, name_options(options):
        raise InvalidInput(f"workflow: {problem.sentence}; {setting}", fields=[problem])
    assert caught.value.message == (
        f"workflow: --limit number 1: turns must be at least 1; {setting}"
    )
