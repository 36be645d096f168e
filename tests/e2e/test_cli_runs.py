"""Runs from the command line against a real daemon: start, follow, look, change, merge."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git
from tests.e2e.support.run_commands import loop, run_of, started, task_of
from tests.e2e.support.staging import shared_instance, until


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shared_instance(tmp_path_factory.mktemp("runs")) as instance:
        yield instance


def test_the_id_stands_alone_on_stdout(kapelle: Instance, place: Path) -> None:
    done = loop(kapelle, place, "--until", "true")
    assert done.returncode == 0
    assert done.stdout.startswith("run_")
    assert done.stdout.count("\n") == 1
    assert kapelle.cli("wait", done.stdout.strip()).returncode == 0


def test_a_number_is_made_better_and_merged(kapelle: Instance, place: Path) -> None:
    options = ["--eval", "cat n", "--minimize", "--target", "2", "-f"]
    done = loop(kapelle, place, *options)
    assert done.returncode == 0
    run_id, *lines = done.stdout.splitlines()
    assert any(line.endswith("iteration 3: score 2, better, kept") for line in lines)
    assert f"{run_id} completed, not verified (judged by score) after" in done.stderr
    text = kapelle.cli("status", run_id).stdout
    assert "the start     5" in text
    assert "3*  better, kept  2" in text
    assert f"kapelle merge {run_id}  merge it into main" in text
    assert json.loads(kapelle.cli("runs", "result", run_id).stdout)["scores"] == [5, 4, 3, 2]
    assert "+2" in kapelle.cli("diff", run_id).stdout
    assert kapelle.cli("merge", run_id).stdout.strip() == git(place, "rev-parse", "main")
    assert (place / "n").read_text(encoding="utf-8") == "2\n"
    assert kapelle.cli("archive", run_id).stdout.split() == [run_id, "archived"]
    assert run_id not in kapelle.cli("runs", "list", "--limit", "1000").stdout
    assert run_id in kapelle.cli("runs", "list", "--all", "--limit", "1000").stdout


def test_a_condition_that_never_holds_exits_with_1(kapelle: Instance, place: Path) -> None:
    done = loop(kapelle, place, "--until", "false", "--max-iterations", "2", "-f")
    assert done.returncode == 1
    run_id = done.stdout.splitlines()[0]
    assert "failed after" in done.stderr
    assert "the condition did not hold after 2 iterations" in done.stderr
    result = kapelle.cli("runs", "result", run_id)
    assert result.returncode == 1
    assert json.loads(result.stdout)["stopped_by"] == "max_iterations"
    assert kapelle.cli("runs", "wait", run_id).returncode == 1
    assert "not yet" in kapelle.cli("runs", "status", run_id).stdout


def test_following_as_json_is_one_object_per_line(kapelle: Instance, place: Path) -> None:
    done = loop(kapelle, place, "--until", "true", "-f", "--json")
    first, *events, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["id"].startswith("run_")
    assert [event["kind"] for event in events][:2] == ["run.created", "run.running"]
    assert events[-1]["kind"] == "run.completed"
    assert {"task.running", "check.passed"} <= {event["kind"] for event in events}
    assert (last["event"], last["status"], last["run"]["id"]) == ("end", "completed", first["id"])


def test_a_pipeline_works_in_one_place_and_tells_on(kapelle: Instance, place: Path) -> None:
    first = 'One.\n```rehearsal\n[[do]]\nwrite = "one"\ncontent = "1"\n```'
    second = 'Two.\n```rehearsal\n[[do]]\nrun = "cat one"\n```'
    options = ["-a", "rehearsal", "-f", "--project", "pipes"]
    done = kapelle.cli("pipeline", first, "--step", second, *options, cwd=place)
    assert done.returncode == 0
    run_id = done.stdout.splitlines()[0]
    assert "step 2 of 2: Two." in done.stdout
    text = kapelle.cli("runs", "status", run_id).stdout
    assert text.index("✓ One. (1/2)") < text.index("✓ Two. (2/2)")
    found = json.loads(kapelle.cli("runs", "list", "--project", "pipes", "--json").stdout)
    assert [run["id"] for run in found] == [run_id]
    assert kapelle.cli("runs", "list", "--project", "nothing").stderr == "Nothing matches.\n"


def test_a_pipeline_from_a_file(kapelle: Instance, place: Path) -> None:
    text = "agent: rehearsal\nsteps:\n  - build ${version}\n  - prompt: test it\n    name: Test\n"
    (place / "release.yaml").write_text(text, encoding="utf-8")
    options = ["-F", "release.yaml", "--var", "version=2", "-f"]
    done = kapelle.cli("pipeline", *options, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "step 1 of 2: build 2" in done.stdout
    assert "step 2 of 2: Test" in done.stdout
    refused = kapelle.cli("pipeline", "-F", "release.yaml", cwd=place)
    assert (refused.returncode, "release.yaml:3" in refused.stderr) == (2, True)


def test_the_history_afterwards(kapelle: Instance, place: Path) -> None:
    done = loop(kapelle, place, "--until", "true", "-f")
    run_id, *lines = done.stdout.splitlines()
    assert kapelle.cli("logs", run_id).stdout.splitlines() == lines
    assert kapelle.cli("logs", "--tail", "2", run_id).stdout.splitlines() == lines[-2:]
    tailed = kapelle.cli("runs", "tail", run_id)
    assert (tailed.returncode, tailed.stdout.splitlines()) == (0, lines)
    assert kapelle.cli("logs", "-f", run_id, "--tail", "1").stdout.splitlines() == lines[-1:]
    raw = kapelle.cli("logs", run_id, "--json").stdout.splitlines()
    assert {json.loads(line)["kind"] for line in raw} >= {"run.created", "task.completed"}
    events = kapelle.cli("events", "--run", run_id, "--json").stdout.splitlines()
    assert events == raw
    steps = kapelle.cli("runs", "steps", run_id).stdout
    assert "completed  task" in steps
    assert "done       check" in steps


def test_pause_resume_and_cancel(kapelle: Instance, place: Path) -> None:
    run_id = started(kapelle, place)
    paused = kapelle.cli("runs", "pause", "--now", run_id)
    assert paused.returncode == 0
    waited = kapelle.cli("wait", run_id)
    assert (waited.returncode, waited.stdout.split()[:2]) == (3, [run_id, "paused"])
    assert kapelle.cli("runs", "tail", run_id).returncode == 3
    assert kapelle.cli("runs", "result", run_id).returncode == 3
    assert f"kapelle runs resume {run_id}" in kapelle.cli("status", run_id).stdout
    assert kapelle.cli("runs", "resume", run_id).returncode == 0
    until(lambda: task_of(kapelle, run_id, "running"), "a running task")
    refused = kapelle.cli("runs", "result", run_id)
    assert refused.returncode == 2
    assert "no result yet" in refused.stderr
    ended = kapelle.cli("cancel", run_id, "--reason", "enough")
    assert ended.stdout.split() == [run_id, "cancelled"]
    assert task_of(kapelle, run_id, "cancelled")
    assert run_of(kapelle, run_id)["reason"] == "enough"
    assert kapelle.cli("runs", "wait", run_id).returncode == 1


def test_tasks_may_outlive_their_run(kapelle: Instance, place: Path) -> None:
    run_id = started(kapelle, place)
    ended = kapelle.cli("runs", "cancel", "--keep-tasks", run_id)
    assert ended.stdout.split() == [run_id, "cancelled"]
    task_id = task_of(kapelle, run_id, "running")
    assert task_id
    assert kapelle.cli("cancel", task_id).returncode == 0


def test_waiting_for_a_run_and_a_task_gives_up(kapelle: Instance, place: Path) -> None:
    run_id = started(kapelle, place)
    task_id = task_of(kapelle, run_id, "running")
    assert task_id
    done = kapelle.cli("wait", run_id, task_id, "--timeout", "0.5s", "--json")
    assert done.returncode == 2
    assert [found["id"] for found in json.loads(done.stdout)] == [run_id, task_id]
    assert kapelle.cli("cancel", task_id, run_id).returncode == 0


def test_the_best_of_several(kapelle: Instance, place: Path) -> None:
    prompt = 'Try.\n```rehearsal\n[[do]]\nrun = "echo $KAPELLE_TASK_ID > id; echo 1 > n"\n```'
    options = ["--eval", "wc -c < id", "--maximize", "-n", "2", "-a", "rehearsal", "-f"]
    done = kapelle.cli("best-of", prompt, *options, cwd=place)
    assert done.returncode == 0, done.stderr
    text = kapelle.cli("status", done.stdout.splitlines()[0]).stdout
    assert "1*  rehearsal" in text
    assert "2   rehearsal" in text
    assert "* the best" in text
    assert "against winner:" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "status", "zzzz"], "kapelle runs list"),
        (["runs", "status", ""], "kapelle runs list"),
        (["status", "zzzz"], "kapelle list"),
        (["status", "run_zzzz"], "kapelle runs list"),
        (["cancel", "run_zzzz"], "kapelle runs list"),
        (["runs", "list", "--status", "odd"], "Use queued"),
        (["runs", "tail", "zzzz"], "kapelle runs list"),
        (["start", "lop"], "Did you mean loop"),
        (["start", "loop", "x"], "a loop needs a condition"),
        (["loop", "x", "--until", "true", "-a", "nobody"], "nobody"),
        (["pipeline", "x"], "PROMPT or --step must have at least 2 items"),
        (["logs", "--raw", "run_1"], "kapelle runs steps"),
        (["resume", "run_1", "message"], "kapelle answer"),
        (["diff", "run_1", "--against", "run_2"], "--against compares the work of two tasks"),
        (["diff", "run_1", "--against", "task_2"], "--against compares the work of two tasks"),
    ],
)
def test_errors_say_what_to_do(kapelle: Instance, arguments: list[str], words: str) -> None:
    done = kapelle.cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_ids_are_completed(kapelle: Instance, place: Path) -> None:
    run_id = loop(kapelle, place, "--until", "true").stdout.strip()
    kapelle.cli("wait", run_id, check=True)
    for words in (f"kapelle status {run_id[:28]}", f"kapelle runs tail {run_id[:28]}"):
        asking = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        kapelle.env.update(asking, _KAPELLE_COMPLETE="bash_complete")
        try:
            assert f"plain,{run_id}" in kapelle.cli().stdout.split()
        finally:
            for name in (*asking, "_KAPELLE_COMPLETE"):
                del kapelle.env[name]
