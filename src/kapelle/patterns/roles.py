"""What the roles of teams, orchestrations and loops are told, and what they answer."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from kapelle.domain.task import CheckResult
from kapelle.domain.text import format_count
from kapelle.patterns.results import fenced
from kapelle.patterns.subgoals import WORKERS, Subgoal, SubgoalOutcome, in_order

OpenQuestions = Annotated[
    list[str], Field(description="what only a person can decide; better none", max_length=20)
]


class Intake(BaseModel):
    success_criteria: list[str] = Field(
        description="what must be true when the goal is reached, each checkable", max_length=20
    )
    questions: OpenQuestions = []


class Review(BaseModel):
    quality: bool = Field(description="is the work of good quality?")
    consistency: bool = Field(description="do its parts fit together and to what was there?")
    goal_aligned: bool = Field(description="does it serve the goal and nothing else?")
    goal_complete: bool = Field(description="is the goal reached, every criterion met?")
    feedback: str = Field("", description="what is to be done next, if anything")
    questions: OpenQuestions = []

    @property
    def objections(self) -> list[str]:
        names = ("quality", "consistency", "goal_aligned", "goal_complete")
        return [name.replace("_", " ") for name in names if not getattr(self, name)]

    @property
    def approves(self) -> bool:
        return not self.objections


class TeamIteration(BaseModel):
    number: int
    subgoals: list[Subgoal] = []
    outcomes: list[SubgoalOutcome] = []
    checks: list[CheckResult] = []
    review: Review | None = None
    problem: str | None = None
    commit: str | None = None

    def take_up(self, ordered: list[Subgoal], most: int) -> None:
        """Have these subgoals done, and no more than so many."""
        self.subgoals = ordered[:most]
        reason = f"left out, for a plan has at most {format_count(most, 'subgoal')}"
        self.outcomes = [SubgoalOutcome.of(one, "blocked", reason) for one in ordered[most:]]
        kept = {subgoal.id for subgoal in self.subgoals}
        for subgoal in self.subgoals:
            subgoal.depends_on = [other for other in subgoal.depends_on if other in kept]

    def add(self, outcome: SubgoalOutcome) -> None:
        """Outcomes are in the order of the plan, what it left out last."""
        places = {subgoal.id: place for place, subgoal in enumerate(self.subgoals)}
        self.outcomes.append(outcome)
        self.outcomes.sort(key=lambda item: places.get(item.id, len(places)))

    @property
    def verified(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def unfinished(self) -> list[SubgoalOutcome]:
        return [outcome for outcome in self.outcomes if outcome.status != "merged"]

    @property
    def said(self) -> str:
        """What the workers said whose work is done, each under its title if there are several."""
        done = [item for item in self.outcomes if item.status == "merged" and item.said]
        texts = [f"## {item.title}\n\n{item.said}" for item in done]
        if len(done) == 1:
            return done[0].said
        return "\n\n".join(texts)

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of it when it has ended."""
        found = self.review
        return {
            "phase": "done" if self.is_done else "not done",
            "merged": len(self.outcomes) - len(self.unfinished),
            "planned": len(self.outcomes),
            # The checks that passed prove nothing where there are none.
            "verified": bool(self.checks) and self.verified,
            "checks": {"of": len(self.checks), "passed": sum(one.passed for one in self.checks)},
            "review": found and {**found.model_dump(), "approves": found.approves},
            "lack": None if self.is_done else self.lack,
        }

    @property
    def is_done(self) -> bool:
        """The verify commands are a hard gate, and so are undone parts and the reviewer's yes."""
        if self.unfinished or not self.outcomes:
            return False
        return self.verified and self.review is not None and self.review.approves

    @property
    def lack(self) -> str:
        """What it was short of, in a sentence."""
        if self.problem:
            return self.problem
        failed = [check.name for check in self.checks if not check.passed]
        if failed:
            return f"failed its check: {', '.join(failed)}"
        if self.unfinished:
            return "; ".join(f"{item.title}: {item.reason}" for item in self.unfinished)
        if self.review is not None and not self.review.approves:
            return f"the reviewer says no to {', '.join(self.review.objections)}"
        return "it was not reviewed"


class TeamResult(BaseModel):
    reason: str
    stopped_by: Literal["goal", "max_iterations", "budget", "cancelled", "failure"] | None = None
    goal_complete: bool = False
    success_criteria: list[str]
    iterations: list[TeamIteration] = []
    commit: str | None = None
    final_output: str = ""  # what the workers of the last iteration that brought anything said


class Part(Subgoal):
    kind: Literal["task", "loop", "orchestrate"] = Field(
        "task", description="loop tries until its checks pass, orchestrate has a conductor below"
    )
    checks: list[str] = Field([], description="commands that must pass", max_length=20)


class Verdict(BaseModel):
    reached: bool = Field(description="is the goal reached, as a whole?")
    reason: str = Field(description="what you saw, and what is missing")


