"""Pipelines and best-of: steps in order, candidates side by side."""

from pathlib import Path

from tests.e2e.ensembles import (
    answer,
    files_on_branch,
    on_branch,
    perform,
    play,
    rule,
    subjects,
    with_playbook,
)
from tests.e2e.instance import Instance
from tests.e2e.repositories import git, make_repository


def test_steps_build_on_each_other(kapelle: Instance, repository: Path) -> None:
    steps = [
        {"name": "design", "prompt": play({"write": "d", "content": "d\n"}, {"result": "PLANNED"})},
        play({"run": "cat d > i"}),
        {"prompt": play({"run": "cat d i > t"}), "checks": ["test $(wc -l < t) = 2"]},
    ]
    run = perform(kapelle, "pipeline", repository, steps=steps)
    assert run["status"] == "completed", run["reason"]
    assert on_branch(repository, run, "t") == "d\nd\n"
    second = kapelle.task(run["result"]["steps"][1]["task"]["id"])
    prompt = kapelle.home.attempts / second["attempts"][0]["id"] / "prompt"
    assert "PLANNED" in prompt.read_text(encoding="utf-8")
    assert len(subjects(repository, run)) == 3
    assert kapelle.post(f"/runs/{run['id']}/merge")["base"] == "main"
    assert (repository / "t").exists()


def test_a_failed_step_ends_it(kapelle: Instance, repository: Path) -> None:
    steps = [
        play({"write": "one", "content": "1\n"}),
        {"name": "check it", "prompt": play({"result": "done"}), "checks": ["false"]},
        play({"write": "three", "content": "3\n"}),
    ]
    run = perform(kapelle, "pipeline", repository, steps=steps)
    assert run["status"] == "failed"
    assert "step 2 of 3 (check it) failed" in run["reason"]
    assert len(run["result"]["steps"]) == 2
    assert "three" not in files_on_branch(repository, run)


def test_a_workspace_for_each_step(kapelle: Instance, repository: Path) -> None:
    steps = [play({"write": "one", "content": "1\n"}), play({"run": "cat one > two"})]
    run = perform(kapelle, "pipeline", repository, steps=steps, workspaces="each")
    assert run["status"] == "completed", run["reason"]
    first, second = (kapelle.task(step["task"]["id"]) for step in run["result"]["steps"])
    assert first["workspace"]["path"] != second["workspace"]["path"]
    assert on_branch(repository, run, "two") == "1\n"


def test_steps_in_directories_of_their_own(kapelle: Instance, repository: Path) -> None:
    steps = [
        play({"run": "mkdir -p docs && echo d > docs/d"}),
        {"prompt": play({"run": "pwd > where"}), "directory": str(repository / "docs")},
    ]
    (repository / "docs").mkdir()
    run = perform(kapelle, "pipeline", repository, steps=steps)
    assert run["status"] == "completed", run["reason"]
    where = on_branch(repository, run, "docs/where")
    assert where is not None
    assert where.strip() == f"{run['workspace']['path']}/docs"


def test_a_step_in_another_repository(kapelle: Instance, repository: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other")
    steps = [
        play({"write": "one", "content": "1\n"}),
        {"prompt": play({"write": "two", "content": "2\n"}), "directory": str(other)},
    ]
    run = perform(kapelle, "pipeline", repository, steps=steps)
    assert run["status"] == "failed"
    assert "--workspaces each" in run["reason"]
    run = perform(kapelle, "pipeline", repository, steps=steps, workspaces="each")
    assert run["status"] == "completed", run["reason"]
    second = run["result"]["steps"][1]["task"]
    assert git(other, "show", f"{second['branch']}:two") == "2"


def test_the_best_score_wins(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("Make it small", {"run": "od -An -N2 -tu2 /dev/urandom | tr -d ' ' > size"}),
    )
    run = perform(
        kapelle, "best-of", repository,
        prompt="Make it small", count=3, eval="cat size", direction="minimize",
    )  # fmt: skip
    assert run["status"] == "completed", run["reason"]
    candidates = run["result"]["candidates"]
    scores = [candidate["score"] for candidate in candidates]
    assert len(scores) == 3
    winner = candidates[run["result"]["winner"] - 1]
    assert winner["score"] == min(scores)
    size = on_branch(repository, run, "size")
    assert size is not None
    assert float(size) == min(scores)
    losers = [candidate for candidate in candidates if candidate is not winner]
    assert all("size" in loser["against_winner"] for loser in losers)
    against = f"/tasks/{losers[0]['task']['id']}/diff?against={winner['task']['id']}"
    assert kapelle.get(against)["files"] == ["size"]


def test_checks_sort_candidates_out(kapelle: Instance, repository: Path) -> None:
    root = kapelle.home.root
    for name, text in {"good": "yes\n", "bad": "no\n", "idle": None}.items():
        steps = [{"write": "w", "content": text}] if text else [{"result": "done"}]
        (root / f"{name}.toml").write_text(rule(".", *steps), encoding="utf-8")
    kapelle.home.config.write_text(
        "".join(
            f'[agents.{name}]\ntype = "rehearsal"\nplaybook = "{root}/{name}.toml"\n'
            for name in ("good", "bad", "idle")
        ),
        encoding="utf-8",
    )
    spec = {"prompt": "Do it", "candidates": ["bad", "good", "idle"], "checks": ["grep yes w"]}
    run = perform(kapelle, "best-of", repository, **spec)
    assert run["status"] == "completed", run["reason"]
    assert run["result"]["winner"] == 2
    problems = [candidate["problem"] for candidate in run["result"]["candidates"]]
    assert problems[1] is None
    assert "grep yes w" in problems[0]
    assert "diff_not_empty" in problems[2]
    run = perform(kapelle, "best-of", repository, **{**spec, "candidates": ["bad", "idle"]})
    assert run["status"] == "failed"
    assert "no candidate did it" in run["reason"]


def test_a_judge_chooses(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("Choose the one", answer({"winner": 2, "reasoning": "neater"}))
        + rule("Do it", {"run": "date +%N > w"}),
    )
    run = perform(kapelle, "best-of", repository, prompt="Do it", count=2)
    assert run["status"] == "completed", run["reason"]
    assert run["result"]["winner"] == 2
    assert "neater" in run["reason"]
    with_playbook(
        kapelle,
        rule("Choose the one", answer({"winner": 9, "reasoning": "?"}))
        + rule("Do it", {"run": "date +%N > w"}),
    )
    run = perform(kapelle, "best-of", repository, prompt="Do it", count=2)
    assert run["status"] == "failed"
    assert "candidate 9" in run["reason"]


def test_best_of_needs_a_repository(kapelle: Instance, tmp_path: Path) -> None:
    run = perform(kapelle, "best-of", tmp_path, prompt="Do it", count=2)
    assert run["status"] == "failed"
    assert "needs a git repository" in run["reason"]
