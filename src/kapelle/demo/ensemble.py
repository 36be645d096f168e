"""The tasks of the demo: who plays what, after whom, and how it should end."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    key: str
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
    def title(self) -> str:
        return f"music/{self.key}.py"

    @property
    def check(self) -> str:
        return "python3 -m unittest " + " ".join(f"tests.test_{name}" for name in self.tests)

    def arguments(self, repository: str, ids: Mapping[str, str]) -> list[str]:
        """What to type after `kapelle`."""
        words = ["run", self.prompt, "--agent", "rehearsal", "--directory", repository]
        words += ["--title", self.title, "--worktree", "--timeout", "60s"]
        words += ["--check", "diff_not_empty", "--check", self.check]
        for key in self.after:
            words += ["--after", ids[key]]
        if self.continues:
            words += ["--continue-from", ids[self.continues]]
        if self.joins:
            words += ["--env", f"{self.joins.upper()}=kapelle/{ids[self.joins]}"]
        if self.max_attempts > 1:
            words += ["--retry", "same", "--max-attempts", str(self.max_attempts)]
            words += ["--retry-delay", "1s"]
        return words


ENSEMBLE = (
    Part(
        "pitch",
        "Implement number() and name() in music/pitch.py so that tests/test_pitch.py passes.",
        ("pitch",),
    ),
    Part(
        "rhythm",
        "Dotted notes are too long. Fix music/rhythm.py so that tests/test_rhythm.py passes.",
        ("rhythm",),
        max_attempts=3,
        attempts=2,
    ),
    Part(
        "score",
        "Make draw() faster in music/score.py. What it draws must stay the same.",
        ("score",),
        ends="failed",
    ),
    Part(
        "intervals",
        "Implement transpose() and interval() in music/intervals.py so that its tests pass.",
        ("intervals",),
        continues="pitch",
    ),
    Part(
        "scales",
        "Implement scale() in music/scales.py so that its tests pass.",
        ("scales",),
        continues="pitch",
    ),
    Part(
        "melody",
        "Merge $SCALES into your branch, then implement music/melody.py so that its tests pass.",
        ("pitch", "intervals", "scales", "melody"),
        continues="intervals",
        joins="scales",
    ),
)
