"""Steps one after another: each goes on where the one before it ended, and is told of it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.options import argument, command
from kapelle.domain.specs import MAX_PROMPT_BYTES, CheckSpec, Directory, Name, Text, field
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import OF_TASK, PartSpec, PatternSpec, Role


class StepSpec(PartSpec):
    """One step of a pipeline; as a plain string, its prompt."""

    name: Name | None = field(
        None, "what the step is called; by default the first line of its prompt"
    )
    directory: Directory | None = field(
        None, "where this step works; elsewhere than in the repository with workspaces each"
    )
    system_prompt: Text | None = field(
        None, "standing instructions for this step", max_length=MAX_PROMPT_BYTES
    )
    checks: list[CheckSpec] = field([], "what must pass for the step to be done", max_length=100)

    @property
    def label(self) -> str:
        return self.name or self.prompt.strip().splitlines()[0][:80]


class PipelineSpec(PatternSpec):
    """Steps one after another, each told what those before it did."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have agents do steps one after another, each told what the one before it did.",
            "The steps are the prompts, then those of --step, or those of a file.",
            file=("--file", "-F", "Read the steps from YAML or TOML; - is stdin."),
        )
    )

    steps: list[StepSpec] = Field(
        min_length=2,
        max_length=20,
        description="what is done, in order; each is a prompt or an object",
        json_schema_extra=argument(
            "PROMPT",
            help="What each step does; - reads one of them from stdin.",
            more=("--step", "A further step; repeatable."),
        ),
    )
    workspaces: Literal["shared", "each"] = field(
        "shared", "one worktree through all steps, or one each, from where the one before ended"
    )

    @property
    def subject(self) -> str:
        return " → ".join(step.label for step in self.steps)

    @property
    def roles(self) -> list[Role]:
        return [self.role(step.agent, step.model, step.system_prompt) for step in self.steps]

    @property
    def places(self) -> list[tuple[str, bool]]:
        shared = self.workspaces == "shared"
        return [(step.directory, shared) for step in self.steps if step.directory]

    @property
    def final_checks(self) -> list[CheckSpec]:
        return self.steps[-1].checks


class StepOutcome(BaseModel):
    name: str
    task: TaskResult


class PipelineResult(BaseModel):
    steps: list[StepOutcome]
    reason: str


@pattern("pipeline", spec=PipelineSpec)
async def pipeline(ctx: Context, spec: PipelineSpec) -> PipelineResult:
    """Steps one after another, each told what the one before it did."""
    result = ctx.keep(PipelineResult(steps=[], reason=""))
    await play_steps(ctx, spec.steps, result.steps, own=spec.workspaces == "each")
    result.reason = f"all {len(spec.steps)} steps are done"
    return result


async def play_steps(
    ctx: Context,
    steps: list[StepSpec],
    played: list[StepOutcome],
    *,
    own: bool = False,
    note: str = "",
    before: str | None = None,
) -> None:
    """Play steps in order, each of which joins played when it has ended; one that fails raises
    Failed.

    before is a task that the first step goes on from; note is added to every prompt.
    """
    for number, step in enumerate(steps, 1):
        await ctx.progress(step=number, steps=len(steps), doing=step.label)
        task = await ctx.task(
            step.prompt + note,
            title=f"{step.label} ({number}/{len(steps)})",
            role="step",
            **{name: getattr(step, name) for name in (*OF_TASK, "system_prompt", "checks")},
            continue_from=played[-1].task.id if played else before,
            workspace="own" if own else "run",
            afresh=own,
        )
        played.append(StepOutcome(name=step.label, task=task))
        if not task.ok:
            raise Failed(
                f"step {number} of {len(steps)} ({step.label}) {task.status}: {task.reason}"
            )
        if own and task.changed:
            # The next one begins with it, and what was done stays if a later one fails.
            merged = await ctx.merge(task)
            if not merged.ok and not merged.elsewhere:
                why = f"the work of step {number} could not be merged: {merged.problem}"
                raise Failed(why)
