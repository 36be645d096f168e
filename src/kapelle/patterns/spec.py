"""What every pattern may be asked for; a pattern of one's own extends PatternSpec."""

from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

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
from kapelle.domain.text import first_line

Prompt = Annotated[Text, Field(min_length=1, max_length=MAX_PROMPT_BYTES)]
Command = Annotated[Text, Field(min_length=1, max_length=100_000)]


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


class Role(NamedTuple):
    """An agent, None for the default one, and what it is to be given."""

    agent: str | None
    model: str | None
    system_prompt: str | None


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
        description="the longest that it may be under way; time paused, or waiting for an answer "
        "to its own question, is free",
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
    def never_blocks(self) -> bool:
        """Whether a task that asks a person something is ended instead of waiting."""
        return False

    @property
    def needs_git(self) -> bool:
        """Whether it is of no use where tasks cannot have worktrees of their own."""
        return False

    @property
    def cast(self) -> list[Role]:
        """Every agent that will be called as far as that is known."""
        return [self.role(None)] if self.agent else []

    def role(
        self, agent: str | None, model: str | None = None, system_prompt: str | None = None
    ) -> Role:
        """An agent with its model: one named for the run goes with the run's agent only."""
        model = model or (None if agent else self.model)
        return Role(agent or self.agent, model, system_prompt or self.system_prompt)

    @property
    def display_title(self) -> str:
        return self.title or first_line(self.subject)
