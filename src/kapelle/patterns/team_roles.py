"""What the roles of a team are told, and what they answer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from kapelle.domain.task import CheckResult
from kapelle.domain.text import first_line
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult

if TYPE_CHECKING:
    from kapelle.patterns.team import TeamSpec


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
    text_only: bool = False

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


_TAIL = 4_000
_ANSWER = 20_000
_IN_A_BROWSER = (
    "If your part is seen in a browser, write or extend Playwright tests for it, rather in the "
    "files that are there, and run them with `npx playwright test` before you are done."
)
_NO_EVIDENCE = (
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


def _told(ctx: Context, role: str, **parts: str) -> str:
    return ctx.prompt(role, PROMPTS[role], **parts)


def intake(ctx: Context, spec: "TeamSpec") -> str:
    return _text(
        f"{_told(ctx, 'intake')}\n{_asks(spec)}",
        f"## The goal\n{spec.goal}",
        _bullets("What is known of the criteria", spec.success_criteria),
    )


def plan(
    ctx: Context,
    spec: "TeamSpec",
    criteria: list[str],
    answers: dict[str, str],
    before: list[Iteration],
) -> str:
    return _text(
        _told(ctx, "plan", max_subgoals=str(spec.max_subgoals)),
        f"## The goal\n{spec.goal}",
        _bullets("It is reached when", criteria),
        _bullets("What was asked and answered", [f"{q} {a}" for q, a in answers.items()]),
        _so_far(before) if before else "",
        "Plan only what is still missing." if before else "",
    )


def work(ctx: Context, spec: "TeamSpec", subgoal: Subgoal, done: list[Outcome]) -> str:
    before = [f"{other.title}: {other.excerpt(500) or 'done'}" for other in done]
    return _text(
        subgoal.task,
        "Your answer is all that is wanted: change no files." if subgoal.text_only else "",
        f"## What this is part of\n{spec.goal}\n\n{_told(ctx, 'work')}",
        _IN_A_BROWSER if spec.playwright else "",
        _bullets("What was done before, and is in your files", before),
    )


def again(prompt: str, task: TaskResult, *, in_place: bool) -> str:
    begin = (
        "Part of its changes may be in your files: look at them first, keep what is right, go on"
        if in_place
        else "Its changes are not in your files: begin anew"
    )
    output = [f"`{check.name}`:\n{_fenced(check.output)}" for check in task.failed_checks]
    told = "\n".join([task.reason or task.status, *output])
    return (
        f"{prompt}\n\n## An earlier try was not accepted\n{told}\n"
        f"{begin}, and avoid what went wrong."
    )


def resolve(ctx: Context, subgoal: Subgoal, conflicts: list[str]) -> str:
    return _text(
        _told(ctx, "resolve"),
        _bullets("Files, from the top of the repository", conflicts),
        f"## What your work was\n{subgoal.task}",
    )


def review(
    ctx: Context, spec: "TeamSpec", criteria: list[str], iteration: Iteration, changes: str
) -> str:
    return _text(
        f"{_told(ctx, 'review')}\n{_asks(spec)}",
        _NO_EVIDENCE if spec.playwright else "",
        f"## The goal\n{spec.goal}",
        _bullets("It is reached when", criteria),
        _bullets("What was verified", [f"`{check.name}` passed" for check in iteration.checks]),
        _bullets("What the workers say", map(_outcome, iteration.outcomes)),
        f"## What was changed\n{_fenced(changes)}" if changes else "",
    )


def _so_far(before: list[Iteration]) -> str:
    done = [_outcome(outcome) for iteration in before for outcome in iteration.outcomes]
    lines = ["## What was done so far, and is in your files", *(f"- {item}" for item in done)]
    last = before[-1]
    if last.problem:
        lines += ["", f"What went wrong last: {last.problem}"]
    for check in last.checks:
        if not check.passed:
            lines += ["", f"The check `{check.name}` fails:", _fenced(check.output)]
    if last.review is not None and not last.review.approves:
        lines += ["", f"The reviewer says no to: {', '.join(last.review.objections)}."]
        lines.append(last.review.feedback)
    return "\n".join(lines)


def _asks(spec: "TeamSpec") -> str:
    if not spec.ask:
        return "Nobody can be asked: leave the questions empty and decide what is sensible."
    return (
        f"List at most {spec.max_questions} questions that only the person who gave the goal can "
        "answer and without which the work could go wrong; none is best."
    )


def _outcome(outcome: Outcome) -> str:
    said = f" It said: {outcome.excerpt(300)}" if outcome.said else ""
    reason = f" ({outcome.reason})" if outcome.reason else ""
    return f"{outcome.title}: {outcome.status}{reason}.{said}"


def _text(*sections: str) -> str:
    return "\n\n".join(section for section in sections if section)


def _bullets(heading: str, items: Iterable[str]) -> str:
    lines = [f"- {item}" for item in items]
    return "\n".join([f"## {heading}", *lines]) if lines else ""


def _fenced(output: str) -> str:
    return f"~~~\n{output[-_TAIL:]}\n~~~"
