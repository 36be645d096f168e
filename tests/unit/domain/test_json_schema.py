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
    (5, {"allOf": [{"minimum": 1}, {"maximum": 5}], "x-unknown": {}}),
    ([1, "x"], {"items": True}),
    # Neither is looked at: one may take for ever, and the other leads out of here.
    ("a" * 40 + "!", {"pattern": "^(a+)+$", "$dynamicRef": "http://localhost:9/x"}),
    ({"a": {"n": 1}}, REFERS),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema"), FITS)
def test_a_value_that_fits_has_no_problems(value: Any, schema: dict[str, Any]) -> None:
    check_schema(schema)
    assert matches_schema(value, schema) == []


MISFITS: list[tuple[Any, Any, list[str]]] = [
    ([], SCORE, ["the value: [] is not of type 'object'"]),
    ({}, SCORE, ["the value: 'score' is a required property"]),
    ({"score": "3"}, SCORE, ["score: '3' is not of type 'number'"]),
    ({"score": True}, SCORE, ["score: True is not of type 'number'"]),
    ({"score": float("nan")}, SCORE, ["score: nan is not of type 'number'"]),
    ({"score": float("inf")}, {"properties": {"score": {"type": ["number", "null"]}}}, [
        "score: inf is not of type 'number', 'null'",
    ]),
    ({"score": 1, "extra": 1}, SCORE, [
        "the value: Additional properties are not allowed ('extra' was unexpected)",
    ]),
    ({"score": 1, "tags": ["ab", "c"]}, SCORE, ["tags[1]: 'c' is too short"]),
    ({"score": 11, "tags": 1}, SCORE, [
        "score: 11 is greater than the maximum of 10", "tags: 1 is not of type 'array'",
    ]),
    (True, {"const": 1}, ["the value: 1 was expected"]),
    ({"a": "x"}, OTHERS, ["a: 'x' is not of type 'integer'"]),
    (None, {"anyOf": [{"type": "string"}, {"type": "integer"}]}, [
        "the value: None is not valid under any of the given schemas (None is not of type 'string';"
        " or None is not of type 'integer')",
    ]),
    ({"a": {}}, REFERS, ["a: 'n' is a required property"]),
    ({"a\n": 1}, {"properties": {"a\n": {"type": "null"}}}, ["a\\n: 1 is not of type 'null'"]),
    ("x" * 900, {"maxLength": 2}, [f"the value: '{'x' * 99} … {'x' * 87}' is too long"]),
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
    ({"type": "nummer"}, "^type: 'nummer' is not valid.* 'number', 'object'"),
    ({"properties": {"a": {"type": "x"}}}, r"^properties\.a\.type: 'x' is not valid"),
    ({"properties": {"a": 5}}, r"^properties\.a: 5 is not of type 'object', 'boolean'"),
    ({"items": {"anyOf": [{}, {"required": "a"}]}}, r"^items\.anyOf\[1\]\.required: 'a' is not of"),
    ({"anyOf": []}, r"^anyOf: \[\] should be non-empty"),
    ({"minimum": "1"}, "^minimum: '1' is not of type 'number'"),
    ({"minLength": -1}, "^minLength: -1 is less than the minimum of 0"),
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
