"""The demo as a person runs it: what it shows, what it leaves, and that it can fail."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from importlib.resources import files
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance

PLAYBOOK = files("kapelle.demo").joinpath("playbook.toml").read_text(encoding="utf-8")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kapelle", "demo", *arguments]


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=115,
        check=False,
    )


def nothing_runs(place: Path) -> bool:
    return not Instance(place / "home").processes()


def test_the_demo_conducts_an_ensemble_to_a_verified_merged_result(tmp_path: Path) -> None:
    place, yours = tmp_path / "demo", tmp_path / "yours"
    done = demo(
        "--clean",
        "--dir",
        str(place),
        # Nothing of the person's own settings may matter or be touched.
        KAPELLE_HOME=str(yours),
        KAPELLE_URL="http://127.0.0.1:1",
        KAPELLE_LIMITS__MAX_ATTEMPTS="0",
        GIT_DIR="/nonexistent",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    assert "rehearsals" in told.splitlines()[1]
    assert "17 of 21 tests fail → all 25 tests pass" in told
    assert re.search(r"rhythm +completed +2 +success +2 of 2 checks +[0-9a-f]{10}", told)
    assert re.search(r"score +failed +1 +success +1 of 2 checks +no", told)
    assert re.search(r"melody +completed +1 +success +2 of 2 checks +[0-9a-f]{10}", told)
    assert re.search(r"melody +blocked +waits for intervals and scales", told)
    assert re.search(r"kill -9 \d+: the daemon is gone, while .*intervals and scales", told)
    assert "only verified work is merged" in told
    assert "the reviewer says no to goal complete" in told
    assert "Completed: the goal is reached after iteration 2" in told
    assert "loop: 903 → 776 → none → 655 → 843 bytes" in told
    assert re.search(r"kill -9 \d+: the next daemon \(\d+\) goes on with the run", told)
    assert nothing_runs(place)
    assert not place.exists()
    assert not yours.exists()


def test_a_part_that_is_played_wrong_makes_the_demo_fail(tmp_path: Path) -> None:
    wrong = PLAYBOOK.replace("12 * (octave + 1)", "12 * octave")
    assert wrong != PLAYBOOK
    playbook, place = tmp_path / "playbook.toml", tmp_path / "demo"
    playbook.write_text(wrong, encoding="utf-8")
    done = demo("--keep", "--json", "--dir", str(place), "--playbook", str(playbook))
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert {key: task["status"] for key, task in told["tasks"].items()} == {
        "pitch": "failed",
        "rhythm": "completed",
        "score": "failed",
        "intervals": "cancelled",
        "scales": "cancelled",
        "melody": "cancelled",
    }
    assert list(told["merged"]) == ["rhythm"]
    assert told["tests_after"]["failed"] == 14
    assert any("pitch is failed" in problem for problem in told["problems"])
    # It was to be kept: its page is there until it is stopped.
    with urllib.request.urlopen(told["page"]) as page:
        assert page.status == 200
    stop = [sys.executable, "-m", "kapelle", "stop", "--agents"]
    subprocess.run(stop, env={**os.environ, "KAPELLE_HOME": str(place / "home")}, check=True)
    assert nothing_runs(place)
    assert Path(told["repository"], "music", "pitch.py").exists()


@pytest.mark.sample(1, "moments")
@pytest.mark.parametrize("moment", ["waits for", "the daemon is gone"])
def test_a_demo_that_is_ended_early_leaves_nothing_running(tmp_path: Path, moment: str) -> None:
    place = tmp_path / "demo"
    with subprocess.Popen(
        command("--dir", str(place)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert any(moment in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM, rest
    assert f"rm -rf {place}" in rest
    assert nothing_runs(place)


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious", encoding="utf-8")
    done = demo("--clean", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert (tmp_path / "mine.txt").exists()
