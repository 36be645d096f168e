"""Runs followed in a terminal: the live line, an interrupt, a killed daemon, and questions."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.run_commands import COUNT_DOWN, SLOW, run_of
from tests.e2e.support.staging import shared_instance
from tests.e2e.support.terminal import Terminal


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shared_instance(tmp_path_factory.mktemp("terminal")) as instance:
        yield instance


def test_following_goes_on_when_the_daemon_was_killed(tmp_path: Path, place: Path) -> None:
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
    assert "kapelle merge " in shown


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
    terminals.append(Terminal(kapelle, "team", "-f", cwd=place))
    terminal = terminals[0]
    terminal.read_until("What is the goal?")
    terminal.type("Write it\n")
    terminal.read_until("? It is reached when")
    terminal.read_until("Your answer: ")
    terminal.type("it is there; it is green\n")
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
    run = run_of(kapelle, shown.split("kapelle diff ")[1].split()[0])
    assert run["result"]["success_criteria"] == ["it is there", "it is green"]
