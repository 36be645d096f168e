"""The daemon dies at every named place of a run, early, midway and at its last moment; whatever
the pattern, it comes to what it would have come to undisturbed."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.failpoint_run import FailpointRun
from tests.chaos.pieces import PIECES, make_place
from tests.chaos.record import differences, is_clean, record, strangers
from tests.e2e.support.instance import Instance
from tests.failpoints import failpoints_in

# The piece with every kind of step.
_OF_EVERY_KIND = "own"
# Each at its first occurrence.
_FIRST = (
    "run_after_take_up",
    "run_begin",
    "step_before_begin",
    "step_after_begin",
    "step_before_end",
    "step_after_end",
)
# The first task of the run meets these, one after another.
_OF_A_TASK = (
    "conductor_after_begin",
    "prepare_after_workspace",
    "runner_after_spawn",
    "run_after_execute",
    "perform_after_verify",
    "perform_end",
)
# From before the last step on, each at its last occurrence.
_LAST = (
    "step_after_begin",
    "step_before_end",
    "step_after_end",
    "run_before_end",
    "run_after_end",
)


def test_every_failpoint_of_a_run_is_met() -> None:
    assert set(_FIRST) | set(_LAST) == set(failpoints_in("runs"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        _OF_EVERY_KIND,
        *(
            # The storm kills at random moments of all of them.
            pytest.param(name, marks=pytest.mark.sample(3, "pieces"))
            for name in PIECES
            if name != _OF_EVERY_KIND
        ),
    ],
)
def test_a_run_survives_a_death_at_every_step(
    name: str,
    kapelle: Instance,
    undisturbed: dict[str, Any],
    tmp_path: Path,
    exhaustive: bool,
    sampling: random.Random,
) -> None:
    place = make_place(tmp_path / "place")
    run = FailpointRun(kapelle, PIECES[name], place)
    expected = undisturbed[name]
    steps = _number_of_steps(expected["run"])
    if exhaustive:
        _die_everywhere(run, _early(name), steps)
    elif name == _OF_EVERY_KIND:
        _die_at_each_name(run, steps)
    else:
        _die_at_steps(run, sampling.sample(range(2, steps + 1), 2))
    run.finish()
    assert run.run_id is not None
    assert differences(record(kapelle, place, run.run_id), expected) == []
    assert is_clean(place.repository)
    assert strangers(kapelle) == []


def _die_everywhere(run: FailpointRun, early: tuple[str, ...], steps: int) -> None:
    for point in early:
        run.crash_at(point if "@" in point else f"{point}@1")
    # Each life ends one more step and dies with the next one done but not yet recorded.
    before = -1
    while (ended := run.steps()[1]) < steps - 3:
        # Two that end in the same moment would die together for ever.
        run.crash_at("step_after_end@1" if ended == before else "step_before_end@2")
        before = ended
    _die_at_the_last(run, steps)


def _die_at_each_name(run: FailpointRun, steps: int) -> None:
    for point in _FIRST:
        run.crash_at(f"{point}@1")
    _die_at_the_last(run, steps)


def _die_at_the_last(run: FailpointRun, steps: int) -> None:
    begun, _ = run.steps()
    run.crash_at(f"step_before_begin@{steps - begun}")
    for point in _LAST:
        run.crash_at(f"{point}@1")


def _die_at_steps(run: FailpointRun, numbers: list[int]) -> None:
    """Die whenever so many steps have ended, with the last of them not yet recorded."""
    ended = 0
    for number in sorted(numbers):
        run.crash_at(f"step_before_end@{number - ended}")
        ended = run.steps()[1]


def _early(name: str) -> tuple[str, ...]:
    if name == "pipeline":
        # Its second task has checks.
        return (*_FIRST, *_OF_A_TASK, "verify_before_check@2")
    if name == "best-of":
        # All of its tasks begin at once, before any step has ended, and all have checks.
        first = (*_FIRST[:4], *_OF_A_TASK[:4], "verify_before_check")
        return (*first, *_OF_A_TASK[4:], *_FIRST[4:])
    return (*_FIRST, *_OF_A_TASK)


def _number_of_steps(run: dict[str, Any]) -> int:
    return len(run["steps"]) + sum(_number_of_steps(inner) for inner in run["inner"].values())
