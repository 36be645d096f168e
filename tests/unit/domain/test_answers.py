"""JSON is read from what models write, and what cannot be read is said in words they can use."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, model_validator

from kapelle.domain.answers import (
    UnreadableAnswer,
    find_json,
    format_answer_instructions,
    read_answer,
)

FENCE = "```"


class Verdict(BaseModel):
    done: bool
    score: float = 0
    notes: str = ""


class Subgoal(BaseModel):
    title: str
    after: list[int] = []


class Plan(BaseModel):
    subgoals: list[Subgoal]
    summary: str | None = None


class Remark(BaseModel):
    """Everything in it is optional, so nearly anything would do."""

    text: str = ""
    level: int = 0


def fenced(content: str, label: str = "json") -> str:
    return f"{FENCE}{label}\n{content}\n{FENCE}\n"


VALUES: list[tuple[str, Any]] = [
    ('{"done": true}', {"done": True}),
    ('Sure! Here it is: {"done": true}. Anything else?', {"done": True}),
    ('\ufeff{"done": true}', {"done": True}),
    (fenced('{"done": true}'), {"done": True}),
    (f'{FENCE}json {{"done": true}}{FENCE}', {"done": True}),
    ('~~~\n{"done": true}\n~~~', {"done": True}),
    ('{"a": {"b": [{"c": "}]"}]}}', {"a": {"b": [{"c": "}]"}]}}),
    (r'{"a": "say \"}\" \\"}', {"a": 'say "}" \\'}),
    ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
    ('["a", {"b": null}]', ["a", {"b": None}]),
    (f'{{"code": "{FENCE}py\n{{}}\n{FENCE}"}}', {"code": f"{FENCE}py\n{{}}\n{FENCE}"}),
    ("42", 42),
    (' "just a text" ', "just a text"),
    ('"{} and [1]"', "{} and [1]"),
    (fenced('{"a": 1}', "python"), {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_a_value_is_found_however_it_is_written(text: str, value: Any) -> None:
    assert find_json(text) == [value]


@pytest.mark.parametrize(
    "text",
    [
        "", "no JSON here", "[...]", "{foo}", "f(x) { return y }", "see [here](http://x)", "[a, b]",
        "an interval [0, 1)", "{'a', 'b'}", '{"a" "b"}', '{"a": 1 "b": 2}', "{,}", "[,]", "[1,,2]",
        '{"a": 1} '[:-2], "[" + "1" * 5000 + "]", "[1__0]", "[-]", "[1 2]", '{"a": }',
    ],
)  # fmt: skip
def test_what_is_no_json_is_not_taken_for_it(text: str) -> None:
    assert [value for value in find_json(text) if value] == []


BEST: list[tuple[str, list[Any]]] = [
    ('{"a": 1} then {"a": 2}', [{"a": 2}, {"a": 1}]),
    (fenced('{"a": 1}') + fenced('{"a": 2}'), [{"a": 2}, {"a": 1}]),
    (fenced('{"a": 1}') + fenced('{"a": 2}', ""), [{"a": 2}, {"a": 1}]),
    (fenced('{"a": 1}') + fenced('{"a": 2}', "python"), [{"a": 1}]),
    ('Like {"a": 0}:\n' + fenced('{"a": 1}', ""), [{"a": 1}, {"a": 0}]),
    ('{"a": 1} and main() {}', [{}, {"a": 1}]),
    ('x = [{"a": 1}', []),
    ('[1 of 3] {"a": 1}', [{"a": 1}]),
    (f"{FENCE}markdown\n{fenced('[1]')}{fenced('[2]', 'sh')}", [[1]]),
]


@pytest.mark.parametrize(("text", "values"), BEST)
def test_the_best_candidate_comes_first(text: str, values: list[Any]) -> None:
    assert find_json(text) == values


READ: list[tuple[str, type[BaseModel], dict[str, Any]]] = [
    ('{"done": "yes", "score": "7.5"}', Verdict, {"done": True, "score": 7.5}),
    ('{"done": false} No: {"done": true}', Verdict, {"done": True}),
    ('{"done": true} as in [1] and {"other": 1}', Verdict, {"done": True}),
    ('{"done": true}, not {"done": "perhaps"}', Verdict, {"done": True}),
    (fenced('{"done": true}') + fenced('{"done": false}', "text"), Verdict, {"done": True}),
    (fenced('{"done": false}') + 'No, {"done": true}', Verdict, {"done": True}),
    ('The form is {"done": true|false}. {"done": true}', Verdict, {"done": True}),
    ('{"text": "a"} and void f() { return; }', Remark, {"text": "a"}),
    ("{}", Remark, {}),
]


@pytest.mark.parametrize(("text", "shape", "given"), READ)
def test_an_answer_is_read_as_its_shape(
    text: str, shape: type[BaseModel], given: dict[str, Any]
) -> None:
    answer = read_answer(text, shape)
    assert answer.model_dump(exclude_unset=True) == given
    assert type(answer) is shape


REFUSED: list[tuple[str, type[BaseModel], str]] = [
    ("", Verdict, "The answer contains no JSON object"),
    ("I am done.", Verdict, "The answer contains no JSON object"),
    ('{"done": "perhaps"}', Verdict, "done must be true or false, not 'perhaps'"),
    ('{"score": 1}', Verdict, "done is missing"),
    ('{"subgoals": [{"titel": "x"}]}', Plan, r"subgoals\.0\.title is missing"),
    ('{"other": 1}', Remark, "none of the expected keys: text, level"),
    ('{"result": {"done": true}}', Verdict, "done is missing"),
    ('{"done": true, "notes": "and th', Verdict, "truncated.*and th"),
    ('{"done": true, "notes": "x"', Verdict, "truncated"),
    ('{"done": true,', Verdict, "truncated"),
    ('{"done": tru', Verdict, "truncated"),
    ('{"subgoals": [{"title": "a"}, {"tit', Plan, "truncated"),
    ('[{"title": "a"}, {"title": "b"}', Plan, "truncated"),
    (f'{FENCE}json\n{{"done": true, "notes": "x', Verdict, "truncated"),
    ('Like {"done": false}.\n{"done": true, "no', Verdict, "truncated"),
    ('{"text": "a", "level": {"text": "b"}, "x": 1', Remark, "truncated"),
    ('[{"text": "a"} {"text": "b"}', Remark, "truncated"),
    ('{"done": true\n"notes": 1}', Verdict, r"line 2, column 1: Expecting ',' delimiter"),
    ('{"done": maybe}', Verdict, "line 1, column 10: Expecting value, found 'maybe}'"),
    ('{"done": false} No: {"done": true,}', Verdict, "cannot be read"),
    ("{'done': True}", Verdict, "cannot be read.*strict JSON"),
    ("{'a': {\"done\": true}}", Verdict, "cannot be read"),
    ('{"score": NaN}', Verdict, "NaN is not a finite number"),
    ('{"score": -Infinity}', Verdict, "-Infinity is not a finite number"),
    ('{"score": 1e999}', Verdict, "1e999 is not a finite number"),
    ('{"text": "a", {"text": "b"}}', Remark, "cannot be read"),
    ('{"all": [{"text": "a"} {"text": "b"}, {"text": "c"}]}', Remark, "Expecting ','"),
    ('[{"text": "a"\n"b"}, {"text": "c"}]', Remark, "Expecting ','"),
    ("[" * 300_000 + "]" * 300_000, Plan, "cannot be read"),
]


@pytest.mark.parametrize(("text", "shape", "words"), REFUSED)
def test_what_cannot_be_read_is_said_in_words(
    text: str, shape: type[BaseModel], words: str
) -> None:
    with pytest.raises(UnreadableAnswer, match=words) as caught:
        read_answer(text, shape)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999"])
def test_no_schema_is_fitted_by_a_number_that_is_not_finite(number: str) -> None:
    with pytest.raises(UnreadableAnswer, match=f"'{number} is not a finite number'"):
        read_answer(f'{{"score": {number}}}', {"properties": {"score": {"type": "number"}}})


def test_many_problems_are_counted_and_the_message_stays_short() -> None:
    text = json.dumps({"subgoals": [{"title": {"x": "y" * 10_000}}] * 50})
    with pytest.raises(UnreadableAnswer, match="and 42 more") as caught:
        read_answer(text, Plan)
    assert len(str(caught.value)) < 2000


def test_a_shape_of_another_make_is_read_too() -> None:
    class Numbers(RootModel[list[int]]):
        pass

    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str = Field(validation_alias=AliasChoices("name", "titel"))

    class FromText(BaseModel):
        prompt: str

        @model_validator(mode="before")
        @classmethod
        def _from_text(cls, value: Any) -> Any:
            return {"prompt": value.strip()} if not isinstance(value, dict) else value

    assert read_answer("It is [1, 2].", Numbers).root == [1, 2]
    assert read_answer('{"titel": "x"}', Strict).name == "x"
    assert read_answer('" do it "', FromText).prompt == "do it"
    with pytest.raises(UnreadableAnswer, match="no attribute 'strip'"):
        read_answer("[1]", FromText)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
CONTAINERS = JSON.filter(lambda value: isinstance(value, dict | list))
STYLES = st.fixed_dictionaries(
    {"indent": st.sampled_from([None, 0, 2]), "ensure_ascii": st.booleans()}
)
NOISE = st.text(alphabet="[]{}()\"'\\,:#/`~ \n01etN-.x\u201c\u2019\ufeff", max_size=40)


@given(JSON, STYLES)
def test_every_json_document_is_read_as_json_says(value: Any, style: dict[str, Any]) -> None:
    document = json.dumps(value, **style)
    assert json.dumps(find_json(document)) == json.dumps([json.loads(document)])


@given(st.text().map(lambda text: text.replace("{", "").replace("[", "")), CONTAINERS, st.text())
def test_json_in_any_prose_is_found(before: str, value: Any, after: str) -> None:
    assert json.dumps(value) in map(
        json.dumps, find_json(f"It is {before}{json.dumps(value)}{after}")
    )


@given(CONTAINERS, STYLES, st.sampled_from(["json", "", "JSON5", "python"]))
def test_json_in_a_fence_comes_first(value: Any, style: dict[str, Any], label: str) -> None:
    document = json.dumps(value, **style)
    text = f"Here it is:\n\n{fenced(document, label)}\nIs that all right?"
    assert json.dumps(find_json(text)[0]) == json.dumps(json.loads(document))


@given(CONTAINERS.map(lambda value: json.dumps({"text": "", "more": value})), st.data())
def test_no_cut_leaves_an_answer(document: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(document) - 1))
    with pytest.raises(UnreadableAnswer):
        read_answer(document[:cut], Remark)


@given(st.text() | NOISE | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
@example('{"done": "\\ud800"}')
@example('{"\\ud800": 1}')
@example("{'done': '\ud800', '\ud800': [")
@example('{"done": true, "notes": "\\')
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    for shape in (Verdict, Plan, Remark):
        message = ""
        try:
            read_answer(text, shape)
        except UnreadableAnswer as refused:
            message = str(refused)
        assert message.isprintable()


@pytest.mark.parametrize(
    "pattern",
    [
        "[", "{", "[{", '{"a":', "{a:", "[1 x", "[1, x", "['", '["', "[//", "[#\n", "[1", "(",
        "``` ", "```\n", "```json\n", "```\n{'a': 'x\n```\n", "{'a': [", '{"a":1,x', '{"a" ', "{ ",
        '["a" ', '["\\', "\\", "[1] ", "{a: b", '{a: b"', "{a: b}",
    ],
)  # fmt: skip
def test_no_text_takes_long(pattern: str) -> None:
    text = pattern * (200_000 // len(pattern))
    began = time.process_time()
    for tried in (text, f'{{"a": "{text}'):
        with pytest.raises(UnreadableAnswer):
            read_answer(tried, Verdict)
    # In proportion it is a tenth of this; a search that is quadratic takes minutes.
    assert time.process_time() - began < 5


def test_a_large_answer_is_read_at_once() -> None:
    text = json.dumps({"subgoals": [{"title": "x" * 20} for _ in range(30_000)]})
    assert len(text) > 1_000_000
    began = time.process_time()
    assert len(read_answer(f"Yes: {text} Done.", Plan).subgoals) == 30_000
    assert time.process_time() - began < 4


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


def schema_in(text: str) -> Any:
    return json.loads(text.rpartition("\n")[2])


def test_the_instructions_hold_one_compact_schema() -> None:
    text = format_answer_instructions(Plan)
    assert text.startswith("Answer with exactly one JSON object and nothing else")
    schema = schema_in(text)
    assert schema["properties"]["subgoals"]["items"]["required"] == ["title"]
    # The titles that pydantic adds are gone, a property of that name is not.
    assert "title" in schema["properties"]["subgoals"]["items"]["properties"]
    assert not [word for word in ("$defs", "$ref", '"title":"') if word in text]


def test_instructions_for_a_shape_that_holds_itself_keep_its_definition() -> None:
    schema = schema_in(format_answer_instructions(Tree))
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_instructions_for_a_schema_of_a_user() -> None:
    assert "exactly one JSON array" in format_answer_instructions({"type": "array", "title": "T"})
    assert schema_in(format_answer_instructions({"enum": [1, "ü"]})) == {"enum": [1, "ü"]}
    assert "exactly one JSON value" in format_answer_instructions({"enum": [1]})
