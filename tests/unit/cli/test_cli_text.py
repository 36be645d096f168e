import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.cli.text import clean, last_lines, one_line

HOSTILE = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            ["\x1b", "\x1b[", "\x1b]", "\x1b[31m", "\x9b", "\x07", "\x1b\\", "\r", "\u202e", "\n"]
        ),
    )
).map("".join)


@given(HOSTILE)
def test_nothing_that_steers_a_terminal_remains(text: str) -> None:
    shown = clean(text)
    assert all(letter in "\n\t" or unicodedata.category(letter) != "Cc" for letter in shown)
    assert not any("\u202a" <= letter <= "\u202e" for letter in shown)
    assert not any("\u2066" <= letter <= "\u2069" for letter in shown)
    shown.encode()


@given(HOSTILE)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=50))
def test_plain_text_stays(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize("unit", ["\x90", "\x9d", "\x1b]", "\x1b[0;", "\x9b1", "\x1b "])
def test_a_line_of_unfinished_sequences_is_cleaned_in_linear_time(unit: str) -> None:
    began = time.process_time()
    clean(f"é{unit * 50_000}")
    assert time.process_time() - began < 2


def test_umlauts_and_emoji_stay() -> None:
    assert clean("Grüße 🎻\n\tjetzt") == "Grüße 🎻\n\tjetzt"


def test_escape_sequences_go_as_a_whole() -> None:
    assert clean("\x1b[1;31mred\x1b[0m") == "red"
    assert clean("\x1b]0;title\x07after") == "after"
    assert clean("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"
    assert clean("\x9b2Jwiped") == "wiped"


def test_an_unfinished_sequence_does_not_swallow_what_follows() -> None:
    assert clean("\x1b]0;no end\nnext") == "0;no end\nnext"


def test_direction_changes_become_visible() -> None:
    assert clean("a\u202eb") == "a\\u202eb"


def test_carriage_returns_become_lines() -> None:
    assert clean("10%\r20%\r\n") == "10%\n20%\n"


def test_one_line_is_cut() -> None:
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("abcdef", 4) == "abc…"


def test_tail() -> None:
    assert last_lines("1\n2\n3\n", 2) == ["2", "3"]
