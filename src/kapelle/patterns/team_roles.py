"""What the roles of a team are told, and what they answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, model_validator

from kapelle.domain.task import CheckResult
from kapelle.domain.text import first_line
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult

_TAIL, _ANSWER = 4_000, 20_000
Status = Literal["merged", "failed", "blocked", "conflict"]

Questions = Annotated[
    list[str], Field(description="what only a person can decide; better none", max_length=20)
]


class Intake(BaseModel):
    success_criteria: list[str] = Field(
        description="what must be true when the goal is reached, each checkable", max_length=20
    )
    questions: Questions = []


class Subgoal(BaseModel):
    id: str = Field(description="a short name, unique in the plan", min_length=1, max_length=60)
    title: str = Field(description="one line", min_length=1, max_length=200)
    task: str = Field(description="all that a worker needs to know to do it", min_length=1)
    depends_on: list[str] = Field([], description="ids of subgoals that must be done before")
    text_only: bool = Field(
        False, description="true where the worker's answer is all that is wanted, and no file"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """A planner may tell a subgoal in short, by its task alone."""
        if not isinstance(value, str):
            return value
        return {"id": first_line(value, 60), "title": first_line(value, 200), "task": value}


S = TypeVar("S", bound=Subgoal)


class Plan(BaseModel):
    subgoals: list[Subgoal] = Field(min_length=1, max_length=100)

    def in_order(self) -> tuple[list[Subgoal], str | None]:
        """The subgoals with their dependencies before them, or what is wrong with the plan."""
        known = {subgoal.id for subgoal in self.subgoals}
        if len(known) < len(self.subgoals):
            return [], "two subgoals have the same id"
        for subgoal in self.subgoals:
            for other in subgoal.depends_on:
                if other not in known:
                    return [], f"{subgoal.id} depends on {other}, which is not in the plan"
        ordered: list[Subgoal] = []
        left = self.subgoals
        while left:
            done = {subgoal.id for subgoal in ordered}
            ready = [subgoal for subgoal in left if done.issuperset(subgoal.depends_on)]
            if not ready:
                names = ", ".join(subgoal.id for subgoal in left)
                return [], f"these subgoals depend on each other in a circle: {names}"
            ordered += ready
            left = [subgoal for subgoal in left if subgoal not in ready]
        return ordered, None


class Review(BaseModel):
    quality: bool = Field(description="is the work of good quality?")
    consistency: bool = Field(description="do its parts fit together and to what was there?")
    goal_aligned: bool = Field(description="does it serve the goal and nothing else?")
    goal_complete: bool = Field(description="is the goal reached, every criterion met?")
    feedback: str = Field("", description="what is to be done next, if anything")
    questions: Questions = []

    @property
    def objections(self) -> list[str]:
        names = ("quality", "consistency", "goal_aligned", "goal_complete")
        return [name.replace("_", " ") for name in names if not getattr(self, name)]

    @property
    def approves(self) -> bool:
        return not self.objections


class Outcome(BaseModel):
    """What became of a subgoal. Only merged work is done."""

    id: str
    title: str
    status: Status
    reason: str | None = None
    tasks: list[str] = []
    said: str = ""
    text_only: bool = False

    @classmethod
    def of(cls, subgoal: Subgoal, status: Status, reason: str | None = None) -> "Outcome":
        known = subgoal.model_dump(include={"id", "title", "text_only"})
        return cls(**known, status=status, reason=reason)

    @property
    def told(self) -> str:
        said = f" It said: {self.excerpt(300)}" if self.said else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.title}: {self.status}{reason}.{said}"

    def excerpt(self, length: int) -> str:
        """The end of what the worker said; where that is all it was to do, all of it."""
        return self.said[-_ANSWER if self.text_only else -length :]


class Iteration(BaseModel):
    number: int
    subgoals: list[Subgoal] = []
    outcomes: list[Outcome] = []
    checks: list[CheckResult] = []
    review: Review | None = None
    problem: str | None = None
    commit: str | None = None

    def add(self, outcome: Outcome) -> None:
        """Outcomes are in the order of the plan, what it left out last."""
        places = {subgoal.id: place for place, subgoal in enumerate(self.subgoals)}
        self.outcomes.append(outcome)
        self.outcomes.sort(key=lambda item: places.get(item.id, len(places)))

    @property
    def verified(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def unfinished(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status != "merged"]

    @property
    def said(self) -> str:
        """What the workers said whose work is done, each under its title if there are several."""
        done = [item for item in self.outcomes if item.status == "merged" and item.said]
        texts = [f"## {item.title}\n\n{item.said}" for item in done]
        return done[0].said if len(done) == 1 else "\n\n".join(texts)

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of it when it has ended."""
        found = self.review
        return {
            "phase": "done" if self.is_done else "not done",
            "merged": len(self.outcomes) - len(self.unfinished),
            "planned": len(self.outcomes),
            "verified": self.verified,
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
    iterations: list[Iteration] = []
    commit: str | None = None
    final_output: str = ""  # what the workers of the last iteration that brought anything said


IN_A_BROWSER = (
    "If your part is seen in a browser, write or extend Playwright tests for it, rather in the "
    "files that are there, and run them with `npx playwright test` before you are done."
)
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
    "work": """\
Others work on other parts: change only what your part needs. Leave everything in working \
order.""",
    "resolve": """\
Your work and that of others changed the same lines. Both are now in your files, with conflict \
markers (<<<<<<<, =======, >>>>>>>); the first side is yours. Resolve every conflict so that both \
purposes are served, remove the markers, and change nothing else.""",
    "review": """\
You review the work of a team of coding agents in this directory. Judge by the files, not by what \
was said; change nothing. Say no where you doubt.""",
}


