"""JSON is read from what models write, and what cannot be read is said in words they can use."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, model_validator

from kapelle.domain.model_json import Unreadable, find_json, instructions, read_answer

CURLY = str.maketrans({"<": "\u201c", ">": "\u201d"})
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
    ('{"a": [1, 2,], "b": {"c": 1,},}', {"a": [1, 2], "b": {"c": 1}}),
    ('{\n// why\n"a": 1, # because\n"b": "http://x # y" // end\n}', {"a": 1, "b": "http://x # y"}),
    ("{'a': 'it\\'s', 'b': (1, 2.5), 'c': None, 'd': True}",
     {"a": "it's", "b": [1, 2.5], "c": None, "d": True}),
    ("{'a': 'it's so', 'b': \"x\"}", {"a": "it's so", "b": "x"}),
    ("{'a': False, 'é': '\\xe9\\u00e9'}", {"a": False, "é": "éé"}),
    ("{1: 'one'}", {"1": "one"}),
    ("{<a>: <b c>, <d>: [<e>]}".translate(CURLY), {"a": "b c", "d": ["e"]}),
    ("{\u201ea\u201c: \u201eb\u201c}", {"a": "b"}),
    ("{\u2018a\u2019: \u2018don\u2019t\u2019}", {"a": "don\u2019t"}),
    ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
    ('{"a": "he said "yes" and left", "b": 1}', {"a": 'he said "yes" and left', "b": 1}),
    (r'{"a": "\d+\.\w", "b": 1,}', {"a": r"\d+\.\w", "b": 1}),
    (r'{"a": "\ud83d\ude00", "b": "\n",}', {"a": "😀", "b": "\n"}),
    ('{"a": """first\n"second" third""",}', {"a": 'first\n"second" third'}),
    ("{done: true, max-tries: 3}", {"done": True, "max-tries": 3}),
    ('{"a": +1, "b": .5, "c": -2e3, "d": 1_000, "e": 007}',
     {"a": 1, "b": 0.5, "c": -2000.0, "d": 1000, "e": 7}),
    ('{\u00a0"a":\u00a01\u200b}', {"a": 1}),
    ('["a", {"b": null}]', ["a", {"b": None}]),
    (f'{{"code": "{FENCE}py\n{{}}\n{FENCE}"}}', {"code": f"{FENCE}py\n{{}}\n{FENCE}"}),
    ("42", 42),
    (' "just a text" ', "just a text"),
    (fenced("True", ""), True),
    ('"{} and [1]"', "{} and [1]"),
    (fenced('"{} and [1]"'), "{} and [1]"),
    ("x = [inf, -inf]", [float("inf"), float("-inf")]),
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
    (fenced('{"a": 1}') + fenced('{"a": 2}', ""), [{"a": 1}, {"a": 2}]),
    (fenced('{"a": 1}', "") + fenced('{"a": 2}', "python"), [{"a": 1}, {"a": 2}]),
    (fenced('{"a": 1}') + fenced('{"a": 2}', "python"), [{"a": 1}, {"a": 2}]),
    ('Like {"a": 0}:\n' + fenced('{"a": 1}', ""), [{"a": 1}, {"a": 0}]),
    ('{"a": 1} and main() {}', [{"a": 1}, {}]),
    ('x = [{"a": 1}', [{"a": 1}]),
    (f"{FENCE}markdown\n{fenced('[1]')}{fenced('[2]', 'sh')}", [[1], [2]]),
    (fenced("{'a': 'never closed") + fenced('{"a": 2}'), [{"a": 2}]),
    (fenced("1", "sh") + '{"a": 1}', [{"a": 1}, 1]),
]


@pytest.mark.parametrize(("text", "values"), BEST)
def test_the_best_candidate_comes_first(text: str, values: list[Any]) -> None:
    assert find_json(text) == values


READ: list[tuple[str, type[BaseModel], dict[str, Any]]] = [
    ('{"done": "yes", "score": "7.5"}', Verdict, {"done": True, "score": 7.5}),
    ('{"result": {"done": true}}', Verdict, {"done": True}),
    ('{"answer": {"done": true}, "thought": "so"}', Verdict, {"done": True}),
    ('{"verdict": {"done": true}}', Verdict, {"done": True}),
    ('{"result": {"answer": {"done": true}}}', Verdict, {"done": True}),
    ('{"result": "Here: {\\"done\\": true}"}', Verdict, {"done": True}),
    (json.dumps('{"done": true}'), Verdict, {"done": True}),
    ('[{"done": true}]', Verdict, {"done": True}),
    ('[{"title": "a"}, {"title": "b"}]', Plan, {"subgoals": [{"title": "a"}, {"title": "b"}]}),
    ('{"plan": [{"title": "a"}]}', Plan, {"subgoals": [{"title": "a"}]}),
    ("[]", Plan, {"subgoals": []}),
    ('{"done": false} No: {"done": true}', Verdict, {"done": True}),
    ('{"done": true} as in [1] and {"other": 1}', Verdict, {"done": True}),
    ('{"done": true}, not {"done": "perhaps"}', Verdict, {"done": True}),
    (fenced('{"done": true}') + fenced('{"done": false}', "text"), Verdict, {"done": True}),
    (fenced('{"done": false}') + 'No, {"done": true}', Verdict, {"done": True}),
    ('The form is {"done": true|false}. {"done": true}', Verdict, {"done": True}),
    ('{"result": {"text": "a"}}', Remark, {"text": "a"}),
    ('{"text": "a"} and void f() {}', Remark, {"text": "a"}),
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
    ("", Verdict, "There is no JSON object in the answer"),
    ("I am done.", Verdict, "There is no JSON object in the answer"),
    ('{"done": "perhaps"}', Verdict, "done: Input should be a valid boolean.*it is 'perhaps'"),
    ('{"score": 1}', Verdict, "done: Field required"),
    ('{"subgoals": [{"titel": "x"}]}', Plan, r"subgoals\.0\.title: Field required"),
    ('{"other": 1}', Remark, "none of the keys asked for: text, level"),
    ('{"done": true, "notes": "and th', Verdict, "cut off in 'notes': it ends inside a text"),
    ('{"done": true, "notes": "x"', Verdict, "cut off in 'notes': it ends too early"),
    ('{"done": true,', Verdict, "cut off: it ends too early"),
    ('{"subgoals": [{"title": "a"}, {"tit', Plan, r"cut off in 'subgoals\[1\]': it ends inside"),
    ('[{"title": "a"}, {"title": "b"}', Plan, r"cut off in '\[1\]'"),
    (f'{FENCE}json\n{{"done": true, "notes": "x', Verdict, "cut off in 'notes'"),
    ('Like {"done": false}.\n{"done": true, "no', Verdict, "cut off"),
    ('{"text": "a", "level": {"text": "b"}, "x": 1', Remark, "cut off"),
    ('{"done": true\n"notes": 1}', Verdict, r"line 2, column 1 in 'done': expected a comma or \}"),
    ('{"done": maybe}', Verdict, "line 1, column 10 in 'done': expected a value, found 'maybe}'"),
    ('{"text": "a", {"text": "b"}}', Remark, "expected a key"),
    ('{"done": true|false} or {"done": 5}', Verdict, "done: .*it is 5"),
    ('{"done": "?"} or {"done": true|false}', Verdict, "expected a comma"),
    ('{"data": {"done": true}, "done": "?"}', Verdict, r"it is '\?'"),
    ('{"all": [{"text": "a"} {"text": "b"}, {"text": "c"}]}', Remark, "expected a comma"),
    ('{"text": "a" "b"}', Remark, "expected a comma"),
    ('{"text": "a": "b"}', Remark, "expected a comma"),
    ('[{"text": "a"\n"b"}, {"text": "c"}]', Remark, "expected a comma"),
    ("[" * 300 + "]" * 300, Plan, "nested more than 200 deep"),
]


@pytest.mark.parametrize(("text", "shape", "words"), REFUSED)
def test_what_cannot_be_read_is_said_in_words(
    text: str, shape: type[BaseModel], words: str
) -> None:
    with pytest.raises(Unreadable, match=words) as caught:
        read_answer(text, shape)
    assert str(caught.value).endswith(".")


def test_many_problems_are_counted_and_the_message_stays_short() -> None:
    text = json.dumps({"subgoals": [{"title": {"x": "y" * 10_000}}] * 50})
    with pytest.raises(Unreadable, match="and 42 more") as caught:
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
    with pytest.raises(Unreadable, match="no attribute 'strip'"):
        read_answer("[1]", FromText)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
CONTAINERS = JSON.filter(lambda value: isinstance(value, dict | list))
STYLES = st.fixed_dictionaries(
    {"indent": st.sampled_from([None, 0, 2]), "ensure_ascii": st.booleans()}
)
NUMBERS = st.lists(st.integers()) | st.dictionaries(st.sampled_from("ab"), st.integers())
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


@given(NOISE, NUMBERS)
def test_json_behind_stray_brackets_and_quotes_is_found(before: str, value: Any) -> None:
    assert value in find_json(f"{before}{json.dumps(value)}")


@given(JSON, STYLES, st.sampled_from(["json", "", "JSON5", "python"]))
def test_json_in_a_fence_comes_first(value: Any, style: dict[str, Any], label: str) -> None:
    document = json.dumps(value, **style)
    text = f"Here it is:\n\n{fenced(document, label)}\nIs that all right?"
    assert json.dumps(find_json(text)[0]) == json.dumps(json.loads(document))


@given(CONTAINERS)
def test_python_literals_are_read(value: Any) -> None:
    assert find_json(f"x = {value!r}")[0] == value


@given(CONTAINERS.map(lambda value: json.dumps({"text": "", "more": value})), st.data())
def test_no_cut_leaves_an_answer(document: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(document) - 1))
    with pytest.raises(Unreadable):
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
        except Unreadable as refused:
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
    began = time.perf_counter()
    for tried in (text, f'{{"a": "{text}'):
        with pytest.raises(Unreadable):
            read_answer(tried, Verdict)
    # In proportion it is a tenth of this; a search that is quadratic takes minutes.
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("ending", ["]}", ",],}"])
def test_a_large_answer_is_read_at_once(ending: str) -> None:
    text = json.dumps({"subgoals": [{"title": "x" * 20} for _ in range(30_000)]})
    assert len(text) > 1_000_000
    began = time.perf_counter()
    assert len(read_answer(f"Yes: {text[:-2]}{ending} Done.", Plan).subgoals) == 30_000
    assert time.perf_counter() - began < 4


def test_an_answer_behind_a_hundred_thousand_brackets_is_found() -> None:
    assert read_answer("[" * 100_000 + '\n{"done": true}', Verdict).done


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


def schema_in(text: str) -> Any:
    return json.loads(text.rpartition("\n")[2])


def test_the_instructions_hold_one_compact_schema() -> None:
    text = instructions(Plan)
    assert text.startswith("Answer with exactly one JSON object and nothing else")
    schema = schema_in(text)
    assert schema["properties"]["subgoals"]["items"]["required"] == ["title"]
    # The titles that pydantic adds are gone, a property of that name is not.
    assert "title" in schema["properties"]["subgoals"]["items"]["properties"]
    assert not [word for word in ("$defs", "$ref", '"title":"') if word in text]


def test_instructions_for_a_shape_that_holds_itself_keep_its_definition() -> None:
    schema = schema_in(instructions(Tree))
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_instructions_for_a_schema_of_a_user() -> None:
    assert "exactly one JSON array" in instructions({"type": "array", "title": "T"})
    assert schema_in(instructions({"enum": [1, "ü"]})) == {"enum": [1, "ü"]}
    assert "exactly one JSON value" in instructions({"enum": [1]})
