from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.cli.values import duration_s, environment, listed, optional, pairs
from kapelle.domain.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        (".5", 0.5),
        (" 3S ", 3),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "abc", "10x", "-5", "0", "0s", "nan", "inf", "1e400", "400d", "5m junk", "m"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput, match="--timeout"):
        duration_s(text, "--timeout")


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with suppress(InvalidInput):
        assert 0 < duration_s(text) <= 31_536_000


def test_no_duration_is_no_limit() -> None:
    assert optional(duration_s, None, "--timeout") is None


def test_environment_given_and_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "from here")
    entries = ["A=1", "B=x=y", "EMPTY=", "MINE"]
    assert environment(entries) == {"A": "1", "B": "x=y", "EMPTY": "", "MINE": "from here"}


def test_environment_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    with pytest.raises(InvalidInput) as caught:
        environment(["ABSENT"])
    assert "ABSENT=VALUE" in (caught.value.hint or "")


@pytest.mark.parametrize("entry", ["=secret", " =secret", ""])
def test_a_variable_needs_a_name(entry: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        environment([entry])
    assert "secret" not in caught.value.message


def test_pairs() -> None:
    assert pairs(["k=v", "url=http://x/?a=b", "e="], "--context") == {
        "k": "v",
        "url": "http://x/?a=b",
        "e": "",
    }


@pytest.mark.parametrize("entry", ["novalue", "=v", " =v"])
def test_what_is_no_pair(entry: str) -> None:
    with pytest.raises(InvalidInput, match="--context"):
        pairs([entry], "--context")


def test_lists_by_comma_and_by_repetition() -> None:
    assert listed(["a,b", "c", " b "], "--tag") == ["a", "b", "c"]


@pytest.mark.parametrize("entry", ["", " ", "a,,b", "a,"])
def test_an_empty_value_in_a_list_is_refused(entry: str) -> None:
    with pytest.raises(InvalidInput, match="--after is empty"):
        listed(["x", entry], "--after")
