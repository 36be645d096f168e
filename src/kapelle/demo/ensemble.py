"""The tasks of the demo: who plays what, after whom, and how it should end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    key: str
    title: str
    prompt: str
    tests: tuple[str, ...]
    continues: str | None = None
    joins: str | None = None
    max_attempts: int = 1
    ends: str = "completed"
    attempts: int = 1

    @property
    def after(self) -> list[str]:
        return [key for key in (self.continues, self.joins) if key]

    @property
    def check(self) -> str:
        return "python3 -m unittest " + " ".join(f"tests.test_{name}" for name in self.tests)

    def spec(self, repository: str, ids: Mapping[str, str]) -> dict[str, Any]:
        """The body of POST /tasks; `kapelle run` has an option for each of these."""
        spec: dict[str, Any] = {
            "prompt": self.prompt,
            "agent": "rehearsal",
            "directory": repository,
            "title": self.title,
            "workspace": "worktree",
            "timeout_s": 60,
            "checks": ["diff_not_empty", self.check],
            "depends_on": [ids[key] for key in self.after],
        }
        if self.continues:
            spec["continue_from"] = ids[self.continues]
        if self.joins:
            spec["env"] = {self.joins.upper(): f"kapelle/{ids[self.joins]}"}
        if self.max_attempts > 1:
            retry = {"policy": "same", "max_attempts": self.max_attempts, "delay_s": 1}
            spec["retry"] = retry
        return spec


ENSEMBLE = (
    Part(
        "pitch",
        "Implement pitch",
        "Implement number() and name() in music/pitch.py so that tests/test_pitch.py passes.",
        ("pitch",),
    ),
    Part(
        "rhythm",
        "Fix dotted notes",
        "Dotted notes are too long. Fix music/rhythm.py so that tests/test_rhythm.py passes.",
        ("rhythm",),
        max_attempts=3,
        attempts=2,
    ),
    Part(
        "score",
        "Make draw() faster",
        "Make draw() faster in music/score.py. What it draws must stay the same.",
        ("score",),
        ends="failed",
    ),
    Part(
        "intervals",
        "Implement intervals",
        "Implement transpose() and interval() in music/intervals.py so that its tests pass.",
        ("intervals",),
        continues="pitch",
    ),
    Part(
        "scales",
        "Implement scales",
        "Implement scale() in music/scales.py so that its tests pass.",
        ("scales",),
        continues="pitch",
    ),
    Part(
        "melody",
        "Implement melody",
        "Merge $SCALES into your branch, then implement music/melody.py so that its tests pass.",
        ("pitch", "intervals", "scales", "melody"),
        continues="intervals",
        joins="scales",
    ),
)