def again(prompt: str, task: TaskResult, *, in_place: bool) -> str:
    """What a worker is told whose try before was not accepted."""
    begin = (
        "Part of its changes may be in your files: look at them first, keep what is right, go on"
        if in_place
        else "Its changes are not in your files: begin anew"
    )
    output = [f"`{check.name}`:\n{fenced(check.output)}" for check in task.failed_checks]
    told = "\n".join([task.reason or task.status, *output])
    return (
        f"{prompt}\n\n## An earlier try was not accepted\n{told}\n"
        f"{begin}, and avoid what went wrong."
    )


def so_far(before: list[Iteration]) -> str:
    """What a planner is told of the iterations before; empty if there are none."""
    if not before:
        return ""
    last, lines = before[-1], [f"- {one.told}" for item in before for one in item.outcomes]
    if last.problem:
        lines += ["", f"What went wrong last: {last.problem}"]
    for check in last.checks:
        if not check.passed:
            lines += ["", f"The check `{check.name}` fails:", fenced(check.output)]
    if last.review is not None and not last.review.approves:
        lines += ["", f"The reviewer says no to: {', '.join(last.review.objections)}."]
        lines.append(last.review.feedback)
    return "\n".join([*lines, "", "It is in your files. Plan only what is still missing."])


def fenced(output: str) -> str:
    return f"~~~\n{output[-_TAIL:]}\n~~~"


async def pursue(
    ctx: Context,
    subgoals: Sequence[S],
    places: int,
    may_begin: Callable[[S], bool],
    do: Callable[[S], Awaitable[None]],
) -> None:
    """Do subgoals at once, as many as there are places, each when those that it depends on have
    ended, and if it may begin then."""
    ended = {subgoal.id: asyncio.Event() for subgoal in subgoals}

    async def one(subgoal: S) -> None:
        try:
            for other in subgoal.depends_on:
                if other in ended:
                    await ended[other].wait()
            if may_begin(subgoal):
                # In place there are no copies of the files, so that only one may work at a time.
                async with ctx.lock("work", places if ctx.is_git else 1):
                    await do(subgoal)
        finally:
            ended[subgoal.id].set()

    await ctx.gather(*map(one, subgoals))
