"""What follows from the end of an attempt."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.domain.failures import POLICIES, Failure, FailureClass, FailureResponse
from kapelle.domain.outcome import (
    MOST_UNCOUNTED,
    AttemptOutcome,
    Evidence,
    History,
    compute_backoff,
    decide,
)
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOOD = Evidence(
    agent="oboe",
    exit=Exit(kind="exited", code=0),
    stop=None,
    detail=None,
    success=True,
    reason=None,
    failure=None,
)
TASK = Failure(FailureClass.TASK, "it said so")
BAD = replace(
    GOOD, exit=Exit(kind="exited", code=1), success=False, reason="it broke", failure=TASK
)
SAME = RetrySpec(policy="same", max_attempts=3, delay_s=10, max_delay_s=60)
FIRST = History(tries=1)


def ended(
    kind: FailureClass, history: History = FIRST, retry: RetrySpec | None = None
) -> AttemptOutcome:
    failed = replace(BAD, failure=Failure(kind, "seen"))
    return decide(failed, retry or RetrySpec(), history, NOW, 0.5)


def test_success_with_all_checks_passed_completes() -> None:
    outcome = decide(GOOD, SAME, FIRST, NOW, 0.5)
    assert (outcome.attempt, outcome.task) == (AttemptStatus.COMPLETED, TaskStatus.COMPLETED)


def test_a_failed_check_fails_although_the_agent_succeeded() -> None:
    checks = Failure(FailureClass.CHECKS, "make test")
    wrong = replace(GOOD, failure=checks, reason="failed its check: make test")
    outcome = decide(wrong, RetrySpec(), FIRST, NOW, 0.5)
    assert (outcome.task, outcome.reason) == (TaskStatus.FAILED, "failed its check: make test")


def test_a_lost_attempt_is_lost() -> None:
    lost = replace(BAD, exit=Exit(kind="lost"), reason="lost: the supervisor was killed")
    outcome = decide(lost, RetrySpec(), FIRST, NOW, 0.5)
    assert (outcome.attempt, outcome.task) == (AttemptStatus.LOST, TaskStatus.FAILED)
    assert outcome.reason == "lost: the supervisor was killed"


def test_a_persons_wish_comes_before_everything_else() -> None:
    cancelled = decide(replace(GOOD, stop="cancel", detail="enough"), SAME, FIRST, NOW, 0.5)
    assert (cancelled.task, cancelled.reason) == (TaskStatus.CANCELLED, "enough")
    requeued = decide(replace(BAD, stop="requeue"), RetrySpec(), FIRST, NOW, 0.5)
    assert (requeued.task, requeued.spends_a_try) == (TaskStatus.QUEUED, False)


def test_the_retry_policy_tries_again_until_its_tries_are_spent() -> None:
    again = decide(BAD, SAME, History(2), NOW, 0.5)
    assert again.task is TaskStatus.QUEUED
    assert again.not_before == NOW + timedelta(seconds=20)
    assert decide(BAD, SAME, History(3), NOW, 0.5).task is TaskStatus.FAILED
    assert decide(BAD, RetrySpec(), FIRST, NOW, 0.5).task is TaskStatus.FAILED


def test_a_question_waits_for_a_person_and_goes_on_from_there() -> None:
    outcome = decide(replace(BAD, question="Which?"), SAME, FIRST, NOW, 0.5)
    assert (outcome.task, outcome.waiting_for) == (TaskStatus.WAITING, "input")
    assert outcome.next_mode == "resume"


def test_a_rate_limit_waits_for_its_reset_and_spends_no_try() -> None:
    reset = NOW + timedelta(hours=1)
    limited = replace(BAD, failure=Failure(FailureClass.RATE_LIMIT, "429", reset))
    outcome = decide(limited, RetrySpec(), FIRST, NOW, 0.5)
    assert (outcome.task, outcome.not_before) == (TaskStatus.WAITING, reset)
    assert (outcome.spends_a_try, outcome.next_mode) == (False, "resume")


def refused(times: int, since: datetime = NOW, at: datetime | None = None) -> AttemptOutcome:
    limited = replace(BAD, failure=Failure(FailureClass.RATE_LIMIT, "429", at))
    history = History(1, refusals=times, refused_since=since)
    return decide(limited, RetrySpec(), history, NOW, 0.5)


def test_who_is_refused_again_lets_others_try_before_it_and_says_so() -> None:
    reset = NOW + timedelta(seconds=30)
    waits = [((refused(n, at=reset).not_before or NOW) - reset).seconds for n in (1, 2, 3, 13)]
    assert waits == [0, 1, 3, 900]
    assert refused(13, at=reset).reason == "oboe was refused 13 times in a row"
    unstated = [((refused(n).not_before or NOW) - NOW).seconds for n in (1, 2, 3, 13)]
    assert unstated == [60, 120, 240, 960]


def test_a_limit_that_never_ends_is_not_believed_for_ever() -> None:
    assert refused(20, NOW - timedelta(hours=5)).task is TaskStatus.WAITING
    assert refused(19, NOW - timedelta(hours=7)).task is TaskStatus.WAITING
    assert refused(20, NOW - timedelta(hours=7)).task is TaskStatus.FAILED


def test_another_agent_takes_over_at_once_where_there_is_one() -> None:
    able = History(1, can_switch=True)
    for kind in FailureClass:
        outcome = ended(kind, able)
        if POLICIES[kind].switches:
            assert (outcome.task, outcome.not_before) == (TaskStatus.QUEUED, None)
            assert not outcome.spends_a_try
        elif kind is not FailureClass.SESSION_LOST:
            assert outcome.task is TaskStatus.FAILED


def test_attempts_that_nobody_asked_for_have_a_limit() -> None:
    failure = Failure(FailureClass.RATE_LIMIT, "429")
    failed = replace(BAD, failure=failure)
    waits = decide(failed, SAME, History(1, uncounted=MOST_UNCOUNTED - 1), NOW, 0.5)
    assert (waits.task, waits.spends_a_try) == (TaskStatus.WAITING, False)
    ended = decide(failed, SAME, History(1, uncounted=MOST_UNCOUNTED), NOW, 0.5)
    assert ended.task is TaskStatus.FAILED
    assert decide(BAD, SAME, History(1, uncounted=MOST_UNCOUNTED), NOW, 0.5).task == "queued"


def test_an_overload_is_outlasted_for_half_an_hour_without_spending_a_try() -> None:
    since, now, overloads = NOW, NOW, 0
    while True:
        overloads += 1
        history = History(1, overloads, since)
        failed = replace(BAD, failure=Failure(FailureClass.OVERLOADED, "529"))
        outcome = decide(failed, RetrySpec(), history, now, 0.999)
        if outcome.task is not TaskStatus.QUEUED:
            break
        assert not outcome.spends_a_try
        assert outcome.not_before is not None
        assert timedelta(seconds=3) <= outcome.not_before - now <= timedelta(seconds=300)
        now = outcome.not_before
    assert now - since >= timedelta(minutes=30)
    assert outcome.task is TaskStatus.FAILED


@pytest.mark.parametrize(
    "kind", [k for k in FailureClass if POLICIES[k].response == FailureResponse.STOP]
)
def test_what_no_retry_can_mend_stops_at_once_and_names_the_fix(kind: FailureClass) -> None:
    assert ended(kind, retry=SAME).task is TaskStatus.FAILED
    assert POLICIES[kind].fix_for("claude", "task_1")


def test_a_session_that_is_gone_is_gone_on_without_at_once() -> None:
    outcome = ended(FailureClass.SESSION_LOST, History(1, had_session=True))
    assert (outcome.task, outcome.not_before) == (TaskStatus.QUEUED, None)
    assert (outcome.next_mode, outcome.spends_a_try) == ("resume", False)


def test_a_session_that_was_never_asked_for_is_no_reason_to_go_on_for_ever() -> None:
    assert ended(FailureClass.SESSION_LOST).task is TaskStatus.FAILED


def test_the_first_agent_that_is_free_again_ends_the_wait() -> None:
    soon = NOW + timedelta(seconds=5)
    outcome = ended(FailureClass.RATE_LIMIT, History(1, others_free_at=soon))
    assert (outcome.waiting_for, outcome.not_before) == ("rate_limit", soon)
    assert (outcome.reason or "").startswith("all of its agents are rate-limited; the last: ")


def test_a_stalled_agent_is_nudged_once() -> None:
    nudged = ended(FailureClass.STALLED, History(1, can_nudge=True))
    assert (nudged.task, nudged.next_mode) == (TaskStatus.QUEUED, "resume")
    assert nudged.next_message
    assert ended(FailureClass.STALLED, History(1, nudges=1, can_nudge=True)).task == "failed"
    assert ended(FailureClass.STALLED).task is TaskStatus.FAILED


def test_every_class_has_a_policy() -> None:
    assert set(POLICIES) == set(FailureClass)


@pytest.mark.parametrize("kind", ["signaled", "not_started", "lost"])
def test_no_unseen_or_violent_end_is_a_success(kind: str) -> None:
    bad_end = replace(BAD, exit=Exit.model_validate({"kind": kind}))
    assert decide(bad_end, RetrySpec(), FIRST, NOW, 0.5).task is TaskStatus.FAILED


@given(tries=st.integers(1, 1000), jitter=st.floats(0, 0.999))
def test_the_backoff_stays_within_its_cap_and_jitter(tries: int, jitter: float) -> None:
    assert 7 <= compute_backoff(SAME, tries, jitter) <= 60


@pytest.mark.parametrize("year", [1, 2020, 9999])
def test_no_stated_reset_is_believed_beyond_reason(year: int) -> None:
    stated = datetime(year, 1, 1, tzinfo=UTC)
    limited = replace(BAD, failure=Failure(FailureClass.RATE_LIMIT, "429", stated))
    waits = [
        (decide(limited, RetrySpec(), History(1, refusals=n), NOW, 0.5).not_before or NOW) - NOW
        for n in (1, 5, 50)
    ]
    assert timedelta(seconds=1) <= min(waits)
    assert max(waits) <= timedelta(days=8, minutes=15)
    if year < 2026:
        assert waits == [timedelta(seconds=seconds) for seconds in (1, 16, 901)]
