"""Runs from the command line against a real daemon: start, follow, look, change, answer, merge."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.e2e.instance import Instance
from tests.e2e.repositories import git, make_repository
from tests.e2e.staging import set_up, shared_instance, until
from tests.e2e.terminal import Terminal

COUNT_DOWN = """Count down.
```rehearsal
[[do]]
run = "n=$(cat n); echo $((n-1)) > n"
```"""
SLOW = """Take your time.
```rehearsal
[[do]]
sleep = 60
```"""
CREW = """
[[rule]]
match = "You prepare the work of a team"
do = [{ result = '{"success_criteria": ["it is there"], "questions": ["Which?", "How?"]}' }]
[[rule]]
match = "You plan the work of a team"
do = [{ result = '''{"subgoals": [
  {"id": "a", "title": "Part A", "task": "write-a", "depends_on": []},
  {"id": "b", "title": "Part B", "task": "write-b", "depends_on": ["a"]}]}''' }]
[[rule]]
match = "write-a"
do = [{ append = "a.txt", content = "a\\n" }]
[[rule]]
match = "write-b"
do = [{ append = "b.txt", content = "b\\n" }]
[[rule]]
match = "You review the work of a team"
do = [{ result = '''{"quality": true, "consistency": true, "goal_aligned": true,
  "goal_complete": true, "feedback": ""}''' }]
