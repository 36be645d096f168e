"""What an agent cannot be given is refused before a run begins, and before it is scheduled."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import start
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import set_up, shell_instance

PATTERNS: dict[str, dict[str, Any]] = {
    "loop": {"prompt": "x", "until": ["true"]},
    "team": {"goal": "x"},
    "pipeline": {"steps": ["x", "y"]},
    "best-of": {"prompt": "x", "count": 2},
}
OF_THE_RUN: list[tuple[str, dict[str, Any], str]] = [
    (pattern, {**spec, **wish}, name)
    for pattern, spec in PATTERNS.items()
    for wish, name in (
        ({"model": "large"}, "model"),
        ({"system_prompt": "Be brief."}, "system prompt"),
        ({"budget_usd": 1}, "budget"),
    )
]
OF_A_ROLE: list[tuple[str, dict[str, Any], str]] = [
    ("loop", {"prompt": "x", "eval_mode": "agent", "judge_model": "large"}, "model"),
    ("loop", {"steps": [{"prompt": "x", "model": "large"}], "until": ["true"]}, "model"),
    ("team", {"goal": "x", "planner_model": "large"}, "model"),
    ("team", {"goal": "x", "worker_model": "large"}, "model"),
    ("team", {"goal": "x", "reviewer_model": "large"}, "model"),
    ("pipeline", {"steps": ["x", {"prompt": "y", "model": "large"}]}, "model"),
    ("best-of", {"prompt": "x", "candidates": ["sh", "sh:large"]}, "model"),
    ("best-of", {"prompt": "x", "count": 2, "judge": "sh", "judge_model": "large"}, "model"),
    ("pipeline", {"steps": ["x", {"prompt": "y", "system_prompt": "z"}]}, "system prompt"),
    ("loop", {"steps": [{"prompt": "y", "system_prompt": "z"}], "until": ["x"]}, "system prompt"),
    ("best-of", {"prompt": "x", "count": 2, "judge_model": "large"}, "model"),
    ("workflow", {"task": "x", "limits": ["implement:turns=3"]}, "limit of turns"),
    ("workflow", {"task": "x", "limits": ["review:usd=3"]}, "budget"),
    ("tracks", {"worker_turns": 3}, "limit of turns"),
    ("tracks", {"verifier_turns": 3}, "limit of turns"),
    ("tracks", {"verifier_tools": ["Bash"]}, "list of tools"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Its default agent is a shell, which takes a prompt and nothing else."""
    with shell_instance(tmp_path_factory.mktemp("abilities")) as instance:
        yield instance


def made(kapelle: Instance, directory: Path) -> list[Any]:
    """The runs and schedules of a directory."""
    found = [*kapelle.get("/runs")["runs"], *kapelle.get("/schedules")["schedules"]]
    return [item for item in found if item["directory"] == str(directory)]


@pytest.mark.parametrize(
    ("pattern", "spec", "name"),
    [*OF_THE_RUN, *OF_A_ROLE],
)
def test_what_an_agent_cannot_be_given_is_refused_at_the_start(
    shared: Instance, repository: Path, pattern: str, spec: dict[str, Any], name: str
) -> None:
    told = f"The agent sh cannot be given a {name}"
    for agent in ("sh", None):
        wanted = {"directory": str(repository), "agent": agent, **spec}
        for path, body in (
            ("/runs", {"pattern": pattern, "spec": wanted}),
            ("/schedules", {"kind": pattern, "every_s": 60, "spec": wanted}),
        ):
            with pytest.raises(ApiError, match=told) as refused:
                shared.post(path, body)
            assert refused.value.status == 422
    assert made(shared, repository) == []


def test_the_runs_model_is_not_asked_of_an_agent_that_it_was_not_named_for(
    shared: Instance, repository: Path
) -> None:
    able = '[agents.able]\ntype = "command"\ncommand = ["sh", "-c", "true {model} {prompt}"]\n'
    set_up(repository, able)
    spec = {"prompt": "x", "agent": "able", "model": "large", "eval_mode": "agent"}
    run_id = start(shared, "loop", repository, **spec, judge="sh")
    assert shared.cli("cancel", run_id).returncode == 0
    with pytest.raises(ApiError, match="The agent sh cannot be given a model"):
        start(shared, "loop", repository, **spec, judge="sh", judge_model="large")


def test_the_option_is_named_and_one_candidate_that_cannot_is_enough(
    shared: Instance, repository: Path
) -> None:
    for command, told in (
        (("workflow", "x", "--limit", "implement:turns=3", "--implementer", "rehearsal",
          "--implementer", "sh"), "--limit: The agent sh cannot be given a limit of turns."),
        (("tracks", "--verifier-tool", "Bash", "--verifier", "sh", "-a", "rehearsal"),
         "--verifier-tool: The agent sh cannot be given a list of tools."),
    ):  # fmt: skip
        refused = shared.cli(*command, cwd=repository)
        assert told in refused.stderr
    assert made(shared, repository) == []
    # Who does not verify needs no tools.
    start(shared, "tracks", repository, agent="sh", verify=False, verifier_tools=["Bash"])
