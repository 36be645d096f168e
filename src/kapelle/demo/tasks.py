"""The tasks of the demo, and the specs of its two runs."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

TEAM = {
    "goal": "Give the tune an accompaniment: chords, a bass and an arpeggio, with tests.",
    "success_criteria": ["python3 -m music.band plays the tune with its accompaniment"],
    "verify": ["python3 -m unittest"],
    "max_iterations": 2,
}
LOOP = {
    "prompt": "Make music/score.py shorter. What draw() draws must stay the same.",
    "eval": "python3 -m unittest -q tests.test_score && wc -c < music/score.py",
    "direction": "minimize",
    "title": "Shorten score.py",
    "max_iterations": 4,
}


@dataclass(frozen=True)
class DemoTask:
    """One task, and how it should end."""

    key: str
    title: str
    prompt: str
    tests: tuple[str, ...]
    continues: str | None = None
    joins: str | None = None
    max_attempts: int = 1
    ends: str = "completed"
    attempts: int = 1

    def spec(self, repository: str, ids: Mapping[str, str]) -> dict[str, Any]:
        """The body of POST /tasks; `kapelle run` has an option for each of these."""
        tests = " ".join(f"tests.test_{name}" for name in self.tests)
        spec: dict[str, Any] = {
            "prompt": self.prompt,
            "agent": "rehearsal",
            "directory": repository,
            "title": self.title,
            "workspace": "worktree",
            "timeout_s": 60,
            "checks": ["diff_not_empty", f"python3 -m unittest {tests}"],
            "depends_on": [ids[key] for key in (self.continues, self.joins) if key],
        }
        if self.continues:
            spec["continue_from"] = ids[self.continues]
        if self.joins:
            spec["env"] = {self.joins.upper(): f"kapelle/{ids[self.joins]}"}
        if self.max_attempts > 1:
            retry = {"policy": "same", "max_attempts": self.max_attempts, "delay_s": 1}
            spec["retry"] = retry
        return spec


_TEXT = files("kapelle.demo").joinpath("tasks.toml").read_text(encoding="utf-8")
TASKS = tuple(DemoTask(key, **fields) for key, fields in tomllib.loads(_TEXT).items())
