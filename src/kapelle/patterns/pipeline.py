"""Steps one after another: each goes on where the one before it ended, and is told of it."""

from pydantic import BaseModel

from kapelle.domain.errors import LimitReached
from kapelle.domain.run_specs import PipelineSpec, StepSpec
from kapelle.patterns.context import Context
from kapelle.patterns.interruption import Interrupted
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult


class StepOutcome(BaseModel):
    name: str
    task: TaskResult


class PipelineResult(BaseModel):
    steps: list[StepOutcome]
    reason: str


@pattern("pipeline", spec=PipelineSpec)
async def pipeline(ctx: Context, spec: PipelineSpec) -> PipelineResult:
    """Steps one after another, each told what the one before it did."""
    played: list[StepOutcome] = []
    try:
        await play_steps(ctx, spec.steps, own=spec.workspaces == "each", played=played)
    except LimitReached as error:
        raise Failed(error.message, PipelineResult(steps=played, reason=error.message)) from None
    except Interrupted as stop:
        stop.result = PipelineResult(steps=played, reason="cancelled")
        raise
    return PipelineResult(steps=played, reason=f"all {len(spec.steps)} steps are done")


async def play_steps(
    ctx: Context,
    steps: list[StepSpec],
    *,
    own: bool = False,
    note: str = "",
    before: str | None = None,
    played: list[StepOutcome] | None = None,
) -> list[StepOutcome]:
    """Play steps in order; raises Failed with those that were played when one fails.

    before is a task that the first step goes on from; note is added to every prompt. Each step
    joins played as soon as it has ended, whatever ends the rest.
    """
    played = [] if played is None else played
    for number, step in enumerate(steps, 1):
        await ctx.progress(step=number, steps=len(steps), doing=step.label)
        task = await ctx.task(
            step.prompt + note,
            title=f"{step.label} ({number}/{len(steps)})",
            agent=step.agent,
            model=step.model,
            directory=step.directory,
            priority=step.priority,
            system_prompt=step.system_prompt,
            checks=step.checks,
            timeout_s=step.timeout_s,
            max_attempts=step.max_attempts,
            continue_from=played[-1].task.id if played else before,
            workspace="own" if own else "run",
            afresh=own,
        )
        played.append(StepOutcome(name=step.label, task=task))
        if task.ok and own and task.changed:
            # The next one begins with it, and what was done stays if a later one fails.
            merged = await ctx.merge(task)
            if not merged.ok and not merged.elsewhere:
                why = f"the work of step {number} could not be merged: {merged.problem}"
                raise Failed(why, PipelineResult(steps=played, reason=why))
        if not task.ok:
            why = f"step {number} of {len(steps)} ({step.label}) {task.status}: {task.reason}"
            raise Failed(why, PipelineResult(steps=played, reason=why))
    return played
