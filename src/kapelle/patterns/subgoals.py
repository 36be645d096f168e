"""Subgoals with dependencies: their order, and working on them concurrently."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, model_validator

from kapelle.domain.text import take_first_line
from kapelle.patterns.context import Context

OpenQuestions = Annotated[
    list[str], Field(description="what only a person can decide; better none", max_length=20)
]


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
        """Accept the task alone: planners often answer with a list of sentences."""
        if not isinstance(value, str):
            return value
        return {
            "id": take_first_line(value, 60),
            "title": take_first_line(value, 200),
            "task": value,
        }


S = TypeVar("S", bound=Subgoal)


def sort_by_dependency(subgoals: Sequence[S]) -> list[S]:
    """Return the subgoals with each behind those that it depends on.

    Raise ValueError if an id is used twice or is unknown, or if dependencies form a circle.
    """
    ids = {subgoal.id for subgoal in subgoals}
    if len(ids) < len(subgoals):
        raise ValueError("two subgoals have the same id")
    for subgoal in subgoals:
        for other in subgoal.depends_on:
            if other not in ids:
                raise ValueError(f"{subgoal.id} depends on {other}, which is not in the plan")
    result = list[S]()
    remaining = list(subgoals)
    while remaining:
        done = {subgoal.id for subgoal in result}
        ready = [subgoal for subgoal in remaining if done.issuperset(subgoal.depends_on)]
        if not ready:
            circle = ", ".join(subgoal.id for subgoal in remaining)
            raise ValueError(f"these subgoals depend on each other in a circle: {circle}")
        result += ready
        remaining = [subgoal for subgoal in remaining if subgoal not in ready]
    return result


async def pursue_subgoals(
    ctx: Context,
    subgoals: Sequence[S],
    places: int,
    may_begin: Callable[[S], bool],
    work: Callable[[S], Awaitable[None]],
) -> None:
    """Work on subgoals concurrently, at most so many at a time.

    A subgoal begins when those that it depends on have ended, and only if may_begin allows it
    then.
    """
    ends = {subgoal.id: asyncio.Event() for subgoal in subgoals}

    async def pursue(subgoal: S) -> None:
        try:
            for other in subgoal.depends_on:
                if other in ends:
                    await ends[other].wait()
            if may_begin(subgoal):
                # In place there are no copies of the files, so only one subgoal may be worked on.
                async with ctx.lock("work", places if ctx.is_git else 1):
                    await work(subgoal)
        finally:
            ends[subgoal.id].set()

    await ctx.gather(*map(pursue, subgoals))
