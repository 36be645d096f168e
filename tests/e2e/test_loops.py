"""Loops tell the truth about their condition, their best and their history."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.support.ensembles import (
    answer,
    files_on_branch,
    on_branch,
    perform,
    play,
    rest,
    rule,
    start,
    subjects,
    with_playbook,
)
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git

GROW = play({"run": "echo x >> n.txt"})
COUNT = "wc -l < n.txt"
# The n-th time it is played, the n-th number is what it leaves.
SERIES = (
    "n=$(cat turn 2>/dev/null || echo 0); echo $((n+1)) > turn; set -- {}; shift $n; echo $1 > v"
)


def test_a_condition_that_holds_ends_it(kapelle: Instance, repository: Path) -> None:
    run = perform(kapelle, "loop", repository, prompt=GROW, until=["test $(wc -l < n.txt) -ge 3"])
    assert run["status"] == "completed"
    assert run["result"]["stopped_by"] == "condition"
    assert [item["verdict"] for item in run["result"]["iterations"]] == [
        "progress",
        "progress",
        "pass",
    ]
    # Retry keeps progress, and every iteration is a commit.
    assert on_branch(repository, run, "n.txt") == "x\n" * 3
    assert len(subjects(repository, run)) == 3
    assert not (repository / "n.txt").exists()


def test_a_condition_that_never_holds_fails(kapelle: Instance, repository: Path) -> None:
    run = perform(kapelle, "loop", repository, prompt=GROW, until=["false"], max_iterations=3)
    assert run["status"] == "failed"
    assert run["result"]["stopped_by"] == "max_iterations"
    assert "did not hold" in run["reason"]
    assert len(run["result"]["iterations"]) == 3
    assert on_branch(repository, run, "n.txt") == "x\n" * 3


def test_a_chatty_check_that_passes_has_passed(kapelle: Instance, repository: Path) -> None:
    loud = "head -c 5000000 /dev/zero | tr '\\0' 'y'; exit 0"
    run = perform(kapelle, "loop", repository, prompt=GROW, until=[loud])
    assert run["status"] == "completed"
    assert len(run["result"]["iterations"]) == 1


def test_the_next_iteration_is_told_the_end_of_the_output(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(
        kapelle,
        rule("NEEDLE", {"write": "found.txt", "content": "yes\n"})
        + rule("Find it", {"write": "tried.txt", "content": "no\n"}),
    )
    noisy = "test -f found.txt || { seq 1 200000; echo NEEDLE; exit 1; }"
    run = perform(kapelle, "loop", repository, prompt="Find it", until=[noisy], max_iterations=3)
    assert run["status"] == "completed", run["reason"]
    assert len(run["result"]["iterations"]) == 2


def test_a_check_that_prints_much_does_not_hide_another(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(
        kapelle,
        rule("NEEDLE", {"write": "found.txt", "content": "yes\n"})
        + rule("Find it", {"write": "tried.txt", "content": "no\n"}),
    )
    # The commands are told as well, so the word is in what this one prints only.
    quiet = "test -f found.txt || { echo NEE''DLE; exit 1; }"
    loud = "test -f found.txt || { head -c 5000000 /dev/zero | tr '\\0' 'y'; exit 1; }"
    until = [quiet, loud]
    run = perform(kapelle, "loop", repository, prompt="Find it", until=until, max_iterations=3)
    assert run["status"] == "completed", run["reason"]
    assert len(run["result"]["iterations"]) == 2
    prompt = kapelle.task(run["result"]["iterations"][1]["tasks"][0])["prompt"]
    assert "y" * 1000 in prompt
    assert len(prompt) < 20_000


def test_what_a_check_leaves_behind_does_not_join_the_work(
    kapelle: Instance, repository: Path
) -> None:
    messy = "touch litter.txt; test $(wc -l < n.txt) -ge 2"
    run = perform(kapelle, "loop", repository, prompt=GROW, until=[messy])
    assert run["status"] == "completed"
    assert files_on_branch(repository, run) >= {"n.txt"}
    assert "litter.txt" not in files_on_branch(repository, run)


def test_optimising_keeps_the_best(kapelle: Instance, repository: Path) -> None:
    series = [7, 3, 9, 5]
    prompt = play({"run": SERIES.format(" ".join(map(str, series)))})
    # The turn survives a revert where git does not look.
    prompt = prompt.replace("turn", "../turn")
    spec = {"eval": "cat v 2>/dev/null || echo 10", "direction": "minimize", "max_iterations": 4}
    run = perform(kapelle, "loop", repository, prompt=prompt, **spec)
    assert run["status"] == "completed", run["reason"]
    assert run["result"]["scores"] == [10, 7, 3, 9, 5]
    verdicts = [item["verdict"] for item in run["result"]["iterations"]]
    assert verdicts == ["start", "keep", "keep", "discard", "discard"]
    assert run["result"]["best"]["score"] == 3
    assert on_branch(repository, run, "v") == "3\n"
    head = git(repository, "rev-parse", run["workspace"]["branch"])
    assert head == run["result"]["best"]["commit"] == run["result"]["commit"]


def test_nothing_better_than_the_start_is_a_failure(kapelle: Instance, repository: Path) -> None:
    prompt = play({"run": "date +%N > v; echo 50 > w"})
    spec = {"eval": "cat w 2>/dev/null || echo 10", "direction": "minimize", "max_iterations": 2}
    run = perform(kapelle, "loop", repository, prompt=prompt, **spec)
    assert run["status"] == "failed"
    assert "nothing was better than the start" in run["reason"]
    assert subjects(repository, run) == []


def test_a_target_ends_it(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=GROW, eval=COUNT, direction="maximize", target=2, max_iterations=0,
    )  # fmt: skip
    assert run["status"] == "completed"
    assert run["result"]["stopped_by"] == "target"
    assert run["result"]["best"]["score"] == 2


def test_a_target_that_is_missed_is_a_failure(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=GROW, eval=COUNT, direction="maximize", target=9, max_iterations=2,
    )  # fmt: skip
    assert run["status"] == "failed"
    assert "the target 9 was not reached" in run["reason"]
    assert run["result"]["best"]["score"] == 2


def test_a_score_that_is_no_number_is_a_failed_iteration(
    kapelle: Instance, repository: Path
) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=GROW, eval="echo rubbish", direction="minimize", max_failures=2,
    )  # fmt: skip
    assert run["status"] == "failed"
    assert run["result"]["stopped_by"] == "max_failures"
    assert [item["verdict"] for item in run["result"]["iterations"]] == ["start", "fail", "fail"]
    assert "'rubbish'" in run["result"]["iterations"][1]["problem"]


def test_equal_scores_and_no_changes_converge(kapelle: Instance, repository: Path) -> None:
    same = perform(
        kapelle, "loop", repository,
        prompt=GROW, eval="echo 5", direction="minimize", max_iterations=0,
    )  # fmt: skip
    assert same["result"]["stopped_by"] == "converged"
    assert "the score was 5 in 3 iterations" in same["reason"]
    idle = perform(
        kapelle, "loop", repository,
        prompt=play({"result": "done"}), until=["false"], max_iterations=0,
    )  # fmt: skip
    assert idle["status"] == "failed"
    assert idle["result"]["stopped_by"] == "converged"
    assert "nothing was changed in 3 iterations" in idle["reason"]


def test_failing_agents_are_counted(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"fail": "no idea"}), until=["true"], max_failures=2,
    )  # fmt: skip
    assert run["status"] == "failed"
    assert run["result"]["stopped_by"] == "max_failures"
    assert "no idea" in run["reason"]


def test_a_judge_decides(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("You judge[\\s\\S]*iteration 2", answer({"done": True, "reasoning": "two lines"}))
        + rule("You judge", {"result": "I cannot say."})
        + rule("Grow", {"run": "echo x >> n.txt"}),
    )
    run = perform(
        kapelle, "loop", repository,
        prompt="Grow", eval_mode="agent", eval_prompt="Two lines?", max_failures=0,
    )  # fmt: skip
    assert run["status"] == "completed", run["reason"]
    assert len(run["result"]["iterations"]) == 2
    assert "unusable" in run["result"]["iterations"][0]["problem"]
    assert run["progress"]["feedback"] == "two lines"


def test_a_judge_need_not_say_why(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("Give it a score", answer({"score": 4}))
        + rule("You judge[\\s\\S]*iteration 2", answer({"done": True}))
        + rule("You judge", answer({"done": False}))
        + rule("Grow", {"run": "echo x >> n.txt"}),
    )
    run = perform(kapelle, "loop", repository, prompt="Grow", eval_mode="agent")
    assert run["status"] == "completed", run["reason"]
    assert [item["verdict"] for item in run["result"]["iterations"]] == ["progress", "pass"]
    scored = perform(
        kapelle, "loop", repository,
        prompt="Grow", eval_mode="agent", direction="maximize", target=4,
    )  # fmt: skip
    assert (scored["status"], scored["result"]["scores"]) == ("completed", [4])


def test_a_judge_with_a_schema_of_ones_own(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("You judge", answer({"score": 4, "style": "good"}))
        + rule("Grow", {"run": "echo x >> n.txt"}),
    )
    schema = {
        "type": "object",
        "properties": {"score": {"type": "number"}, "style": {"enum": ["good", "bad"]}},
        "required": ["score", "style"],
    }
    spec = {"eval_mode": "agent", "eval_schema": schema, "direction": "maximize", "target": 4}
    run = perform(kapelle, "loop", repository, prompt="Grow", **spec)
    assert run["status"] == "completed"
    strict = {**schema, "properties": {"score": {"type": "number", "minimum": 5}}}
    spec |= {"eval_schema": strict, "max_failures": 1}
    run = perform(kapelle, "loop", repository, prompt="Grow", **spec)
    assert run["status"] == "failed"
    assert "does not match the schema: score: 4 is less than" in run["reason"]


def test_steps_in_every_iteration(kapelle: Instance, repository: Path) -> None:
    steps = [play({"run": "echo a >> n.txt"}), play({"run": "echo b >> n.txt"})]
    run = perform(kapelle, "loop", repository, steps=steps, until=["test $(wc -l < n.txt) -ge 4"])
    assert run["status"] == "completed"
    assert on_branch(repository, run, "n.txt") == "a\nb\na\nb\n"
    assert all(len(item["tasks"]) == 2 for item in run["result"]["iterations"])


def test_a_checkpoint_carries_the_context(kapelle: Instance, repository: Path) -> None:
    prompt = play({"run": "echo x >> n.txt"}, {"result": "REMEMBERED"})
    until = ["test $(wc -l < n.txt) -ge 2"]
    for checkpoint in (False, True):
        run = perform(
            kapelle, "loop", repository, prompt=prompt, until=until, checkpoint=checkpoint
        )
        second = kapelle.task(run["result"]["iterations"][1]["tasks"][0])
        attempt = kapelle.home.attempts / second["attempts"][0]["id"]
        told = (attempt / "prompt").read_text(encoding="utf-8").partition("```\n")[2]
        assert ("REMEMBERED" in told) is checkpoint
        assert (second["continue_from"] is not None) is checkpoint


def test_two_loops_on_one_repository(kapelle: Instance, repository: Path) -> None:
    """Neither disturbs the other or the user's own checkout."""
    (repository / "draft.txt").write_text("mine\n", encoding="utf-8")
    before = git(repository, "status", "--porcelain")
    ids = [
        start(
            kapelle, "loop", repository,
            prompt=play({"run": f"echo {name} >> n.txt; sleep 0.2"}),
            until=["test $(wc -l < n.txt) -ge 3"],
        )
        for name in ("one", "two")
    ]  # fmt: skip
    runs = [rest(kapelle, run_id) for run_id in ids]
    assert [run["status"] for run in runs] == ["completed", "completed"]
    assert on_branch(repository, runs[0], "n.txt") == "one\n" * 3
    assert on_branch(repository, runs[1], "n.txt") == "two\n" * 3
    assert git(repository, "status", "--porcelain") == before
    assert git(repository, "rev-parse", "HEAD") == git(repository, "rev-parse", "main")