"""
OWN = '''
from pydantic import BaseModel, Field
from kapelle.patterns import Context, PatternSpec, pattern


class GreetSpec(PatternSpec):
    names: list[str] = Field(description="whom to greet", min_length=1)
    loud: bool = False
    asks: bool = False


class Greeted(BaseModel):
    lines: list[str]
    reason: str


@pattern("greet", spec=GreetSpec)
async def greet(ctx: Context, spec: GreetSpec) -> Greeted:
    """Greet people."""
    names = [*spec.names, await ctx.ask("Whom else?")] if spec.asks else spec.names
    await ctx.progress(greeted=len(names))
    lines = [f"hello {name}".upper() if spec.loud else f"hello {name}" for name in names]
    return Greeted(lines=lines, reason="all greeted")
'''


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One daemon for all these tests."""
    with shared_instance(tmp_path_factory.mktemp("runs")) as instance:
        yield instance


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository with players of its own, and a pattern of its own."""
    repository = make_repository(tmp_path / "repository", {"n": "5\n"})
    set_up(repository, 'default_agent = "crew"\n', crew=CREW)
    (repository / ".kapelle" / "patterns").mkdir()
    (repository / ".kapelle" / "patterns" / "greet.py").write_text(OWN, encoding="utf-8")
    return repository


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def run_of(kapelle: Instance, run_id: str) -> Any:
    return json.loads(kapelle.cli("runs", "status", run_id, "--json", check=True).stdout)


def loop(
    kapelle: Instance, place: Path, *options: str, prompt: str = COUNT_DOWN
) -> CompletedProcess[str]:
    return kapelle.cli("loop", prompt, "-a", "rehearsal", *options, cwd=place)


def started(kapelle: Instance, place: Path, *options: str) -> str:
    """A loop at work on a task that takes long."""
    run_id = loop(kapelle, place, "--until", "true", *options, prompt=SLOW).stdout.strip()
    until(lambda: task_of(kapelle, run_id, "running"), "a running task")
    return run_id


def task_of(kapelle: Instance, run_id: str, status: str) -> str | None:
    """A task of the run that is in a state."""
    for step in kapelle.get(f"/runs/{run_id}/steps"):
        if step["kind"] == "task" and kapelle.task(step["subject"])["status"] == status:
            return str(step["subject"])
    return None


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
    assert f"{run_id} completed after" in done.stderr
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
    assert kapelle.cli("runs", "list", "--project", "nothing").stderr == "No runs match.\n"


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
    assert kapelle.cli("cancel", run_id, task_id).returncode == 0


def test_the_best_of_several(kapelle: Instance, place: Path) -> None:
    prompt = 'Try.\n```rehearsal\n[[do]]\nrun = "echo $KAPELLE_TASK_ID > id; echo 1 > n"\n```'
    options = ["--eval", "wc -c < id", "--maximize", "-n", "2", "-a", "rehearsal", "-f"]
    done = kapelle.cli("best-of", prompt, *options, cwd=place)
    assert done.returncode == 0, done.stderr
    text = kapelle.cli("status", done.stdout.splitlines()[0]).stdout
    assert "won      rehearsal" in text
    assert "passed   rehearsal" in text
    assert "against the winner:" in text


def test_a_team_is_followed_to_its_end(kapelle: Instance, place: Path) -> None:
    done = kapelle.cli("team", "Write it", "--verify", "test -s b.txt", "--progress", cwd=place)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    progress, verdict = done.stderr.splitlines()
    told = json.loads(progress)
    assert (told["run_id"], told["iteration"], told["merged"]) == (run_id, 1, 2)
    assert f"{run_id} completed" in verdict
    text = kapelle.cli("status", run_id).stdout
    assert "1  2 of 2 merged, 1 of 1 checks passed, approved" in text
    assert kapelle.cli("merge", run_id).returncode == 0
    assert (place / "b.txt").is_file()


def test_a_team_as_json_is_one_document(kapelle: Instance, place: Path) -> None:
    done = kapelle.cli("team", "Write it", "--criteria", "it is there", "--json", cwd=place)
    run = json.loads(done.stdout)
    assert (run["status"], run["result"]["goal_complete"]) == ("completed", True)
    assert done.stderr == ""
    detached = kapelle.cli("team", "Write it", "--criteria", "x", "--detach", "--json", cwd=place)
    run_id = json.loads(detached.stdout)["id"]
    assert kapelle.cli("wait", run_id).returncode == 0


def test_a_team_asks_and_goes_on_with_the_answers(kapelle: Instance, place: Path) -> None:
    asked = kapelle.cli("team", "Write it", "--ask", cwd=place, input="")
    assert asked.returncode == 3
    run_id, first, second = asked.stdout.split()
    assert first.startswith(f"{run_id}:")
    assert "? Which?" in asked.stderr
    told = f'kapelle team --resume {first} --answer "…" --answer "…"'
    assert told in asked.stderr
    text = kapelle.cli("status", run_id).stdout
    assert f"kapelle runs answer {second} " in text
    again = kapelle.cli("team", "--resume", first, "--answer", "this")
    assert (again.returncode, again.stdout.split()) == (3, [run_id, second])
    done = kapelle.cli("team", "--resume", run_id, "--answer", "so", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "completed"
    late = kapelle.cli("team", "--resume", second, "--answer", "too late")
    assert late.returncode == 2
    assert "completed" in late.stderr


def test_answers_come_through_rest_as_well(kapelle: Instance, place: Path) -> None:
    asked = kapelle.cli("team", "Write it", "--ask", "--json", cwd=place, input="")
    assert asked.returncode == 3
    run = json.loads(asked.stdout)
    assert [question["text"] for question in run["questions"]] == ["Which?", "How?"]
    for question in run["questions"]:
        body = {"answer": "so", "token": question["token"]}
        kapelle.post(f"/runs/{run['id']}/answer", body)
    assert kapelle.cli("wait", run["id"]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--answer", "x"], "which question"),
        (["--resume", "run_x:1"], "needs an answer"),
        (["goal", "--resume", "run_x:1", "--answer", "x"], "The goal cannot be changed"),
        (["--resume", "a:1", "--answer", "x", "--verify", "true"], "--verify cannot be changed"),
        (["--resume", "a:1", "--resume", "b:1", "--answer", "x", "--answer", "y"], "different"),
        (["--resume", "run_zzzz:1", "--answer", "x"], "No run's id begins with"),
        ([], "There is no goal"),
    ],
)
def test_resuming_takes_a_token_and_an_answer(
    kapelle: Instance, arguments: list[str], words: str
) -> None:
    done = kapelle.cli("team", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_ones_own_pattern(kapelle: Instance, place: Path) -> None:
    listed = kapelle.cli("start", cwd=place).stdout
    assert "greet     .kapelle/patterns/greet.py  Greet people." in listed
    assert "--names TEXT  whom to greet (required, repeatable)" in (
        kapelle.cli("start", "greet", "--help", cwd=place).stdout
    )
    done = kapelle.cli("start", "greet", "--names", "Ann", "--names", "Bo", "--loud", "-f",
                       "--title", "Hi", cwd=place)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "greeted 2" in done.stdout
    result = kapelle.cli("runs", "result", done.stdout.splitlines()[0]).stdout
    assert json.loads(result)["lines"] == ["HELLO ANN", "HELLO BO"]
    assert "There is no pattern 'greet'" in kapelle.cli("start", "greet").stderr
    refused = kapelle.cli("start", "greet", "--nmaes", "x", cwd=place)
    assert (refused.returncode, "Did you mean --names" in refused.stderr) == (2, True)


def test_a_pattern_that_asks_waits_for_the_answer(kapelle: Instance, place: Path) -> None:
    done = kapelle.cli("start", "greet", "--names", "Ann", "--asks", "-f", cwd=place)
    assert done.returncode == 3
    run_id = done.stdout.splitlines()[0]
    assert f"{run_id} waiting: Whom else?" in done.stderr
    assert "(Whom else?)" in kapelle.cli("runs").stdout
    assert kapelle.cli("runs", "answer", run_id, "").returncode == 2
    assert kapelle.cli("runs", "answer", run_id, "Bo").stdout.strip() == run_id
    assert kapelle.cli("wait", run_id).returncode == 0
    result = json.loads(kapelle.cli("runs", "result", run_id).stdout)
    assert result["lines"] == ["hello Ann", "hello Bo"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "status", "zzzz"], "kapelle runs list"),
        (["runs", "status", ""], "kapelle runs list"),
        (["status", "run_zzzz"], "kapelle runs list"),
        (["cancel", "run_zzzz"], "kapelle runs list"),
        (["runs", "list", "--status", "odd"], "Use one of queued"),
        (["runs", "tail", "zzzz"], "kapelle runs list"),
        (["start", "lop"], "Did you mean loop"),
        (["start", "loop", "--prompt", "x"], "a loop needs a condition"),
        (["loop", "x", "--until", "true", "-a", "nobody"], "nobody"),
        (["pipeline", "x"], "at least 2 steps"),
        (["logs", "--raw", "run_1"], "kapelle runs steps"),
        (["resume", "run_1", "message"], "kapelle runs answer"),
    ],
)
def test_errors_say_what_to_do(kapelle: Instance, arguments: list[str], words: str) -> None:
    done = kapelle.cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("kapelle: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_ids_are_completed(kapelle: Instance, place: Path) -> None:
    run_id = loop(kapelle, place, "--until", "true").stdout.strip()
    kapelle.cli("wait", run_id, check=True)
    for words in (f"kapelle status {run_id[:28]}", f"kapelle runs tail {run_id[:28]}"):
        asking = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        kapelle.env.update(asking, _KAPELLE_COMPLETE="complete_bash")
        try:
            assert run_id in kapelle.cli().stdout.split()
        finally:
            for name in (*asking, "_KAPELLE_COMPLETE"):
                del kapelle.env[name]


def test_following_goes_on_when_the_daemon_was_killed(tmp_path: Path) -> None:
    place = make_repository(tmp_path / "repository", {"n": "5\n"})
    instance = Instance(tmp_path / "home")
    instance.start()
    watching = None
    try:
        prompt = COUNT_DOWN.replace("[[do]]", "[[do]]\nsleep = 2\n[[do]]", 1)
        options = ["--eval", "cat n", "--minimize", "--max-iterations", "1", "-f"]
        watching = Terminal(instance, "loop", prompt, "-a", "rehearsal", *options, cwd=place)
        watching.read_until("▸ Count down.")
        instance.kill()
        assert watching.finish(60) == 0, watching.shown
        assert watching.shown.count("iteration 1: score 4, better, kept") == 1
    finally:
        if watching is not None:
            watching.close()
        instance.destroy()


def test_a_live_line_in_a_narrow_terminal(
    kapelle: Instance, place: Path, terminals: list[Terminal]
) -> None:
    prompt = COUNT_DOWN.replace("Count down.", "Count down and " + "on " * 40)
    prompt = prompt.replace("[[do]]", "[[do]]\nsleep = 1\n[[do]]", 1)
    options = ["--eval", "cat n", "--minimize", "--max-iterations", "2", "-f"]
    terminals.append(
        Terminal(kapelle, "loop", prompt, "-a", "rehearsal", *options, columns=80, cwd=place)
    )
    terminals[0].read_until("iteration 2 of 2, best 4")
    assert terminals[0].finish() == 0
    shown = terminals[0].shown
    assert "running" in shown
    assert "score 3, better, kept" in shown
    assert "kapelle merge run_" in shown


def test_an_interrupt_ends_only_the_watching(
    kapelle: Instance, place: Path, terminals: list[Terminal]
) -> None:
    arguments = ["loop", SLOW, "--until", "true", "-a", "rehearsal", "-f"]
    terminals.append(Terminal(kapelle, *arguments, cwd=place))
    run_id = terminals[0].read_until("Take your time. (iteration 1)").split()[0]
    terminals[0].process.send_signal(2)
    assert terminals[0].finish() == 130
    said = " ".join(terminals[0].shown.split())
    assert "The run goes on in the background" in said
    assert f"kapelle runs cancel {run_id}" in said
    assert run_of(kapelle, run_id)["status"] == "running"
    assert kapelle.cli("runs", "cancel", run_id).returncode == 0


def test_a_team_asks_in_the_terminal(
    kapelle: Instance, place: Path, terminals: list[Terminal]
) -> None:
    terminals.append(Terminal(kapelle, "team", "--ask", cwd=place))
    terminal = terminals[0]
    terminal.read_until("What is the goal?")
    terminal.type("Write it\n")
    terminal.read_until("? Which?")
    terminal.type("this\n")
    terminal.read_until("? How?")
    terminal.type("\n")
    time.sleep(0.2)
    terminal.type("so\n")
    assert terminal.finish(60) == 0
    shown = terminal.shown
    assert "Answered: this" in shown
    assert "Answered: so" in shown
    assert "the goal is reached after iteration 1" in " ".join(shown.split())
