"""`kapelle top`: all that is at work on one screen, keys that act, a terminal left as it was."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import shared_instance, until
from tests.e2e.support.terminal import Terminal

ASK = 'Play.\n```rehearsal\n[[do]]\nask = "Which colour?"\n```\n'
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shared_instance(tmp_path_factory.mktemp("top")) as instance:
        yield instance


def begin(kapelle: Instance, place: Path, prompt: str, *options: str) -> str:
    arguments = ["run", prompt, "-a", "rehearsal", "--in-place", *options]
    return kapelle.cli(*arguments, cwd=place, check=True).stdout.strip()


def test_keys_answer_cancel_and_look(
    kapelle: Instance, tmp_path: Path, terminals: list[Terminal]
) -> None:
    asking = begin(kapelle, tmp_path, ASK, "--title", "Paint it")
    until(lambda: kapelle.task(asking)["status"] == "waiting", "a question")
    terminals.append(terminal := Terminal(kapelle, "top", columns=90))
    modes = terminal.modes()
    terminal.read_until("1 need you")
    terminal.read_until("It asks: Which colour?")
    terminal.type("a")
    terminal.read_until("Your answer: ")
    terminal.type("blue\n")
    terminal.read_until("blue")
    terminal.read_until("goes back.")
    until(lambda: len(kapelle.wait(asking)["attempts"]) == 2, "another question")

    terminal.shown = ""
    terminal.type("\n")
    checking = begin(kapelle, tmp_path, "Work", "--title", "Build it", "--check", "sleep 60")
    terminal.read_until("checking: sleep 60")  # the events tell of it, no key was pressed
    terminal.shown = ""
    terminal.resize(44, 12)
    terminal.read_until("    checking: sleep 60")  # below the title, for there is no room beside it
    terminal.type("k")
    terminal.type("c")
    terminal.read_until("Cancel it? [y/N] ")
    terminal.type("y\n")
    terminal.read_until(f"{checking[-5:]}  cancelled")
    terminal.read_until("goes back.")
    terminal.shown = ""
    terminal.type("q")  # leaves the words of the command, not the list
    terminal.read_until("1 cancelled")
    terminal.shown = ""
    terminal.type("?")
    terminal.read_until("start it again")
    terminal.shown = ""
    terminal.type("\x1b")
    terminal.read_until("1 cancelled")
    # What was looked at stands behind what was not.
    terminal.type("\n")
    terminal.read_until("goes back.")
    terminal.type("q")
    until(lambda: kapelle.task(checking)["seen_at"], "the mark")
    terminal.type("q")
    assert terminal.finish() == 0
    assert terminal.shown.rstrip().endswith(LEAVE)
    assert terminal.modes() == modes
    kapelle.cli("cancel", asking, check=True)


def test_without_a_terminal_it_tells_how_things_stand(kapelle: Instance, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    task = begin(kapelle, tmp_path, "Work", "--title", "Build it", "--check",
                 f"until [ -e {gate} ]; do sleep 0.1; done")  # fmt: skip
    until(lambda: kapelle.task(task)["checking"], "a check")
    found = json.loads(kapelle.cli("top", "--json", check=True).stdout)
    assert [item["checking"]["name"][:5] for item in found if item["id"] == task] == ["until"]
    text = kapelle.cli("top", check=True).stdout
    assert f"{task[-5:]}  running" in text
    assert "Build it · checking: until" in text
    assert "\x1b" not in text
    gate.touch()
    kapelle.wait(task)


def test_the_terminal_is_restored_and_a_killed_daemon_is_found_again(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    instance.start()
    watching = None
    try:
        begin(instance, tmp_path, ASK, "--title", "Paint it")
        watching = Terminal(instance, "top")
        modes = watching.modes()
        watching.read_until("1 waiting")
        instance.kill()
        watching.read_until("the daemon is away")
        begin(instance, tmp_path, ASK, "--title", "Build it")
        watching.read_until("2 waiting", 60)
        watching.process.send_signal(signal.SIGTERM)
        assert watching.finish() == 128 + signal.SIGTERM
        assert watching.shown.index(ENTER) < watching.shown.index(LEAVE)
        assert watching.modes() == modes
    finally:
        if watching is not None:
            watching.close()
        instance.destroy()
