"""The check of commit messages, as git's hook and CI call it."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "commit_message.py"
GOOD = (
    "Classify opencode's HTTP 429 as a rate limit\n\nIt was retried at once, 20 times a minute.\n"
)
REASON = "\n\nBecause.\n"


def _find_problems(message: str) -> list[str]:
    return list(runpy.run_path(str(SCRIPT))["find_problems"](message))


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        f"{GOOD}# Please enter the commit message\n# a comment of git\n",
        "Need a token on every route\n\nThe socket alone does not tell people apart.\n",
        "Merge branch 'x'\n",
        'Revert "Add a thing"\n',
        "fixup! Add a thing\n",
        f"Add {'x' * 68}{REASON}",
    ],
)
def test_good_messages_pass(message: str) -> None:
    assert _find_problems(message) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (f"Add {'x' * 69}{REASON}", "73 characters"),
        (f"Added a thing{REASON}", "'Added'"),
        (f"Fixes a thing{REASON}", "'Fixes'"),
        (f"Fixing a thing{REASON}", "'Fixing'"),
        (f"The thing is fixed{REASON}", "'The'"),
        (f"fix a thing{REASON}", "capital letter"),
        (f"Fix a thing.{REASON}", "period"),
        ("Fix a thing\nBecause.\n", "empty line"),
        ("Fix a thing\n", "body is missing"),
        ("# only comments\n", "subject is empty"),
    ],
)
def test_bad_messages_are_refused_with_the_reason(message: str, words: str) -> None:
    (problem,) = _find_problems(message)
    assert words in problem


def test_the_hook_fails_and_names_the_problem(tmp_path: Path) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text("Fix a thing\n", encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "The body is missing" in done.stderr
