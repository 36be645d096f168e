"""A small machine works out of the box, and a full one says why it waits."""

from dataclasses import replace

import pytest

from kapelle.engine.tasks.queue import MachineReading, find_obstacle, max_attempts
from kapelle.settings.models import LimitsSettings

_GB = 1_000_000_000
ROOMY = MachineReading(
    free_memory=3 * _GB, free_disk=50 * _GB, load=0.5, cores=2, memory=4 * 1024**3
)


def test_two_cores_and_4_gb_run_several_attempts_without_any_setting() -> None:
    assert max_attempts(LimitsSettings(), ROOMY) == 4
    assert find_obstacle(LimitsSettings(), ROOMY, 0) is None
    assert find_obstacle(LimitsSettings(), ROOMY, 3) is None


@pytest.mark.parametrize(
    ("reading", "running", "words"),
    [
        (ROOMY, 4, "waits for a free slot: 4 of 4 attempts are running"),
        (replace(ROOMY, free_disk=_GB // 10), 0, "the disk is low: 100 MB free"),
        (replace(ROOMY, free_memory=_GB // 10), 1, "memory is low: 100 MB free"),
        (replace(ROOMY, load=40), 1, "the machine is busy: load 40.0"),
    ],
)
def test_what_holds_a_task_back_is_said(reading: MachineReading, running: int, words: str) -> None:
    reason = find_obstacle(LimitsSettings(), reading, running)
    assert reason is not None
    assert words in reason


def test_a_busy_or_tight_machine_still_runs_one_attempt() -> None:
    assert find_obstacle(LimitsSettings(), replace(ROOMY, load=40, free_memory=1), 0) is None


def test_a_load_ceiling_of_zero_ignores_the_load() -> None:
    assert find_obstacle(LimitsSettings(max_load_per_core=0), replace(ROOMY, load=400), 1) is None
