"""Values are held against a schema that a user wrote, and the schema itself is checked first."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from kapelle.domain.json_schema import check_schema, list_violations

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
    (5, {"allOf": [{"minimum": 1}, {"maximum": 5}], "pattern": "(a+)+$", "x-unknown": {}}),
    ([1, "x"], {"items": True}),
    ({"a": {"n": 1}}, REFERS),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema"), FITS)
def test_a_value_that_fits_has_no_problems(value: Any, schema: dict[str, Any]) -> None:
    check_schema(schema)
    assert list_violations(value, schema) == []


MISFITS: list[tuple[Any, Any, list[str]]] = [
    ([], SCORE, ["[] is not of type 'object'"]),
    ({}, SCORE, ["'score' is a required property"]),
    ({"score": "3"}, SCORE, ["score: '3' is not of type 'number'"]),
    ({"score": True}, SCORE, ["score: True is not of type 'number'"]),
    ({"score": -1}, SCORE, ["score: -1 is less than the minimum of 0"]),
    ({"score": 1, "extra": 1}, SCORE, [
        "Additional properties are not allowed ('extra' was unexpected)",
    ]),
    ({"score": 1, "kind": "ugly"}, SCORE, ["kind: 'ugly' is not one of ['good', 'bad', None]"]),
    ({"score": 1, "tags": ["ab", "c"]}, SCORE, ["tags[1]: 'c' is too short"]),
    ({"score": 11, "tags": 1}, SCORE, [
        "score: 11 is greater than the maximum of 10", "tags: 1 is not of type 'array'",
    ]),
    (1, {"exclusiveMinimum": 1}, ["1 is less than or equal to the minimum of 1"]),
    (1.5, {"type": "integer"}, ["1.5 is not of type 'integer'"]),
    (True, {"const": 1}, ["1 was expected"]),
    ({"a": "x"}, OTHERS, ["a: 'x' is not of type 'integer'"]),
    (None, {"anyOf": [{"type": "string"}, {"type": "integer"}]}, [
        "None is not valid under any of the given schemas",
    ]),
    (5, {"oneOf": [{"minimum": 1}, {"maximum": 9}]}, [
        "5 is valid under each of {'maximum': 9}, {'minimum': 1}",
    ]),
    ([1], {"items": False}, ["Expected at most 0 items but found 1 extra: 1"]),
    ({"a": {}}, REFERS, ["a: 'n' is a required property"]),
    ({"x" * 999: 1}, {"additionalProperties": False}, [
        "Additional properties are not allowed ('" + "x" * 259 + "…",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "schema", "problems"), MISFITS)
def test_each_problem_is_said_with_its_path(
    value: Any, schema: dict[str, Any], problems: list[str]
) -> None:
    check_schema(schema)
    assert list_violations(value, schema) == problems


def test_problems_have_an_end() -> None:
    assert len(list_violations(["x"] * 1000, {"items": {"type": "null"}})) == 20


BAD: list[tuple[Any, str]] = [
    ([], "the schema must be an object"),
    ({"type": "nummer"}, "^type: 'nummer' is not valid"),
    ({"properties": {"a": {"type": "x"}}}, r"^properties\.a\.type: 'x' is not valid"),
    ({"properties": []}, r"^properties: \[\] is not of type 'object'"),
    ({"items": [{}]}, "^items: .* is not of type 'object', 'boolean'"),
    ({"items": {"anyOf": [{}, {"required": "a"}]}}, r"^items\.anyOf\[1\]\.required: 'a' is not"),
    ({"anyOf": []}, r"^anyOf: \[\] should be non-empty"),
    ({"minimum": "1"}, "^minimum: '1' is not of type 'number'"),
    ({"minLength": -1}, "^minLength: -1 is less than the minimum of 0"),
    ({"items": {"$ref": "#/$defs/x"}}, r"^items\.\$ref '#/\$defs/x' is not defined"),
    ({"items": {"$ref": "http://x"}}, "is not defined"),
    ({"$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"}, "is circular"),
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


def test_patterns_are_ignored_for_some_take_for_ever() -> None:
    slow = {"patternProperties": {"^(a+)+$": False}, "properties": {"b": {"pattern": "^(a+)+$"}}}
    value = {"a" * 40 + "!": 1, "b": "a" * 40 + "!"}
    assert list_violations(value, {**slow, "additionalProperties": True}) == []


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
        assert list_violations(value, schema)
    else:
        assert not list_violations(value, schema)
