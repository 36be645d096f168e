"""Short questions to programs: answered within bounds, and nothing of them stays."""

import os
import time
from pathlib import Path

import psutil
import pytest

from kapelle.runner.command import read_output

ENV = {"PATH": os.environ["PATH"], "MARK": "asked"}


def ask(script: str, cwd: Path, timeout_s: float = 30) -> str | None:
    return read_output(["/bin/sh", "-c", script], ENV, cwd, timeout_s)


def test_only_what_it_prints_counts(tmp_path: Path) -> None:
    script = "echo loud >&2; cat; echo $MARK; pwd; exit 3"
    assert ask(script, tmp_path) == f"asked\n{tmp_path}\n"


@pytest.mark.parametrize("rest", ["sleep 300 >/dev/null & ", "exec >&-; sleep 300"])
def test_what_lives_on_after_the_answer_is_not_waited_for(tmp_path: Path, rest: str) -> None:
    assert ask(f"echo $$ > parent; echo 1.2.3; {rest}", tmp_path) == "1.2.3\n"
    _await_end(int((tmp_path / "parent").read_text(encoding="ascii")))


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = "(sleep 300 & echo $! > child); echo $$ > parent; echo half; sleep 300"
    began = time.monotonic()
    assert ask(script, tmp_path, 1) is None
    assert time.monotonic() - began < 30
    for name in ("parent", "child"):
        number = int((tmp_path / name).read_text(encoding="ascii"))
        _await_end(number)


def _await_end(number: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.02)
    raise AssertionError(f"{number} still runs")


def test_a_program_that_never_stops_talking_is_cut_short(tmp_path: Path) -> None:
    said = ask("while :; do echo 1.2.3; done", tmp_path)
    assert said is not None
    assert said.startswith("1.2.3\n")
    assert len(said) < 1_000_000


def test_a_program_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing"):
        read_output([str(tmp_path / "nothing")], ENV, tmp_path, 5)
