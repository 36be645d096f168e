"""Values are held against a schema that a user wrote, and the schema itself is checked first."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from kapelle.domain.json_schema import check_schema, matches_schema

SCORE = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 10},
        "tags": {"type": "array", "items": {"type": "string", "minLength": 2}, "maxItems": 2},
        "kind": {"enum": ["good", "bad", None]},
    },
    "required": ["score"],
    "additionalProperties": False,
}

REFERS = {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"required": ["n"]}}}
OTHERS = {"additionalProperties": {"type": "integer"}}

FITS: list[tuple[Any, Any]] = [
    ({"score": 3, "tags": ["ab"], "kind": None}, SCORE),
    ({"score": 10.0}, SCORE),
    (1.0, {"type": "integer"}),
    (10**400, {"type": "integer", "minimum": 1.5}),
    (None, {"type": ["string", "null"]}),
    ("x", {"type": ["string", "null"], "minimum": 5, "minItems": 3}),
    (1, {"const": 1.0}),
    ([1, {"a": [True]}], {"enum": [[1, {"a": [True]}]]}),
    ({"a": 1, "b": 2}, OTHERS),
    (5, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
    (5, {"oneOf": [{"type": "string"}, {"type": "integer"}]}),
    (5, {"allOf": [{"minimum": 1}, {"maximum": 5}], "pattern": 7, "x-unknown": {}}),
    ([1, "x"], {"items": True}),
    ({"a": {"n": 1}}, REFERS),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema"), FITS)
def test_a_value_that_fits_has_no_problems(value: Any, schema: dict[str, Any]) -> None:
    check_schema(schema)
    assert matches_schema(value, schema) == []


MISFITS: list[tuple[Any, Any, list[str]]] = [
    ([], SCORE, ["the value must be an object, not an empty list"]),
    ({}, SCORE, ["score: is missing"]),
    ({"score": "3"}, SCORE, ["score: must be a number, not '3'"]),
    ({"score": True}, SCORE, ["score: must be a number, not true"]),
    ({"score": float("nan")}, SCORE, ["score: must be a number, not nan"]),
    ({"score": -1}, SCORE, ["score: must be at least 0, not -1"]),
    ({"score": 11}, SCORE, ["score: must be at most 10, not 11"]),
    ({"score": 1, "extra": 1}, SCORE, ["extra: is not allowed; allowed are score, tags, kind"]),
    ({"score": 1, "kind": "ugly"}, SCORE, ["kind: must be 'good' or 'bad' or null, not 'ugly'"]),
    ({"score": 1, "tags": ["ab", "c"]}, SCORE, ["tags[1]: must have at least 2 characters, not 1"]),
    ({"score": 1, "tags": ["ab"] * 3}, SCORE, ["tags: must have at most 2 items, not 3"]),
    ({"score": 11, "tags": 1}, SCORE, [
        "score: must be at most 10, not 11", "tags: must be a list, not 1",
    ]),
    ([], {"minItems": 1}, ["the value must have at least 1 items, not 0"]),
    ("abc", {"maxLength": 2}, ["the value must have at most 2 characters, not 3"]),
    (1, {"exclusiveMinimum": 1}, ["the value must be more than 1, not 1"]),
    (1, {"exclusiveMaximum": 1}, ["the value must be less than 1, not 1"]),
    (1.5, {"type": "integer"}, ["the value must be a whole number, not 1.5"]),
    (1, {"type": ["string", "null"]}, ["the value must be a text or null, not 1"]),
    (True, {"const": 1}, ["the value must be 1, not true"]),
    ([1], {"enum": [[True], 1]}, ["the value must be a list of 1 or 1, not a list of 1"]),
    ({"a": "x"}, OTHERS, ["a: must be a whole number, not 'x'"]),
    ({"a": 1}, {"additionalProperties": False}, ["a: is not allowed"]),
    (None, {"anyOf": [{"type": "string"}, {"type": "integer"}]}, [
        "the value fits none of the alternatives (the value must be a text, not null; or the value"
        " must be a whole number, not null)",
    ]),
    (5, {"oneOf": [{"minimum": 1}, {"maximum": 9}]}, [
        "the value must fit exactly one of the alternatives, not 2",
    ]),
    (5, {"allOf": [{"minimum": 6}, {"maximum": 4}]}, [
        "the value must be at least 6, not 5", "the value must be at most 4, not 5",
    ]),
    ([1], {"items": False}, ["[0]: nothing is allowed here"]),
    ({"a": {}}, REFERS, ["a.n: is missing"]),
    ({"a\n": 1}, {"properties": {"a\n": {"type": "null"}}}, ["a\\n: must be null, not 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema", "problems"), MISFITS)
def test_each_problem_is_said_with_its_path(
    value: Any, schema: dict[str, Any], problems: list[str]
) -> None:
    check_schema(schema)
    assert matches_schema(value, schema) == problems


def test_problems_have_an_end() -> None:
    assert len(matches_schema(["x"] * 1000, {"items": {"type": "null"}})) == 20


BAD: list[tuple[Any, str]] = [
    ([], "the schema must be an object"),
    ({"type": "nummer"}, "^type must be one or several of object, array.* not 'nummer'"),
    ({"type": ["string", 5]}, "^type must be one or several of"),
    ({"type": []}, "^type must be one or several of.* not an empty list"),
    ({"properties": {"a": {"type": "x"}}}, r"^properties\.a\.type must be .*not 'x'"),
    ({"properties": {"a": 5}}, r"^properties\.a must be a schema"),
    ({"properties": []}, "^properties must be an object of schemas"),
    ({"items": [{}]}, "^items must be a schema"),
    ({"items": {"anyOf": [{}, {"required": "a"}]}}, r"^items\.anyOf\[1\]\.required must be a list"),
    ({"anyOf": []}, "^anyOf must be a list of schemas"),
    ({"oneOf": {}}, "^oneOf must be a list of schemas"),
    ({"allOf": [1]}, r"^allOf\[0\] must be a schema"),
    ({"enum": "a"}, "^enum must be a list of values"),
    ({"minimum": "1"}, "^minimum must be a number"),
    ({"maximum": True}, "^maximum must be a number"),
    ({"minLength": -1}, "^minLength must be a whole number"),
    ({"maxItems": 1.5}, "^maxItems must be a whole number"),
    ({"additionalProperties": 1}, "^additionalProperties must be a schema"),
    ({"items": {"$ref": "#/$defs/x"}}, r"^items\.\$ref '#/\$defs/x' leads nowhere"),
    ({"items": {"$ref": "http://x"}}, "leads nowhere"),
    ({"$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"}, "back to itself"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), BAD)
def test_a_schema_that_cannot_be_used_is_refused_with_its_path(schema: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_schema(schema)


def test_a_schema_out_of_proportion_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    wide = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 10} for level in range(9)
    } | {"d9": {}}
    for schema in (deep, {"$ref": "#/$defs/d0", "$defs": wide}):
        with pytest.raises(ValueError, match="too large or too deep"):
            check_schema(schema)


class Item(BaseModel):
    name: str = Field(min_length=1)
    count: int = Field(1, ge=0, lt=5)


class Shape(BaseModel):
    model_config = {"extra": "forbid", "strict": True}
    items: list[Item] = Field(max_length=2)
    kind: Literal["a", "b"] | None = None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 6) | st.sampled_from(["", "a", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["items", "kind", "name", "count"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_a_schema_of_pydantic_says_what_pydantic_says(value: Any) -> None:
    schema = Shape.model_json_schema()
    check_schema(schema)
    try:
        Shape.model_validate_json(json.dumps(value))
    except ValidationError:
        assert matches_schema(value, schema)
    else:
        assert not matches_schema(value, schema)
