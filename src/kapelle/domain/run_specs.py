"""What may be asked of the built-in patterns; a pattern of one's own extends PatternSpec."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kapelle.domain.specs import (
    MAX_PROMPT_BYTES,
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


class PatternSpec(Spec):
    """What every pattern takes: where it works, who does the work, and how much it may use."""

    directory: Text = Field(min_length=1, max_length=4000)
    title: Name | None = None
    project: Name | None = None
    agent: Name | None = None
    model: Name | None = None
    fallback_agents: list[Name] = Field([], max_length=20)
    priority: Priority = Priority.P1
    system_prompt: Text | None = Field(None, max_length=MAX_PROMPT_BYTES)
    env: dict[EnvName, Text] = Field({})
    workspace: WorkspaceKind | None = None
    base: Name | None = None
    task_timeout_s: Seconds | None = None
    max_seconds: Seconds | None = None
    max_agent_calls: int | None = Field(None, ge=1, le=1_000_000)
    budget_usd: Money | None = None

    @field_validator("directory")
    @classmethod
    def _directory_is_absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("the directory must be an absolute path")
        return value

    @property
    def subject(self) -> str:
        """What the run is about, from which a title is made."""
        return ""

    @property
    def display_title(self) -> str:
        if self.title:
            return self.title
        words = self.subject.strip().splitlines()
        line = re.sub(r"\s+", " ", words[0]) if words else ""
        line = "".join(letter for letter in line if letter.isprintable())
        return (line if len(line) <= 80 else line[:79] + "…") or "untitled"


class StepSpec(Spec):
    """One step of a pipeline; as a plain string, its prompt."""

    prompt: Prompt
    name: Name | None = None
    agent: Name | None = None
    model: Name | None = None
    directory: Text | None = Field(None, max_length=4000)
    priority: Priority | None = None
    system_prompt: Text | None = Field(None, max_length=MAX_PROMPT_BYTES)
    checks: list[CheckSpec] = Field([], max_length=100)
    timeout_s: Seconds | None = None
    max_attempts: int = Field(1, ge=1, le=100)

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

    steps: list[StepSpec] = Field(min_length=2, max_length=20)
    workspaces: Literal["shared", "each"] = "shared"

    @property
    def subject(self) -> str:
        return " → ".join(step.label for step in self.steps)


class LoopSpec(PatternSpec):
    """Again and again: until a condition holds, or to make a number better."""

    prompt: Prompt | None = None
    steps: list[StepSpec] = Field([], max_length=20)
    until: list[CheckSpec] = Field([], max_length=100)
    eval: Command | None = None
    direction: Literal["minimize", "maximize"] | None = None
    eval_mode: Literal["shell", "agent"] = "shell"
    eval_prompt: Prompt | None = None
    eval_schema: dict[str, Any] | None = None
    eval_timeout_s: Seconds = 600
    judge: Name | None = None
    judge_model: Name | None = None
    target: Score | None = None
    max_iterations: int = Field(10, ge=0, le=1_000_000)
    max_failures: int = Field(3, ge=0, le=1_000_000)
    cooldown_s: float = Field(0, ge=0, le=31_536_000, allow_inf_nan=False)
    checkpoint: bool = False
    convergence: int = Field(3, ge=0, le=1000)

    @property
    def subject(self) -> str:
        return self.prompt or " → ".join(step.label for step in self.steps)

    @property
    def optimises(self) -> bool:
        return self.direction is not None

    @model_validator(mode="after")
    def _is_complete(self) -> "LoopSpec":
        if (self.prompt is None) == (not self.steps):
            raise ValueError("a loop has either a prompt or steps")
        if self.eval_mode == "agent":
            if self.eval is not None:
                raise ValueError("with eval_mode agent there is no eval command; use eval_prompt")
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

    goal: Prompt
    success_criteria: list[Text] = Field([], max_length=100)
    verify: list[CheckSpec] = Field([], max_length=100)
    planner: Name | None = None
    worker: Name | None = None
    reviewer: Name | None = None
    planner_model: Name | None = None
    worker_model: Name | None = None
    reviewer_model: Name | None = None
    max_iterations: int = Field(4, ge=1, le=1000)
    max_workers: int = Field(4, ge=1, le=100)
    max_subgoals: int = Field(12, ge=1, le=100)
    max_task_retries: int = Field(1, ge=0, le=100)
    ask: bool = False

    @property
    def subject(self) -> str:
        return self.goal


class CandidateSpec(Spec):
    """One who tries; as a plain string, agent or agent:model."""

    agent: Name | None = None
    model: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            agent, _, model = value.partition(":")
            return {"agent": agent or None, "model": model or None}
        return value


class BestOfSpec(PatternSpec):
    """The same task to several at once; checks sort them out, a score or a judge picks one."""

    prompt: Prompt
    candidates: list[CandidateSpec] = Field([], max_length=20)
    count: int | None = Field(None, ge=2, le=20)
    checks: list[CheckSpec] = Field([], max_length=100)
    eval: Command | None = None
    direction: Literal["minimize", "maximize"] | None = None
    eval_timeout_s: Seconds = 600
    judge: Name | None = None
    judge_model: Name | None = None

    @property
    def subject(self) -> str:
        return self.prompt

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
