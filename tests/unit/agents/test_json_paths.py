"""Dotted paths into JSON that may be anything."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.adapters.command import json_document, number_at, text_at, value_at

CONTENT = [{"text": "first"}, {"text": "last"}]
ANSWER = {"message": {"content": CONTENT}, "usage": {"in": 12}, "0": 7}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("message.content.0.text", "first"),
        ("message.content.-1.text", "last"),
        ("usage.in", 12),
        ("0", 7),
        ("message.content.2.text", None),
        ("message.content.-3.text", None),
        ("message.content.x", None),
        ("message.content.--1", None),
        ("message.content.²", None),
        ("message.content." + "9" * 5000, None),
        ("usage.in.more", None),
        ("nowhere.at.all", None),
        ("usage.", None),
        ("", None),
        (None, None),
    ],
)
def test_a_path_leads_to_a_value_or_nowhere(path: str | None, found: object) -> None:
    assert value_at(ANSWER, path) == found


def test_what_is_no_text_is_written_as_json() -> None:
    document = {"a": {"b": ["ü", 1]}, "zero": 0, "yes": True, "no": False, "null": None, "none": []}
    assert text_at(document, "a") == '{"b": ["ü", 1]}'
    assert [text_at(document, path) for path in ("zero", "yes")] == ["0", "true"]
    assert [text_at(document, path) for path in ("no", "null", "none", "gone")] == [""] * 4


def test_only_numbers_are_numbers() -> None:
    document = {"int": 3, "float": 0.5, "text": "3", "yes": True, "null": None}
    assert (number_at(document, "int"), number_at(document, "float")) == (3, 0.5)
    assert [number_at(document, path) for path in ("text", "yes", "null", "gone")] == [None] * 4


def test_a_line_may_hold_an_object_or_an_array() -> None:
    assert json_document(' {"a": 1} ') == {"a": 1}
    assert json_document('[{"a": 1}, 2]\n') == [{"a": 1}, 2]
    assert json_document('{"a": NaN, "b": 1}') == {"a": None, "b": 1}
    assert json_document('{"a": [-1e999, 1.5], "b": 1}') == {"a": [None, 1.5], "b": 1}
    for line in ("", "text", "1", '"a"', "{", "[", "[INFO] x"):
        assert json_document(line) is None


@given(document=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "0", "-1"]), inner),
    max_leaves=10,
), path=st.lists(st.sampled_from(["a", "0", "-1", "1", ""])).map(".".join))  # fmt: skip
def test_any_document_can_be_asked_for_any_path(document: object, path: str) -> None:
    json.dumps(value_at(document, path))
    assert isinstance(text_at(document, path), str)


def test_a_document_of_any_depth_can_be_read() -> None:
    for depth in (900, 980, 990, 995, 100_000):
        line = '{"a": ' + "[" * depth + "]" * depth + "}"
        assert isinstance(text_at(json_document(line), "a"), str)
