"""What follows from the end of an attempt."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.domain.outcome import Evidence, backoff_s, decide
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOOD = Evidence(
    exit=Exit(kind="exited", code=0),
    wish=None,
    timed_out=False,
    detail=None,
    success=True,
    reason=None,
    failed_checks=(),
    waiting_for=None,
    retry_at=None,
)
BAD = replace(GOOD, exit=Exit(kind="exited", code=1), success=False, reason="it broke")
SAME = RetrySpec(policy="same", max_attempts=3, delay_s=10, max_delay_s=60)


def test_success_with_all_checks_passed_completes() -> None:
    outcome = decide(GOOD, SAME, 1, 1, NOW, 0.5)
    assert (outcome.attempt, outcome.task) == (AttemptStatus.COMPLETED, TaskStatus.COMPLETED)


def test_a_failed_check_fails_and_is_named() -> None:
    outcome = decide(replace(GOOD, failed_checks=("make test",)), RetrySpec(), 1, 1, NOW, 0.5)
    assert (outcome.task, outcome.reason) == (TaskStatus.FAILED, "failed its check: make test")


def test_a_lost_attempt_is_lost_and_says_why() -> None:
    lost = replace(BAD, exit=Exit(kind="lost"), detail="the supervisor was killed")
    outcome = decide(lost, RetrySpec(), 1, 1, NOW, 0.5)
    assert (outcome.attempt, outcome.task) == (AttemptStatus.LOST, TaskStatus.FAILED)
    assert outcome.reason == "lost: the supervisor was killed"


def test_a_persons_wish_comes_before_everything_else() -> None:
    cancelled = decide(replace(GOOD, wish="cancel", detail="enough"), SAME, 1, 1, NOW, 0.5)
    assert (cancelled.task, cancelled.reason) == (TaskStatus.CANCELLED, "enough")
    requeued = decide(replace(BAD, wish="requeue"), RetrySpec(), 3, 1, NOW, 0.5)
    assert (requeued.task, requeued.spends_a_try) == (TaskStatus.QUEUED, False)


def test_the_retry_policy_tries_again_until_its_tries_are_spent() -> None:
    again = decide(BAD, SAME, 2, 1, NOW, 0.5)
    assert again.task is TaskStatus.QUEUED
    assert again.not_before == NOW + timedelta(seconds=20)
    assert decide(BAD, SAME, 3, 1, NOW, 0.5).task is TaskStatus.FAILED
    assert decide(BAD, RetrySpec(), 1, 1, NOW, 0.5).task is TaskStatus.FAILED


def test_a_rate_limit_waits_for_its_reset_and_spends_no_try() -> None:
    reset = NOW + timedelta(hours=1)
    limited = replace(BAD, waiting_for="rate_limit", retry_at=reset)
    outcome = decide(limited, RetrySpec(), 1, 1, NOW, 0.5)
    assert (outcome.task, outcome.not_before) == (TaskStatus.WAITING, reset)
    assert not outcome.spends_a_try


@pytest.mark.parametrize("kind", ["signaled", "not_started", "lost"])
def test_no_unseen_or_violent_end_is_a_success(kind: str) -> None:
    ended = replace(BAD, exit=Exit.model_validate({"kind": kind}))
    assert decide(ended, RetrySpec(), 1, 1, NOW, 0.5).task is TaskStatus.FAILED


@given(tries=st.integers(1, 1000), jitter=st.floats(0, 0.999))
def test_the_backoff_stays_within_its_cap_and_jitter(tries: int, jitter: float) -> None:
    assert 7 <= backoff_s(SAME, tries, jitter) <= 60


@pytest.mark.parametrize("year", [1, 2020, 9999])
def test_no_stated_reset_is_believed_beyond_reason(year: int) -> None:
    stated = datetime(year, 1, 1, tzinfo=UTC)
    limited = replace(BAD, waiting_for="rate_limit", retry_at=stated)
    waits = [
        (decide(limited, RetrySpec(), 1, number, NOW, 0.5).not_before or NOW) - NOW
        for number in (1, 5, 50)
    ]
    assert timedelta(seconds=1) <= min(waits)
    assert max(waits) <= timedelta(days=8)
    if year < 2026:
        assert waits == [timedelta(seconds=seconds) for seconds in (1, 16, 300)]
