"""What the roles of a team answer, and what a team leaves."""

from typing import Literal

from pydantic import BaseModel, Field

from kapelle.domain.task import CheckResult


class Intake(BaseModel):
    success_criteria: list[str] = Field(
        description="what must be true when the goal is reached, each checkable", max_length=20
    )
    questions: list[str] = Field(
        [], description="what only a person can decide; at most 4, better none", max_length=20
    )


class Subgoal(BaseModel):
    id: str = Field(description="a short name, unique in the plan", min_length=1, max_length=60)
    title: str = Field(description="one line", min_length=1, max_length=200)
    task: str = Field(description="all that a worker needs to know to do it", min_length=1)
    depends_on: list[str] = Field([], description="ids of subgoals that must be done before")


class Plan(BaseModel):
    subgoals: list[Subgoal] = Field(min_length=1, max_length=100)


class Review(BaseModel):
    quality: bool = Field(description="is the work of good quality?")
    consistency: bool = Field(description="do its parts fit together and to what was there?")
    goal_aligned: bool = Field(description="does it serve the goal and nothing else?")
    goal_complete: bool = Field(description="is the goal reached, every criterion met?")
    feedback: str = Field("", description="what is to be done next, if anything")

    @property
    def approves(self) -> bool:
        return self.quality and self.consistency and self.goal_aligned and self.goal_complete

    @property
    def objections(self) -> list[str]:
        names = ("quality", "consistency", "goal_aligned", "goal_complete")
        return [name.replace("_", " ") for name in names if not getattr(self, name)]


class Outcome(BaseModel):
    """What became of a subgoal. Only merged work is done."""

    id: str
    title: str
    status: Literal["merged", "failed", "blocked", "conflict"]
    reason: str | None = None
    tasks: list[str] = []
    said: str = ""


class Iteration(BaseModel):
    number: int
    subgoals: list[Subgoal] = []
    outcomes: list[Outcome] = []
    checks: list[CheckResult] = []
    review: Review | None = None
    problem: str | None = None
    commit: str | None = None

    @property
    def verified(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def unfinished(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status != "merged"]


class TeamResult(BaseModel):
    reason: str
    goal_complete: bool
    success_criteria: list[str]
    iterations: list[Iteration]
    commit: str | None = None
