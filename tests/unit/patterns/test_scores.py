"""The number that a score command prints."""

import pytest

from kapelle.patterns.loop.evaluation import Judgement
from kapelle.patterns.results import Failed, read_score


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("42", 42), ("-1.5\n\n", -1.5), ("noise 1 2\ntime: 1.5 s", 1.5), ("x=-5", -5), ("+3", 3),
        ("1_000", 1000), ("2e3", 2000), ("\N{MINUS SIGN}5", -5), ("score 7%", 7), (".5", 0.5),
        ("build-7 took", None), ("1 2", None), ("nan", None), ("", None), ("1e999", None),
        ("v2", None),
    ],
)  # fmt: skip
def test_the_number_is_the_only_one_in_the_last_line(printed: str, value: float | None) -> None:
    scored = read_score(printed, printed)
    assert scored.value == value
    assert (scored.problem is None) == (value is not None)


@pytest.mark.parametrize("score", [None, True, "3", float("nan"), float("inf"), 10**400])
def test_what_a_judge_answers_is_a_number_or_none(score: object) -> None:
    with pytest.raises(Failed, match="no number named score"):
        Judgement.read({"score": score}, "I looked.", scored=True)
    assert Judgement.read({"score": 3}, "", scored=True).score == 3.0
