"""The table of transitions is whole and honest."""

import pytest

from kapelle.domain.errors import Conflict
from kapelle.domain.states import FINAL, TRANSITIONS, TaskStatus, require_transition


def test_every_status_has_a_row_and_can_be_left_or_started_again() -> None:
    assert set(TRANSITIONS) == set(TaskStatus)
    assert all(TRANSITIONS.values())


def test_nothing_but_a_running_task_completes_or_fails() -> None:
    for status in TaskStatus:
        verdicts = TRANSITIONS[status] & {TaskStatus.COMPLETED, TaskStatus.FAILED}
        assert bool(verdicts) == (status is TaskStatus.RUNNING)


def test_every_open_task_can_be_cancelled_and_no_ended_one() -> None:
    for status in TaskStatus:
        assert (TaskStatus.CANCELLED in TRANSITIONS[status]) == (status not in FINAL)


def test_a_refused_transition_names_the_task_and_both_statuses() -> None:
    with pytest.raises(Conflict, match="task_x is completed and cannot become running"):
        require_transition("task_x", TaskStatus.COMPLETED, TaskStatus.RUNNING)
