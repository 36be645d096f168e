"""What `-f` and `wait` say in a pipe: why work waits, and how long it took."""

import re
import time
from pathlib import Path

from tests.e2e.support.ensembles import rule, with_playbook
from tests.e2e.support.instance import Instance

HOLDS = rule("Hold the slot", {"sleep": 8})
WAITS = rule("Wait for it", {"say": "done"})


def waiting_lines_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("Waiting: ")]


def test_follow_and_wait_say_in_a_pipe_why_a_task_waits(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, HOLDS + WAITS)
    kapelle.cli("config", "set", "limits.max_attempts", "1", cwd=repository)
    kapelle.cli("run", "Hold the slot", "-a", "rehearsal", cwd=repository)
    second = kapelle.cli("run", "Wait for it", "-a", "rehearsal", cwd=repository).stdout.strip()
    waited = kapelle.cli("wait", second, cwd=repository)
    assert len(waiting_lines_of(waited.stderr)) == 1, waited.stderr
    assert waited.returncode == 0, waited.stdout
    kapelle.cli("run", "Hold the slot", "-a", "rehearsal", cwd=repository)
    followed = kapelle.cli("run", "Wait for it", "-a", "rehearsal", "-f", cwd=repository)
    assert len(waiting_lines_of(followed.stderr)) == 1, followed.stderr


def test_the_time_between_attempts_does_not_count(kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, WAITS)
    first = kapelle.cli("run", "Wait for it", "-a", "rehearsal", "-f", cwd=repository)
    task = first.stdout.split()[0]
    time.sleep(4)
    again = kapelle.cli("continue", task, "Wait for it", "-f", cwd=repository)
    seconds = re.search(r" after ([\d.]+)s", again.stderr)
    assert seconds is not None, again.stderr
    assert float(seconds[1]) < 4, again.stderr
