"""A budget says what is left, and in one sentence what was reached."""

import pytest

from kapelle.domain.budget import NOTHING, BudgetLimits, Spent, subtract_usd
from kapelle.domain.errors import LimitReached

ALL = BudgetLimits(max_seconds=60, max_usd=0.1, max_agent_calls=2)


def spent(**changes: float | None) -> Spent:
    return Spent.model_validate(NOTHING.model_dump() | changes)


def test_what_has_no_limit_is_never_used_up() -> None:
    left = BudgetLimits().require_call(spent(seconds=1e9, agent_calls=10**6, cost_usd=1e6))
    assert (left.seconds, left.usd, left.agent_calls) == (None, None, None)


def test_what_is_left_is_never_less_than_nothing() -> None:
    left = ALL.left(spent(seconds=61, agent_calls=3, cost_usd=1))
    assert (left.seconds, left.usd, left.agent_calls) == (0, 0, 0)
    left = ALL.require_call(spent(seconds=1, agent_calls=1, cost_usd=None))
    assert (left.seconds, left.usd, left.agent_calls) == (59, 0.1, 1)


@pytest.mark.parametrize(
    ("used", "sentence"),
    [
        ({"seconds": 60}, "Time limit of 60 s reached."),
        ({"cost_usd": 0.1}, "Budget of $0.1 reached."),
        ({"agent_calls": 2}, "Limit of 2 agent calls reached."),
    ],
)
def test_the_limit_that_was_reached_is_named(used: dict[str, float], sentence: str) -> None:
    with pytest.raises(LimitReached) as raised:
        ALL.require_call(spent(**used))
    assert raised.value.message == sentence


def test_calls_alone_do_not_end_what_is_at_work() -> None:
    assert ALL.require(spent(agent_calls=2)).agent_calls == 0


def test_ten_times_a_cent_is_ten_cents() -> None:
    assert subtract_usd(0.1, sum([0.01] * 10)) == 0
