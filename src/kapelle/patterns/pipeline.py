"""Do steps in order: each continues from the step before it and knows its outcome."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.options import argument, command
from kapelle.domain.specs import MAX_PROMPT_BYTES, CheckSpec, Directory, Name, Text, field
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import PartSpec, PatternSpec, Role


class StepSpec(PartSpec):
    """One step of a pipeline; as a plain string, its prompt."""

    name: Name | None = field(None, "name of the step; by default the first line of its prompt")
    directory: Directory | None = field(
        None, "working directory; outside the repository only with workspaces each"
    )
    system_prompt: Text | None = field(
        None, "system prompt of the step", max_length=MAX_PROMPT_BYTES
    )
    checks: list[CheckSpec] = field([], "checks that the step must pass", max_length=100)

    @property
    def label(self) -> str:
        return self.name or self.prompt.strip().splitlines()[0][:80]


class PipelineSpec(PatternSpec):
    """Steps in order, each with the outcome of those before it."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have agents do steps in order, each with the outcome of the step before.",
            "The steps are the prompts, then those of --step, or those of a file.",
            file=("--file", "-F", "Read the steps from YAML or TOML; - is stdin."),
            examples=(
                'kapelle pipeline "design the API" --step "implement it" --step "test it"',
                "kapelle pipeline -F release.yaml --var version=1.2",
            ),
        )
    )

    steps: list[StepSpec] = Field(
        min_length=2,
        max_length=20,
        description="steps in order; each is a prompt or an object",
        json_schema_extra=argument(
            "PROMPT",
            help="Prompt of a step; - reads one from stdin.",
            more=("--step", "A further step; repeatable."),
        ),
    )
    workspaces: Literal["shared", "each"] = field(
        "shared", "one worktree for all steps, or one for each, made from the step before"
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
    """Have agents do steps in order, each with the outcome of the step before."""
    result = ctx.keep(PipelineResult(steps=[], reason=""))
    await play_steps(ctx, spec.steps, result.steps, own=spec.workspaces == "each")
    result.reason = f"all {len(spec.steps)} steps are done"
    return result


async def play_steps(
    ctx: Context,
    steps: list[StepSpec],
    outcomes: list[StepOutcome],
    *,
    own: bool = False,
    note: str = "",
    before: str | None = None,
) -> None:
    """Do steps in order and add each to outcomes when it has ended; raise Failed if one fails.

    With own, each step has its own worktree, which is merged at its end. note is added to every
    prompt. before is the id of a task that the first step continues from.
    """
    earlier = before
    for number, step in enumerate(steps, 1):
        await ctx.progress(step=number, steps=len(steps), doing=step.label)
        task = await ctx.task(
            step.prompt + note,
            title=f"{step.label} ({number}/{len(steps)})",
            role="step",
            **step.task_fields(),
            directory=step.directory,
            system_prompt=step.system_prompt,
            checks=step.checks,
            continue_from=earlier,
            workspace="own" if own else "run",
            afresh=own,
        )
        earlier = task.id
        outcomes.append(StepOutcome(name=step.label, task=task))
        if not task.ok:
            raise Failed(
                f"step {number} of {len(steps)} ({step.label}) {task.status}: {task.reason}"
            )
        if own and task.changed:
            # The next step begins with this work, which stays even if a later step fails.
            merge = await ctx.merge(task)
            if not merge.ok and not merge.elsewhere:
                reason = f"the work of step {number} could not be merged: {merge.problem}"
                raise Failed(reason)
