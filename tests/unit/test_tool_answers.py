"""Answers of MCP tools fit, whatever they hold, and what is cut can be read in parts."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kapelle.api.mcp.answers import MOST, fit_answer, read_part, size_of

LONG = "A line with a break\n" * 3_000
ODD = "\x01" * 30_000


@pytest.mark.parametrize(
    "answer",
    [
        {"prompt": LONG, "result": ODD, "id": "x"},
        {"checks": [{"name": str(n), "output": LONG} for n in range(100)]},
        {"context": {f"key-{n}": "v" * 50 for n in range(2_000)}},
        {"result": {f"k{n}": {"deep": [LONG] * 5} for n in range(40)}},
        {"many": list(range(100_000)), "other": LONG},
        {f"field-{n}": LONG for n in range(300)},
        {"k" * 30_000: "v"},
    ],
    ids=["texts", "checks", "context", "deep", "numbers", "fields", "key"],
)
def test_an_answer_fits_and_names_what_is_cut(answer: dict[str, Any]) -> None:
    found = fit_answer(answer)
    assert size_of(found) <= MOST
    assert found["cut"]


def test_a_cut_text_is_read_in_parts() -> None:
    answer = {"checks": [{"name": "a", "output": LONG}], "prompt": ODD + LONG}
    places = {one["field"] for one in fit_answer(answer)["cut"]}
    assert places == {"/checks/0/output", "/prompt"}
    for field, whole in (("/checks/0/output", LONG), ("/prompt", ODD + LONG)):
        found = ""
        offset: int | None = 0
        while offset is not None:
            part = read_part(answer, field, offset)
            assert size_of(part) <= MOST
            found, offset = found + part["text"], part.get("next_offset")
        assert found == whole


def test_the_end_of_what_a_command_printed_is_shown() -> None:
    found = fit_answer({"checks": [{"output": LONG + "assert 1 == 2"}]})
    assert found["checks"][0]["output"].endswith("assert 1 == 2")


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=40) | st.just(LONG) | st.just(ODD),
    lambda one: st.lists(one, max_size=30) | st.dictionaries(st.text(max_size=20), one),
    max_leaves=60,
)


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.text(max_size=20), JSON, max_size=20))
def test_any_answer_fits(answer: dict[str, Any]) -> None:
    assert size_of(fit_answer(answer)) <= MOST
