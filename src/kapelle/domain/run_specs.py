"""What may be asked of the built-in patterns; a pattern of one's own extends PatternSpec."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from kapelle.domain.model_json import check_schema
from kapelle.domain.specs import (
    MAX_PROMPT_BYTES,
    CheckKind,
    CheckSpec,
    EnvName,
    Money,
    Name,
    Priority,
    Seconds,
    Spec,
    Text,
    WorkspaceKind,
)

Prompt = Annotated[Text, Field(min_length=1, max_length=MAX_PROMPT_BYTES)]
Command = Annotated[Text, Field(min_length=1, max_length=100_000)]
Score = Annotated[float, Field(allow_inf_nan=False)]


def _absolute(value: str | None) -> str | None:
    if value is not None and not value.startswith("/"):
        raise ValueError("the directory must be an absolute path")
    return value


def _of_runs(check: CheckSpec) -> CheckSpec:
    if check.kind is CheckKind.NO_ERROR_IN_OUTPUT:
        raise ValueError(f"{check.kind} looks at an agent's output, and here there is none")
    return check


Directory = Annotated[Text, Field(min_length=1, max_length=4000), AfterValidator(_absolute)]
RunCheck = Annotated[CheckSpec, AfterValidator(_of_runs)]


class PatternSpec(Spec):
    """What every pattern takes: where it works, who does the work, and how much it may use."""

    directory: Directory = Field(description="where the work is; an absolute path")
    title: Name | None = Field(
        default=None, description="a short name for lists; by default made of what is asked for"
    )
    project: Name | None = Field(
        default=None, description="the project that the run and its tasks belong to"
    )
    agent: Name | None = Field(
        default=None, description="who does the work; by default the configured agent"
    )
    model: Name | None = Field(default=None, description="the agent's model")
    fallback_agents: list[Name] = Field(
        default=[],
        max_length=20,
        description="who takes over, in order, from an agent that is limited or unavailable",
    )
    priority: Priority = Field(
        Priority.P1, description="of the run's tasks in the queue: P0 before P1 before P2"
    )
    system_prompt: Text | None = Field(
        default=None,
        max_length=MAX_PROMPT_BYTES,
        description="standing instructions for every task",
    )
    env: dict[EnvName, Text] = Field(
        default={},
        description="variables for agents and commands, which are kept out of the database",
    )
    workspace: WorkspaceKind | None = Field(
        default=None,
        description="worktree, the default in a git repository, or in_place",
    )
    base: Name | None = Field(
        default=None,
        description="what the worktree starts from; by default the branch that is checked out",
    )
    task_timeout_s: Seconds | None = Field(
        default=None, description="the longest that one attempt of a task may take"
    )
    max_seconds: Seconds | None = Field(
        default=None,
        description="the longest that it may be under way; paused and waiting time is free",
    )
    max_agent_calls: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="how many attempts of agents it may make, in runs inside it too",
    )
    budget_usd: Money | None = Field(
        default=None, description="what all its tasks together may cost"
    )

    @property
    def subject(self) -> str:
        """What the run is about, from which a title is made."""
        return ""

    @property
    def agents(self) -> list[str | None]:
        """Every agent that will surely be called, None for the default one."""
        return [self.agent] if self.agent else []

    @property
    def display_title(self) -> str:
        if self.title:
            return self.title
        words = self.subject.strip().splitlines()
        line = re.sub(r"\s+", " ", words[0]) if words else ""
        line = "".join(letter for letter in line if letter.isprintable())
        return line if len(line) <= 80 else line[:79] + "…"


class StepSpec(Spec):
    """One step of a pipeline; as a plain string, its prompt."""

    prompt: Prompt = Field(description="what is to be done")
    name: Name | None = Field(
        default=None,
        description="what the step is called; by default the first line of its prompt",
    )
    agent: Name | None = Field(
        default=None, description="who does this step; by default the run's agent"
    )
    model: Name | None = Field(default=None, description="the model of this step")
    directory: Directory | None = Field(
        default=None,
        description="where this step works; elsewhere than in the repository with workspaces each",
    )
    priority: Priority | None = Field(default=None, description="of this step's task in the queue")
    system_prompt: Text | None = Field(
        default=None, max_length=MAX_PROMPT_BYTES, description="standing instructions for this step"
    )
    checks: list[CheckSpec] = Field(
        default=[], max_length=100, description="what must pass for the step to be done"
    )
    timeout_s: Seconds | None = Field(
        default=None, description="the longest that one attempt of this step may take"
    )
    max_attempts: int = Field(
        default=1, ge=1, le=100, description="how often it is tried when it fails"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"prompt": value} if isinstance(value, str) else value

    @field_validator("prompt")
    @classmethod
    def _prompt_says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the prompt is empty")
        return value

    @property
    def label(self) -> str:
        return self.name or self.prompt.strip().splitlines()[0][:80]


class PipelineSpec(PatternSpec):
    """Steps one after another, each told what those before it did."""

    steps: list[StepSpec] = Field(
        min_length=2,
        max_length=20,
        description="what is done, in order; each is a prompt or an object",
    )
    workspaces: Literal["shared", "each"] = Field(
        default="shared",
        description="one worktree through all steps, or one each, from where the one before ended",
    )

    @property
    def subject(self) -> str:
        return " → ".join(step.label for step in self.steps)

    @property
    def agents(self) -> list[str | None]:
        return [step.agent or self.agent for step in self.steps]


class LoopSpec(PatternSpec):
    """Again and again: until a condition holds, or to make a number better."""

    prompt: Prompt | None = Field(default=None, description="what every iteration is asked to do")
    steps: list[StepSpec] = Field(
        default=[],
        max_length=20,
        description="instead of a prompt: the steps of every iteration, as in a pipeline",
    )
    until: list[RunCheck] = Field(
        default=[],
        max_length=100,
        description="commands, or diff_not_empty, that must all pass for the loop to be done",
    )
    eval: Command | None = Field(
        default=None, description="a command whose last line is the number to make better"
    )
    direction: Literal["minimize", "maximize"] | None = Field(
        default=None,
        description="whether the number is to become smaller or larger; with it the loop optimises",
    )
    eval_mode: Literal["shell", "agent"] = Field(
        default="shell", description="who decides: commands (shell) or a judging agent (agent)"
    )
    eval_prompt: Prompt | None = Field(default=None, description="how the judge is to judge")
    eval_schema: dict[str, Any] | None = Field(
        default=None,
        description="a JSON schema for the judge's answer, with done or score in it",
    )
    eval_timeout_s: Seconds = Field(
        default=600, description="the longest that a command of until, or eval, may take"
    )
    judge: Name | None = Field(
        default=None, description="the agent that judges; by default the one that works"
    )
    judge_model: Name | None = Field(default=None, description="the judge's model")
    target: Score | None = Field(
        default=None,
        description="the number that is good enough: done when it is reached, else failed",
    )
    max_iterations: int = Field(
        default=10, ge=0, le=1_000_000, description="the most iterations; 0 for any number"
    )
    max_failures: int = Field(
        default=3,
        ge=0,
        le=1_000_000,
        description="how many iterations in a row may fail; 0 for any number",
    )
    cooldown_s: float = Field(
        default=0,
        ge=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="how long to wait between iterations",
    )
    checkpoint: bool = Field(
        default=False,
        description="carry the conversation on from one iteration to the next",
    )
    convergence: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="end after so many without a change, or with the same number; 0 for never",
    )

    @property
    def subject(self) -> str:
        return self.prompt or " → ".join(step.label for step in self.steps)

    @property
    def agents(self) -> list[str | None]:
        judges = [self.judge or self.agent] if self.eval_mode == "agent" else []
        workers = [step.agent or self.agent for step in self.steps] or [self.agent]
        return [*workers, *judges]

    @property
    def optimises(self) -> bool:
        return self.direction is not None

    @field_validator("eval_schema")
    @classmethod
    def _schema_is_usable(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            check_schema(value)
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> "LoopSpec":
        if (self.prompt is None) == (not self.steps):
            raise ValueError("a loop has either a prompt or steps")
        if self.eval_mode == "agent":
            if self.eval is not None or self.until:
                raise ValueError(
                    "with eval_mode agent a judge decides: there is neither until nor eval"
                )
        elif self.eval_prompt or self.judge or self.eval_schema:
            raise ValueError("eval_prompt, eval_schema and judge need eval_mode agent")
        if self.optimises:
            if self.until:
                raise ValueError("until and direction exclude each other: retry or optimise")
            if self.eval is None and self.eval_mode == "shell":
                raise ValueError("to optimise, eval must be a command that prints a number")
        else:
            if self.eval is not None or self.target is not None:
                raise ValueError("eval and target need a direction: minimize or maximize")
            if not self.until and self.eval_mode == "shell":
                raise ValueError("a loop needs a condition: until, or eval with a direction")
        return self


class TeamSpec(PatternSpec):
    """A goal: planned, worked on by several at once, verified and reviewed, again until done."""

    goal: Prompt = Field(description="what is to be reached")
    success_criteria: list[Text] = Field(
        default=[],
        max_length=100,
        description="what must be true then; where nothing is given, the planner proposes it",
    )
    verify: list[RunCheck] = Field(
        default=[], max_length=100, description="commands that must pass before a reviewer is asked"
    )
    planner: Name | None = Field(
        default=None, description="the agent that plans; by default the run's agent"
    )
    worker: Name | None = Field(default=None, description="the agent of the workers")
    reviewer: Name | None = Field(default=None, description="the agent that reviews")
    planner_model: Name | None = Field(default=None, description="the planner's model")
    worker_model: Name | None = Field(default=None, description="the workers' model")
    reviewer_model: Name | None = Field(default=None, description="the reviewer's model")
    max_iterations: int = Field(
        default=4, ge=1, le=1000, description="how often it may plan, work and review"
    )
    max_workers: int = Field(
        default=4, ge=1, le=100, description="how many subgoals are worked on at the same time"
    )
    max_subgoals: int = Field(
        default=12,
        ge=1,
        le=100,
        description="the most subgoals of one plan; further ones are left out",
    )
    max_task_retries: int = Field(
        default=1, ge=0, le=100, description="how often a worker that failed is asked again"
    )
    ask: bool = Field(
        default=False,
        description="let the planner ask a person up to four questions before it begins",
    )

    @property
    def subject(self) -> str:
        return self.goal

    @property
    def agents(self) -> list[str | None]:
        return [role or self.agent for role in (self.planner, self.worker, self.reviewer)]


class CandidateSpec(Spec):
    """One who tries; as a plain string, agent or agent:model."""

    agent: Name | None = Field(default=None, description="who tries; by default the run's agent")
    model: Name | None = Field(default=None, description="the model it uses")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            agent, _, model = value.partition(":")
            return {"agent": agent or None, "model": model or None}
        return value


class BestOfSpec(PatternSpec):
    """The same task to several at once; checks sort them out, a score or a judge picks one."""

    prompt: Prompt = Field(description="the task that all get")
    candidates: list[CandidateSpec] = Field(
        default=[], max_length=20, description="who takes part: agent, agent:model, or an object"
    )
    count: int | None = Field(
        default=None,
        ge=2,
        le=20,
        description="so many tries of the one candidate or the run's agent; 2 when none is named",
    )
    checks: list[CheckSpec] = Field(
        default=[], max_length=100, description="what must pass for a candidate to be chosen"
    )
    eval: Command | None = Field(
        default=None, description="a command whose last line is a candidate's score"
    )
    direction: Literal["minimize", "maximize"] | None = Field(
        default=None, description="whether the smaller or the larger score wins"
    )
    eval_timeout_s: Seconds = Field(default=600, description="the longest that eval may take")
    judge: Name | None = Field(
        default=None,
        description="the agent that chooses where there is no eval; by default the run's agent",
    )
    judge_model: Name | None = Field(default=None, description="the judge's model")

    @property
    def subject(self) -> str:
        return self.prompt

    @property
    def agents(self) -> list[str | None]:
        judges = [self.judge] if self.judge else []
        return [*(entrant.agent or self.agent for entrant in self.entrants), *judges]

    @property
    def entrants(self) -> list[CandidateSpec]:
        """All who take part, in order."""
        if len(self.candidates) > 1:
            return self.candidates
        return (self.candidates or [CandidateSpec()]) * (self.count or 2)

    @model_validator(mode="after")
    def _is_complete(self) -> "BestOfSpec":
        if len(self.candidates) > 1 and self.count is not None:
            raise ValueError("count goes with one candidate or none")
        if len(self.candidates) == 1 and self.count is None:
            raise ValueError("one candidate alone is no choice: name more, or a count")
        if (self.eval is None) != (self.direction is None):
            raise ValueError("eval and direction go together")
        if self.eval is not None and self.judge is not None:
            raise ValueError("either a score or a judge decides")
        return self
