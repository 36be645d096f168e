"""Versions of programs, compared by number."""

import pytest

from kapelle.agents.versions import compare_versions, describe_version, find_version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("2.1.325 (Claude Code)\n", "2.1.325"),
        ("codex-cli 0.166.0\n", "0.166.0"),
        ("aider 0.86.2.dev1+g1\n", "0.86.2"),
        ("v1.0.102-beta.3\n", "1.0.102"),
        ("GitHub Copilot CLI 1.0.102.\nRun 'copilot update'", "1.0.102"),
        ("version 7\n", None),
        ("", None),
    ],
)
def test_a_version_is_found_in_what_programs_say(said: str, version: str | None) -> None:
    assert find_version(said) == version


@pytest.mark.parametrize(
    ("here", "tested", "comparison"),
    [
        ("2.1.325", "2.1.325", "same"),
        ("2.1", "2.1.0", "same"),
        ("2.10.0", "2.9.9", "newer"),
        ("2.1.99", "2.1.325", "older"),
    ],
)
def test_numbers_count_and_not_letters(here: str, tested: str, comparison: str) -> None:
    assert compare_versions(here, tested) == comparison


def test_the_words_promise_nothing() -> None:
    assert describe_version("2.1.325", "2.1.325") == "version 2.1.325, tested with 2.1.325"
    assert describe_version("2.2.0", "2.1.325") == "version 2.2.0 (newer), tested with 2.1.325"
    assert describe_version(None, "2.1.325") == "version unknown, tested with 2.1.325"