class PlannedPart(Part):
    """A part of the plan with what became of it."""

    status: Literal["open", "merged", "failed", "conflict", "blocked"] = "open"
    reason: str | None = None
    said: str = ""
    log: str = ""
    work: list[str] = Field(default=[])  # the tasks and runs that did it, the last one last

    @property
    def told(self) -> str:
        """How the conductor is told of it."""
        if self.depends_on:
            after = f" after {', '.join(self.depends_on)}"
        else:
            after = ""
        line = f"- {self.id} ({self.kind}{after}), {self.status}: {self.title}"
        if self.work:
            line += f" [{self.work[-1]}]"
        if self.status == "merged":
            if self.said:
                return f"{line}\n  said: {self.said}"
            return line
        if self.reason:
            reason = f"\n  {self.reason}"
        else:
            reason = ""
        return line + reason + (f"\n  the end of its log:\n{self.log}" if self.log else "")


class Turn(BaseModel):
    parts: list[Part] = Field([], description="new parts, and those to do again, by their ids")
    drop: list[str] = Field([], description="ids of parts that are not needed any more")
    done: bool = Field(False, description="whether the goal is reached")
    impossible: str = Field("", description="why the goal cannot be reached, if it cannot")
    questions: OpenQuestions = []

    def applied_to(self, plan: list[PlannedPart], most: int) -> tuple[list[PlannedPart], str]:
        """The plan as it is then, or as it was and what is wrong with the change."""
        left = {part.id: part for part in plan if part.id not in self.drop}
        for part in self.parts:
            before = left.get(part.id)
            if before is not None and before.status == "merged":
                return plan, f"{part.id} is merged already: what is to change is a new part"
            if before:
                told = before.model_dump(include={"work", "log", "reason"})
            else:
                told = {}
            left[part.id] = PlannedPart(**part.model_dump(), **told)
        if len(left) > most:
            return plan, f"a plan has at most {most} parts, and this would have {len(left)}"
        try:
            in_order([*left.values()])
        except ValueError as error:
            return plan, str(error)
        for one in left.values():
            if one.status == "blocked":
                one.status = "open"
            else:
                one.status = one.status
        return [*left.values()], ""


EVIDENCE = (
    "Without evidence of Playwright tests that pass for what is seen in a browser, the goal is not "
    "complete: say so in the feedback."
)
PROMPTS = {
    "intake": """\
You prepare the work of a team of coding agents in this directory. Say by which criteria one will \
see that the goal is reached. Look at the files if that helps; change nothing.""",
    "plan": """\
You plan the work of a team of coding agents in this directory. Divide the goal into subgoals, at \
most {max_subgoals}, as few as sensible. Each is done by one worker in a copy of the files of its \
own and then merged: subgoals that touch the same lines must depend on each other, others should \
not, so that they are worked on at once. Every subgoal changes files, unless an answer in words is \
all that is wanted (text_only). Look at the files yourself; change nothing.""",
    **WORKERS,
    "review": """\
You review the work of a team of coding agents in this directory. Judge by the files, not by what \
was said; change nothing. Say no where you doubt.""",
}
CONDUCTOR = {
    "conduct": """\
You conduct coding agents towards a goal. You do not do the work: what you change in files is \
thrown away. Each turn you are told the state, and answer with what is to change in the plan; \
then all parts that are open are done at once, each by an agent in a worktree of its own as soon \
as those that it depends on are merged, and you are called again. Give a part that failed a task \
that says what to do otherwise, and it is tried again with the end of its log. Where only repeated \
tries against a command will do, make it a loop with checks. If you have tools of Kapelle, \
task_logs and task_diff show more of what was done; hand out work by your answer alone. Say done \
when the goal is reached: it is then verified by others, not by you.""",
    "judge": """\
You judge whether a goal is reached by the work in this directory, which others did. Look at the \
files and try what can be tried; what is claimed counts for nothing.""",
}
JUDGE = """You judge work that others did in this directory. {wanted}
Look at the files yourself; change nothing.

## What was asked for
{task}

## How to judge
{criteria}

## What was changed so far
{changes}"""


def so_far(before: list[TeamIteration]) -> str:
    """What a planner is told of the iterations before; empty if there are none."""
    if not before:
        return ""
    last = before[-1]
    lines = [f"- {one.told}" for item in before for one in item.outcomes]
    if last.problem:
        lines += ["", f"What went wrong last: {last.problem}"]
    for check in last.checks:
        if not check.passed:
            lines += ["", f"The check `{check.name}` fails:", fenced(check.output)]
    if last.review is not None and not last.review.approves:
        lines += ["", f"The reviewer says no to: {', '.join(last.review.objections)}."]
        lines.append(last.review.feedback)
    return "\n".join([*lines, "", "It is in your files. Plan only what is still missing."])
