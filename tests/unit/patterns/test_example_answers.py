"""The example answers of the pages can be read by the patterns that get such answers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kapelle.domain.answers import read_answer
from kapelle.patterns.orchestrate.plan import Turn, Verdict
from kapelle.patterns.tracks.features import VerificationReport
from kapelle.patterns.workflow.plan import read_assessment, read_review

DOCS = Path(__file__).parents[3] / "docs"


def _read_as(shape: Any) -> Callable[[str], Any]:
    return lambda text: read_answer(text, shape)


@pytest.mark.parametrize(
    ("page", "role", "read"),
    [
        ("orchestrate", "conductor", _read_as(Turn)),
        ("orchestrate", "judge", _read_as(Verdict)),
        ("tracks", "verifier", _read_as(VerificationReport)),
        ("workflow", "assess", read_assessment),
        ("workflow", "review", read_review),
    ],
)
def test_an_example_answer_can_be_read(page: str, role: str, read: Callable[[str], Any]) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    [example] = re.findall(rf"^```\w+ {role}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    answer = read(example)
    # Every part of the example was understood.
    if role == "conductor":
        plan = answer.change([], 100)
        assert [part.kind for part in plan] == ["task", "loop"]
    elif role == "assess":
        milestones, contract = answer
        assert [one.check for one in milestones] == ["make test-export", None]
        assert contract.startswith("- Run")
    elif role == "review":
        assert answer.done == [1]
    elif role == "verifier":
        assert answer.lacks(["log in", "use a wrong password"]).startswith("STEP 2")
