"""The progress of a team: its iterations with subgoals, outcomes, checks and review."""

from typing import Any, Literal

from pydantic import BaseModel

from kapelle.domain.task import CheckResult
from kapelle.domain.text import format_count
from kapelle.patterns.results import fenced, join_names, select_failed
from kapelle.patterns.subgoals import Subgoal
from kapelle.patterns.team.roles import Review

SubgoalStatus = Literal["merged", "failed", "blocked", "conflict"]
# Characters of an answer that is the whole work of a subgoal.
_ANSWER = 20_000


class SubgoalOutcome(BaseModel):
    """The outcome of a subgoal. Only merged work is done."""

    id: str
    title: str
    status: SubgoalStatus
    reason: str | None = None
    tasks: list[str] = []
    said: str = ""
    text_only: bool = False

    @classmethod
    def of(
        cls, subgoal: Subgoal, status: SubgoalStatus, reason: str | None = None
    ) -> "SubgoalOutcome":
        return cls(
            id=subgoal.id,
            title=subgoal.title,
            text_only=subgoal.text_only,
            status=status,
            reason=reason,
        )

    @property
    def description(self) -> str:
        """Return the outcome in a line, for prompts."""
        text = f"{self.title}: {self.status}"
        if self.reason:
            text += f" ({self.reason})"
        text += "."
        if self.said:
            text += f" It said: {self.excerpt(300)}"
        return text

    def excerpt(self, length: int) -> str:
        """Return the end of the worker's answer; more of it if the answer is the whole work."""
        if self.text_only:
            length = _ANSWER
        return self.said[-length:]


class TeamIteration(BaseModel):
    number: int
    subgoals: list[Subgoal] = []
    outcomes: list[SubgoalOutcome] = []
    checks: list[CheckResult] = []
    review: Review | None = None
    problem: str | None = None
    commit: str | None = None

    def take_up(self, subgoals: list[Subgoal], limit: int) -> None:
        """Plan these subgoals up to a limit; those beyond it are blocked."""
        self.subgoals = subgoals[:limit]
        reason = f"left out, for a plan has at most {format_count(limit, 'subgoal')}"
        self.outcomes = [SubgoalOutcome.of(one, "blocked", reason) for one in subgoals[limit:]]
        ids = {subgoal.id for subgoal in self.subgoals}
        for subgoal in self.subgoals:
            subgoal.depends_on = [other for other in subgoal.depends_on if other in ids]

    def add(self, outcome: SubgoalOutcome) -> None:
        """Add an outcome, in the order of the plan; subgoals beyond its limit come last."""
        places = {subgoal.id: place for place, subgoal in enumerate(self.subgoals)}
        self.outcomes.append(outcome)
        self.outcomes.sort(key=lambda item: places.get(item.id, len(places)))

    @property
    def verified(self) -> bool:
        return not select_failed(self.checks)

    @property
    def unfinished(self) -> list[SubgoalOutcome]:
        return [outcome for outcome in self.outcomes if outcome.status != "merged"]

    @property
    def answer(self) -> str:
        """Return the answers of the workers whose work is merged.

        Several answers stand under the titles of their subgoals.
        """
        answers = []
        for outcome in self.outcomes:
            if outcome.status == "merged" and outcome.said:
                answers.append(outcome)
        if len(answers) == 1:
            return answers[0].said
        return "\n\n".join(f"## {item.title}\n\n{item.said}" for item in answers)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the progress to report when the iteration has ended."""
        total = len(self.checks)
        review = None
        if self.review:
            review = {**self.review.model_dump(), "approves": self.review.approves}
        return {
            "phase": "done" if self.is_done else "not done",
            "merged": len(self.outcomes) - len(self.unfinished),
            "planned": len(self.outcomes),
            # No checks prove nothing.
            "verified": bool(self.checks) and self.verified,
            "checks": {"of": total, "passed": total - len(select_failed(self.checks))},
            "review": review,
            "lack": None if self.is_done else self.lack,
        }

    @property
    def is_done(self) -> bool:
        """Tell whether all subgoals are merged, all checks pass and the reviewer approves."""
        if self.unfinished or not self.outcomes:
            return False
        return self.verified and self.review is not None and self.review.approves

    @property
    def lack(self) -> str:
        """Return in a sentence why the iteration is not done."""
        if self.problem:
            return self.problem
        failures = select_failed(self.checks)
        if failures:
            return f"failed its check: {join_names(failures)}"
        if self.unfinished:
            return "; ".join(f"{item.title}: {item.reason}" for item in self.unfinished)
        if self.review is not None and not self.review.approves:
            return f"the reviewer says no to {', '.join(self.review.objections)}"
        return "it was not reviewed"


class TeamResult(BaseModel):
    """The result of a team.

    final_output holds the answers of the workers of the last iteration that has any.
    """

    reason: str
    stopped_by: Literal["goal", "max_iterations", "budget", "cancelled", "failure"] | None = None
    goal_complete: bool = False
    success_criteria: list[str]
    iterations: list[TeamIteration] = []
    commit: str | None = None
    final_output: str = ""


def summarize_iterations(iterations: list[TeamIteration]) -> str:
    """Return the past iterations for the planner's prompt; empty if there are none."""
    if not iterations:
        return ""
    lines = []
    for iteration in iterations:
        lines += [f"- {outcome.description}" for outcome in iteration.outcomes]
    last = iterations[-1]
    if last.problem:
        lines += ["", f"The last iteration failed: {last.problem}"]
    for check in select_failed(last.checks):
        lines += ["", f"The check `{check.name}` fails:", fenced(check.output)]
    if last.review is not None and not last.review.approves:
        lines += ["", f"The reviewer says no to: {', '.join(last.review.objections)}."]
        lines.append(last.review.feedback)
    lines += ["", "The merged work is in your files. Plan only what is still missing."]
    return "\n".join(lines)