def test_in_place(kapelle: Instance, tmp_path: Path) -> None:
    run = perform(kapelle, "loop", tmp_path, prompt=GROW, until=["test $(wc -l < n.txt) -ge 2"])
    assert run["status"] == "completed"
    assert run["workspace"]["kind"] == "in_place"
    assert (tmp_path / "n.txt").read_text(encoding="utf-8") == "x\nx\n"


def told_attempt(told: list[Any]) -> str:
    (attempt,) = {event["attempt_id"] for event in told if event["attempt_id"]}
    return str(attempt)


def test_a_score_alone_verifies_nothing_and_every_place_says_so(
    kapelle: Instance, repository: Path
) -> None:
    spec = {"eval": COUNT, "direction": "maximize", "max_iterations": 1}
    (repository / "n.txt").touch()
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "a file")
    run = perform(kapelle, "loop", repository, prompt=GROW, **spec)
    assert (run["status"], run["verified"], run["need"]) == ("completed", False, "look")
    lines = kapelle.cli("events", "--run", run["id"], "--json").stdout.splitlines()
    told = [json.loads(line) for line in lines]
    ended = [event for event in told if event["kind"] == "run.completed"]
    assert [event["data"]["verified"] for event in ended] == [False]
    # Scripts find what a worker printed by its path.
    (path,) = [
        event["data"]["output_path"] for event in told if event["kind"] == "attempt.completed"
    ]
    assert Path(path) == kapelle.home.attempts / told_attempt(told) / "out.log"
    assert Path(path).exists()
    shown = kapelle.cli("status", run["id"], check=True).stdout
    assert "completed, not verified (judged by score)" in shown
    report = kapelle.get("/report")
    (entry,) = [entry for entry in report["entries"] if entry["id"] == run["id"]]
    assert (entry["verified"], entry["scores"]) == (False, [COUNT])
    text = kapelle.cli("report", check=True).stdout
    assert f"judged by a score alone, `{COUNT}`" in text
