"""Subgoals: in which order they can be done, and workers who do them at once and merge them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, model_validator

from kapelle.domain.text import take_first_line
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult, fenced

if TYPE_CHECKING:
    from kapelle.patterns.roles import TeamIteration, TeamResult
    from kapelle.patterns.team import TeamSpec

_ANSWER = 20_000
SubgoalStatus = Literal["merged", "failed", "blocked", "conflict"]
_ANSWER_ALONE = "Your answer is all that is wanted: change no files."
_IN_A_BROWSER = (
    "If your part is seen in a browser, write or extend Playwright tests for it, rather in the "
    "files that are there, and run them with `npx playwright test` before you are done."
)
WORKERS = {
    "work": """\
Others work on other parts: change only what your part needs. Leave everything in working \
order.""",
    "resolve": """\
Your work and that of others changed the same lines. Both are now in your files, with conflict \
markers (<<<<<<<, =======, >>>>>>>); the first side is yours. Resolve every conflict so that both \
purposes are served, remove the markers, and change nothing else.""",
}


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
        return {
            "id": take_first_line(value, 60),
            "title": take_first_line(value, 200),
            "task": value,
        }


S = TypeVar("S", bound=Subgoal)
_CIRCLE = "these subgoals depend on each other in a circle: "


def in_order(subgoals: Sequence[S]) -> list[S]:
    """The plan with what it depends on before each; ValueError where that is in a circle."""
    known = {subgoal.id for subgoal in subgoals}
    if len(known) < len(subgoals):
        raise ValueError("two subgoals have the same id")
    for subgoal in subgoals:
        for other in subgoal.depends_on:
            if other not in known:
                raise ValueError(f"{subgoal.id} depends on {other}, which is not in the plan")
    ordered = list[S]()
    left = list(subgoals)
    while left:
        done = {one.id for one in ordered}
        ready = [one for one in left if done.issuperset(one.depends_on)]
        if not ready:
            raise ValueError(_CIRCLE + ", ".join(one.id for one in left))
        ordered += ready
        left = [one for one in left if one not in ready]
    return ordered


class Plan(BaseModel):
    subgoals: Annotated[list[Subgoal], AfterValidator(in_order)] = Field(
        min_length=1, max_length=100
    )


class SubgoalOutcome(BaseModel):
    """What became of a subgoal. Only merged work is done."""

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
        known = subgoal.model_dump(include={"id", "title", "text_only"})
        return cls(**known, status=status, reason=reason)

    @property
    def told(self) -> str:
        if self.said:
            said = f" It said: {self.excerpt(300)}"
        else:
            said = ""
        if self.reason:
            reason = f" ({self.reason})"
        else:
            reason = ""
        return f"{self.title}: {self.status}{reason}.{said}"

    def excerpt(self, length: int) -> str:
        """The end of what the worker said; where that is all it was to do, all of it."""
        return self.said[-_ANSWER if self.text_only else -length :]


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


@dataclass
class Workers:
    """Those who do the subgoals of one plan, each in files of its own, merged when it is done."""

    ctx: Context
    spec: "TeamSpec"
    result: "TeamResult"

    @property
    def now(self) -> "TeamIteration":
        return self.result.iterations[-1]

    def _before(self, subgoal: Subgoal) -> list[SubgoalOutcome]:
        return [outcome for outcome in self.now.outcomes if outcome.id in subgoal.depends_on]

    def may_begin(self, subgoal: Subgoal) -> bool:
        """Whether all that a subgoal depends on is merged; otherwise it is blocked."""
        before = self._before(subgoal)
        undone = [outcome.title for outcome in before if outcome.status != "merged"]
        if not undone and len(before) == len(set(subgoal.depends_on)):
            return True
        reason = f"it depends on what was not done: {', '.join(undone)}"
        self.now.add(SubgoalOutcome.of(subgoal, "blocked", reason))
        return False

    async def do(self, subgoal: Subgoal) -> None:
        outcome = SubgoalOutcome.of(subgoal, "failed")
        parts = self.ctx.prompt(
            "work",
            WORKERS["work"],
            what_this_is_part_of=self.spec.goal,
            what_is_wanted=_ANSWER_ALONE if subgoal.text_only else "",
            in_a_browser=_IN_A_BROWSER if self.spec.playwright else "",
            what_was_done_before_and_is_in_your_files=[
                f"{other.title}: {other.excerpt(500) or 'done'}" for other in self._before(subgoal)
            ],
        )
        asked = prompt = f"{subgoal.task}\n\n{parts}"
        for _ in range(1 + self.spec.max_task_retries):
            task = await self._ask(asked, subgoal)
            outcome.tasks.append(task.id)
            outcome.said = task.text
            outcome.reason = task.reason
            if task.ok:
                await self._merge(subgoal, task, outcome)
                break
            asked = _again(prompt, task, in_place=not self.ctx.is_git)
        self.now.add(outcome)

    async def _ask(
        self, prompt: str, subgoal: Subgoal, earlier: TaskResult | None = None
    ) -> TaskResult:
        # Whoever says it is done and has changed nothing is not done.
        return await self.ctx.task(
            prompt,
            title=f"{subgoal.title} (conflict)" if earlier else subgoal.title,
            role="work",
            cycle=self.now.number,
            agent=self.spec.worker,
            model=self.spec.worker_model,
            workspace="own",
            checks=["diff_not_empty"] if self.ctx.is_git and not subgoal.text_only else [],
            continue_from=earlier.id if earlier else None,
        )

    async def _merge(self, subgoal: Subgoal, task: TaskResult, outcome: SubgoalOutcome) -> None:
        if self.ctx.is_git and (task.changed or not subgoal.text_only):
            async with self.ctx.lock("merge"):
                merged = await self.ctx.merge(task)
                if merged.conflict:
                    outcome.status = "conflict"
                    resolved = await self._resolve(subgoal, task, outcome)
                    if resolved is None:
                        return
                    merged = await self.ctx.merge(resolved)
            if not merged.ok:
                if merged.conflict:
                    outcome.status = "conflict"
                else:
                    outcome.status = "failed"
                outcome.reason = merged.problem
                return
            self.result.commit = merged.commit
        outcome.status = "merged"
        outcome.reason = None

    async def _resolve(
        self, subgoal: Subgoal, task: TaskResult, outcome: SubgoalOutcome
    ) -> TaskResult | None:
        """Have both sides brought together; None, with the reason, if that did not come about."""
        conflicts = await self.ctx.take_in(task)
        files = {"files_from_the_top_of_the_repository": conflicts}
        told = WORKERS["resolve"]
        asked = self.ctx.prompt("resolve", told, **files, what_your_work_was=subgoal.task)
        resolved = await self._ask(asked, subgoal, task)
        outcome.tasks.append(resolved.id)
        if resolved.ok:
            left = await self.ctx.conflicted(resolved, conflicts)
        else:
            left = []
        await self.ctx.put_away(task)
        if resolved.ok and not left:
            return resolved
        why = f"conflict markers are left in {', '.join(left)}" if left else resolved.reason
        outcome.reason = f"its conflict with others' work was not resolved: {why}"
        return None


def _again(prompt: str, task: TaskResult, *, in_place: bool) -> str:
    """What a worker is told whose try before was not accepted."""
    if in_place:
        begin = (
            "Part of its changes may be in your files: look at them first, "
            "keep what is right, go on"
        )
    else:
        begin = "Its changes are not in your files: begin anew"
    output = [f"`{check.name}`:\n{fenced(check.output)}" for check in task.failed_checks]
    told = "\n".join([task.reason or task.status, *output])
    return (
        f"{prompt}\n\n## An earlier try was not accepted\n{told}\n"
        f"{begin}, and avoid what went wrong."
    )
