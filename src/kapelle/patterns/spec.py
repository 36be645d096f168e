"""What every pattern may be asked for; a pattern of one's own extends PatternSpec."""

from typing import Annotated, Any, Literal, NamedTuple, cast

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


def _of_runs(check: CheckSpec) -> CheckSpec:
    if check.kind is CheckKind.NO_ERROR_IN_OUTPUT:
        raise ValueError(
            f"{check.kind} looks at a single task's output: use a command or diff_not_empty"
        )
    return check


RunCheck = Annotated[CheckSpec, AfterValidator(_of_runs)]
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
    """One who tries; as a plain string, agent or agent:model."""

    agent: Name | None = field(None, "who tries; by default the run's agent")
    model: Name | None = field(None, "the model it uses")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            agent, colon, model = value.partition(":")
            if colon and not (agent.strip() and model.strip()):
                lacks = "model" if agent.strip() else "agent"
                raise ValueError(f"{value!r} lacks the {lacks}: write AGENT or AGENT:MODEL")
            return {"agent": agent or None, "model": model or None}
        return value


def refuse(*rules: tuple[object, str, tuple[str, ...]]) -> None:
    """Raise the first rule that is broken: a condition, what it means, and the fields in it."""
    for is_broken, message, names in rules:
        if is_broken:
            raise BrokenRule(message, *names)


class Role(NamedTuple):
    """An agent, None for the default one, and what it is to be given."""

    agent: str | None
    model: str | None
    system_prompt: str | None
    max_turns: int | None = None
    budget_usd: float | None = None
    tools: tuple[str, ...] = ()
    field: str = ""  # of the specification: the one that says so of its turns, money or tools


# What such a piece says of the task that does it.
OF_TASK = ("agent", "model", "directory", "priority", "timeout_s", "max_attempts")


class PartSpec(Spec):
    """One of several pieces of work; as a plain string, its prompt."""

    prompt: Prompt = Field(description="what is to be done")
    agent: Name | None = field(None, "who does it; by default the run's agent")
    model: Name | None = field(None, "its model")
    priority: Priority | None = field(None, "of its task in the queue")
    timeout_s: Seconds | None = field(None, "the longest that one attempt of its task may take")
    max_attempts: Turns = field(1, "how often its task is tried when it fails", le=100)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"prompt": value}
        return value

    @field_validator("prompt")
    @classmethod
    def _prompt_says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the prompt is empty")
        return value


class PatternSpec(WorkSpec):
    """What every pattern takes: where it works, who does the work, and how much it may use."""

    task_timeout_s: Seconds | None = field(
        None, "the longest that one attempt of a task may take", "--task-timeout", kind="duration"
    )
    max_seconds: Seconds | None = field(
        None,
        "the time limit of the whole run; pauses and waiting for a person do not count",
        kind="duration",
    )
    max_agent_calls: int | None = field(
        None, "how many attempts of agents it may make, in runs inside it too", ge=1, le=1_000_000
    )

    @property
    def subject(self) -> str:
        """What it is about: by default what its command takes as an argument."""
        value = getattr(self, argument_of(type(self)) or "", None)
        return value if isinstance(value, str) else ""

    @property
    def never_blocks(self) -> bool:
        """Whether a task that asks a person something is ended instead of waiting."""
        return False

    @property
    def delivers_unfinished(self) -> bool:
        """Whether `deliver: pr` makes a draft pull request of what a failed run left."""
        return False

    @property
    def needs_git(self) -> bool:
        """Whether it is of no use where tasks cannot have worktrees of their own."""
        return False

    @property
    def final_checks(self) -> list[CheckSpec]:
        """What must hold of the branch that it leaves."""
        values = [getattr(self, name) for name in type(self).model_fields]
        lists = [value for value in values if isinstance(value, list)]
        return [item for items in lists for item in items if isinstance(item, CheckSpec)]

    @property
    def roles(self) -> list[Role]:
        """Every agent that will be called as far as that is known."""
        return [self.role(None)] if self.agent else []

    @property
    def places(self) -> list[tuple[str, bool]]:
        """The directories of tasks besides its own, and whether each shares the run's workspace."""
        return []

    @property
    def inner_runs(self) -> list[tuple[str, dict[str, Any]]]:
        """The pattern and spec of each kind of run that it will start, as far as that is known."""
        return []

    def role(
        self, agent: str | None, model: str | None = None, system_prompt: str | None = None,
        **limits: Any,
    ) -> Role:  # fmt: skip
        """An agent with its model: one named for the run goes with the run's agent only."""
        model = model or (None if agent else self.model)
        return Role(agent or self.agent, model, system_prompt or self.system_prompt, **limits)


def argument_of(spec: type[PatternSpec]) -> str | None:
    """The field of a spec that is its command's argument."""
    extras = {name: about.json_schema_extra for name, about in spec.model_fields.items()}
    found = (name for name, extra in extras.items() if isinstance(extra, dict)
             and "argument" in cast("dict[str, Any]", extra.get(KEY, {})))  # fmt: skip
    return next(found, None)
