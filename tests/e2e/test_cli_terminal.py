"""The command line in a terminal: live progress, colours, and an interrupt."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import kinds, shell_instance
from tests.e2e.support.terminal import Terminal


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shell_instance(tmp_path_factory.mktemp("terminal")) as instance:
        yield instance


def opened(terminals: list[Terminal], kapelle: Instance, *arguments: str) -> Terminal:
    terminals.append(Terminal(kapelle, *arguments))
    return terminals[-1]


def test_following_shows_live_progress(shared: Instance, terminals: list[Terminal]) -> None:
    prompt = r"echo first; sleep 2.5; printf '\033]0;evil\007last\n'; exit 1"
    terminal = opened(terminals, shared, "run", "-f", "--in-place", prompt, "--title", "Live")
    terminal.read_until("first")
    terminal.read_until("running")
    assert terminal.finish() == 1
    assert "last" in terminal.shown
    assert "evil" not in terminal.shown
    assert "\x1b]0;" not in terminal.shown
    assert "kapelle retry" in terminal.shown


def test_a_check_is_seen_while_it_runs_and_when_it_fails(
    shared: Instance, terminals: list[Terminal], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    check = f"until [ -e {gate} ]; do sleep 0.1; done; echo the-cause; exit 4"
    options = ["--check", check, "--title", "T"]
    terminal = opened(terminals, shared, "run", "-f", "--in-place", "true", *options)
    task_id = terminal.read_until("▸ checking: until").split()[0]
    terminal.read_until("running")
    task = shared.task(task_id)
    assert task["checking"]["command"] == check
    assert task["reason"].startswith("attempt 1: checking: until [ -e")
    gate.touch()
    assert terminal.finish() == 1
    assert "✗ check failed: until" in terminal.shown
    assert "    the-cause" in terminal.shown
    begun, failed = (kinds(shared, task_id, f"check.{what}")[0] for what in ("started", "failed"))
    assert begun["command"] == check
    assert (failed["exit_code"], failed["output"]) == (4, "the-cause\n[exit code 4]")


def test_a_check_in_the_words_of_bash_is_told_how_to_have_it(shared: Instance) -> None:
    done = shared.cli("run", "-f", "--in-place", "true", "--check", "true | cat; [[ 1 == 1 ]]")
    assert "Commands run under /bin/sh" in done.stdout or done.returncode == 0  # where sh is bash


def test_a_further_attempt_says_why_there_is_one(shared: Instance, tmp_path: Path) -> None:
    check = f"test -e {tmp_path}/again || {{ touch {tmp_path}/again; echo not yet; false; }}"
    options = ["--check", check, "--retry", "same", "--retry-delay", "0.1"]
    done = shared.cli("run", "-f", "--in-place", "true", *options)
    assert done.returncode == 0, done.stderr
    assert "    not yet\n" in done.stdout
    assert "── attempt 2 by sh, after: failed its check: test -e" in done.stdout
    assert "✓ check passed: test -e" in shared.cli("logs", done.stdout.split()[0]).stdout


def test_an_interrupt_ends_only_the_watching(shared: Instance, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, shared, "run", "-f", "--in-place", "echo begun; sleep 60")
    task_id = terminal.read_until("begun").split()[0]
    terminal.process.send_signal(2)
    assert terminal.finish() == 130
    assert "goes on in the background" in terminal.shown
    assert f"kapelle cancel {task_id}" in " ".join(terminal.shown.split())
    assert shared.task(task_id)["status"] == "running"
    assert shared.cli("cancel", task_id).returncode == 0


def test_waiting_shows_every_task(
    shared: Instance, terminals: list[Terminal], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    prompt = f"until [ -e {gate} ]; do sleep 0.1; done"
    ids = [
        shared.cli("run", "--in-place", prompt, "--title", f"number {n}").stdout.strip()
        for n in range(2)
    ]
    terminal = opened(terminals, shared, "wait", *ids)
    terminal.read_until("number 0")
    terminal.read_until("number 1")
    gate.touch()
    assert terminal.finish() == 0
    assert all(f"{task_id[-5:]}  completed" in terminal.shown for task_id in ids)


def test_colours_only_where_they_are_wanted(shared: Instance, terminals: list[Terminal]) -> None:
    task_id = shared.cli("run", "--in-place", "true").stdout.strip()
    shared.cli("wait", task_id, check=True)
    coloured = opened(terminals, shared, "status", task_id)
    assert coloured.finish() == 0
    assert "\x1b[32mcompleted" in coloured.shown
    shared.env["NO_COLOR"] = "1"
    plain = opened(terminals, shared, "status", task_id)
    assert plain.finish() == 0
    assert "\x1b" not in plain.shown
    del shared.env["NO_COLOR"]


def test_what_a_task_asks_is_answered_where_it_is_followed(
    shared: Instance, terminals: list[Terminal]
) -> None:
    asks = 'Play.\n```rehearsal\n[[do]]\nask = "Which?"\n```'
    terminal = opened(terminals, shared, "run", "-f", "--in-place", "-a", "rehearsal", asks)
    terminal.read_until("? Which?")
    terminal.read_until("Your answer: ")
    terminal.type("the left one\n")
    terminal.read_until("? Which?")
    terminal.read_until("Your answer: ")
    terminal.type("\x04")
    assert terminal.finish() != 0
    [task] = [one for one in shared.get("/tasks")["tasks"] if one["waiting_for"] == "input"]
    task = shared.get(f"/tasks/{task['id']}")
    assert len(task["attempts"]) == 2
    shared.post(f"/tasks/{task['id']}/cancel", {})
