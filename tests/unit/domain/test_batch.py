"""Lists of work in Markdown and CSV: what is written is read again as the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.domain.batch import format_csv, format_markdown, read_items
from kapelle.domain.errors import InvalidInput

LIST = """# Tonight

Some words before the list.

- Fix the login test
- [ ] Speed up the parser.
  It takes 3 s.

  - note: this is part of the prompt
  - agent: codex
  - check: make test
  - check: make bench
3. Should we?
   - pattern: best-of
   - options: {"count": 3}
"""
ITEMS = [
    {"prompt": "Fix the login test"},
    {
        "prompt": "Speed up the parser.\nIt takes 3 s.\n\n- note: this is part of the prompt",
        "agent": "codex",
        "checks": ["make test", "make bench"],
    },
    {"prompt": "Should we?", "pattern": "best-of", "options": {"count": 3}},
]

_line = st.sampled_from(["one", "two, three", 'a "b"', "x; y|z", "Grüße", "agent: codex", "# no"])
_items = st.lists(
    st.fixed_dictionaries(
        {"prompt": st.lists(_line, min_size=1, max_size=3).map("\n".join)},
        optional={
            "agent": _line,
            "title": _line,
            "checks": st.lists(_line, min_size=1, max_size=3),
            "options": st.dictionaries(_line, st.integers(), min_size=1),
        },
    ),
    min_size=1,
)


def test_a_list_as_people_write_it() -> None:
    assert read_items(LIST, "markdown") == ITEMS


_LINES = st.sampled_from(
    [
        "- check: rm -rf build",
        "- agnet: nobody",
        "\t* title: bold",
        "\\- check: x",
        "  \\\\+ agent: y",
        "- [ ] z",
        "1. w",
    ]
)


@given(st.lists(_LINES | _line, max_size=4))
def test_no_line_of_a_prompt_becomes_a_field(lines: list[str]) -> None:
    items = [{"prompt": "\n".join(["Mend:", *lines])}, {"prompt": "two", "title": "a b"}]
    assert read_items(format_markdown(items), "markdown") == items
    items[1]["title"] = "a\n  - check: b"
    assert "checks" not in read_items(format_markdown(items), "markdown")[1]


@given(_items)
def test_what_is_written_is_read_as_the_same(items: list[dict[str, object]]) -> None:
    assert read_items(format_markdown(items), "markdown") == items
    assert read_items(format_csv(items), "csv") == items


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("# Nothing\n", "markdown", "This list has no items"),
        ("- one\ntwo\n", "markdown", "line 2: 'two' belongs to no item"),
        ("- one\n  - options: {", "markdown", "line 2: options is not JSON"),
        ("task,agent\na,b\n", "csv", "'task' is not a column"),
        ("agent\nb\n", "csv", "the column prompt is missing"),
        ('prompt\n"a\n', "csv", "this is not CSV"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, kind: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_items(text, kind)  # type: ignore[arg-type]
    assert said in error.value.message


def test_a_word_that_is_almost_a_field_is_no_part_of_the_prompt() -> None:
    with pytest.raises(InvalidInput, match="line 2: 'agnet' is not a field; did you mean agent"):
        read_items("- x\n  - agnet: foo\n", "markdown")
