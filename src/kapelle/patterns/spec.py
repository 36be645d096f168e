"""Specifications of patterns: PatternSpec, which every pattern extends, and shared fields."""

from typing import Annotated, Any, Literal, NamedTuple, TypedDict, cast

from pydantic import AfterValidator, Field, field_validator, model_validator

from kapelle.domain.errors import BrokenRule
from kapelle.domain.options import KEY, option
from kapelle.domain.specs import (
    MAX_PROMPT_BYTES,
    CheckKind,
    CheckSpec,
    Name,
    Priority,
    Seconds,
    Spec,
    Text,
    Turns,
    WorkSpec,
    field,
)

Prompt = Annotated[Text, Field(min_length=1, max_length=MAX_PROMPT_BYTES)]
CommandText = Annotated[Text, Field(min_length=1, max_length=100_000)]


def _reject_output_check(check: CheckSpec) -> CheckSpec:
    if check.kind is CheckKind.NO_ERROR_IN_OUTPUT:
        raise ValueError(
            f"{check.kind} reads the output of a single task: use a command or diff_not_empty"
        )
    return check


RunCheck = Annotated[CheckSpec, AfterValidator(_reject_output_check)]
RunChecks = Annotated[list[RunCheck], Field(max_length=100, json_schema_extra=option(kind="check"))]
OptionalAgentName = Annotated[
    Name | None, Field(json_schema_extra=option(metavar="AGENT", complete="agents"))
]
ModelName = Annotated[
    Name | None, Field(json_schema_extra=option(metavar="NAME", complete="model"))
]
ScoreCommand = Annotated[CommandText | None, Field(json_schema_extra=option(metavar="COMMAND"))]
ScoreTimeout = Annotated[
    Seconds, Field(json_schema_extra=option("--eval-timeout", kind="duration"))
]
_BETTER = {
    "--minimize": ("minimize", "The smaller the number, the better."),
    "--maximize": ("maximize", "The larger the number, the better."),
}
Direction = Annotated[
    Literal["minimize", "maximize"] | None,
    Field(json_schema_extra=option(metavar="minimize|maximize", flags=_BETTER)),
]


class CandidateSpec(Spec):
    """An agent with its model; as a plain string, agent or agent:model."""

    agent: Name | None = field(None, "agent to use; by default the run's agent")
    model: Name | None = field(None, "model of the agent")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            agent, colon, model = value.partition(":")
            if colon and not (agent.strip() and model.strip()):
                missing = "model" if agent.strip() else "agent"
                raise ValueError(f"{value!r} lacks the {missing}: write AGENT or AGENT:MODEL")
            return {"agent": agent or None, "model": model or None}
        return value


def refuse(*rules: tuple[object, str, tuple[str, ...]]) -> None:
    """Raise BrokenRule for the first broken rule.

    A rule is a condition that must not hold, the error text, and the fields that it is about.
    """
    for is_broken, message, names in rules:
        if is_broken:
            raise BrokenRule(message, *names)


class Role(NamedTuple):
    """An agent, None for the default one, with its limits and tools.

    field names the field of the specification that sets the limits or the tools.
    """

    agent: str | None
    model: str | None
    system_prompt: str | None
    max_turns: int | None = None
    budget_usd: float | None = None
    tools: tuple[str, ...] = ()
    field: str = ""


class PartFields(TypedDict):
    """The fields of a PartSpec that its task takes over."""

    agent: str | None
    model: str | None
    priority: Priority | None
    timeout_s: float | None
    max_attempts: int


class PartSpec(Spec):
    """One of several pieces of work; as a plain string, its prompt."""

    prompt: Prompt = Field(description="prompt of the task")
    agent: Name | None = field(None, "agent to use; by default the run's agent")
    model: Name | None = field(None, "model of the agent")
    priority: Priority | None = field(None, "priority of the task in the queue")
    timeout_s: Seconds | None = field(None, "time limit per attempt of the task")
    max_attempts: Turns = field(1, "maximum number of attempts of the task", le=100)

    def task_fields(self) -> PartFields:
        """Return the fields that the task of this part takes over."""
        return {
            "agent": self.agent,
            "model": self.model,
            "priority": self.priority,
            "timeout_s": self.timeout_s,
            "max_attempts": self.max_attempts,
        }

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"prompt": value}
        return value

    @field_validator("prompt")
    @classmethod
    def _prompt_is_not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the prompt is empty")
        return value


class PatternSpec(WorkSpec):
    """Base of all specifications of patterns: workspace, agent and limits of a run."""

    task_timeout_s: Seconds | None = field(
        None, "time limit per attempt of a task", "--task-timeout", kind="duration"
    )
    max_seconds: Seconds | None = field(
        None,
        "time limit of the whole run; pauses and waiting for a person do not count",
        kind="duration",
    )
    max_agent_calls: int | None = field(
        None, "maximum number of agent calls, those of inner runs included", ge=1, le=1_000_000
    )

    @property
    def subject(self) -> str:
        """Return the subject of the run: by default the argument of the pattern's command."""
        value = getattr(self, argument_of(type(self)) or "", None)
        return value if isinstance(value, str) else ""

    @property
    def never_blocks(self) -> bool:
        """Tell whether a task that asks a person a question is ended instead of waiting."""
        return False

    @property
    def delivers_unfinished(self) -> bool:
        """Tell whether `deliver: pr` makes a draft pull request of the work of a failed run."""
        return False

    @property
    def needs_git(self) -> bool:
        """Tell whether the pattern is useless where tasks cannot have worktrees of their own."""
        return False

    @property
    def final_checks(self) -> list[CheckSpec]:
        """Return the checks that the branch of a completed run passes."""
        checks: list[CheckSpec] = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, list):
                checks += [item for item in value if isinstance(item, CheckSpec)]
        return checks

    @property
    def roles(self) -> list[Role]:
        """Return the agents that the run will call, as far as they are known."""
        return [self.role(None)] if self.agent else []

    @property
    def places(self) -> list[tuple[str, bool]]:
        """Return further directories of tasks, and whether each shares the run's workspace."""
        return []

    @property
    def inner_runs(self) -> list[tuple[str, dict[str, Any]]]:
        """Return pattern and spec of each kind of run that the run will start, if known."""
        return []

    def role(
        self,
        agent: str | None,
        model: str | None = None,
        system_prompt: str | None = None,
        **limits: Any,
    ) -> Role:
        """Return the role of an agent; the run's model applies to the run's agent only."""
        if model is None and agent is None:
            model = self.model
        return Role(agent or self.agent, model, system_prompt or self.system_prompt, **limits)


def argument_of(spec: type[PatternSpec]) -> str | None:
    """Return the name of the field that is the argument of the pattern's command."""
    for name, about in spec.model_fields.items():
        extra = about.json_schema_extra
        if isinstance(extra, dict) and "argument" in cast("dict[str, Any]", extra.get(KEY, {})):
            return name
    return None
