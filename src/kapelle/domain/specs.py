"""What a person or a program may ask for: the one schema behind REST, the CLI and the library."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from kapelle.domain.text import first_line

MAX_PROMPT_BYTES = 1_000_000


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=False)


class Priority(StrEnum):
    P0 = "P0"
    P1 = "P1"
    P2 = "P2"


class DepsPolicy(StrEnum):
    CANCEL = "cancel"
    RUN = "run"


class WorkspaceKind(StrEnum):
    WORKTREE = "worktree"
    IN_PLACE = "in_place"


class CheckKind(StrEnum):
    COMMAND = "command"
    DIFF_NOT_EMPTY = "diff_not_empty"
    NO_ERROR_IN_OUTPUT = "no_error_in_output"


Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")
]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
ServerName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)
]
Money = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Turns = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]


class CheckSpec(Spec):
    """One condition the work must meet; as a plain string, a built-in's name or a shell command."""

    kind: CheckKind = CheckKind.COMMAND
    command: Text | None = Field(default=None, max_length=100_000)
    name: Name | None = None
    timeout_s: Seconds = 600

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value in {CheckKind.DIFF_NOT_EMPTY, CheckKind.NO_ERROR_IN_OUTPUT}:
                return {"kind": value}
            return {"command": value}
        return value

    @model_validator(mode="after")
    def _command_where_needed(self) -> "CheckSpec":
        if (self.kind is CheckKind.COMMAND) != bool(self.command and self.command.strip()):
            raise ValueError("a command check needs a command, and a built-in check has none")
        return self

    @property
    def label(self) -> str:
        return self.name or (self.command or self.kind.value).strip().splitlines()[0][:200]


class McpServer(Spec):
    """A Model Context Protocol server that an agent may use: a command, or the address of one."""

    command: list[Text] = Field(default=[], max_length=1000)
    env: dict[EnvName, Text] = {}
    url: Text | None = Field(default=None, max_length=4000, pattern=r"^https?://")
    headers: dict[Name, Text] = {}

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> "McpServer":
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a command or a url")
        return self


class RetrySpec(Spec):
    """Whether and when a failed task is tried again by itself."""

    policy: Literal["none", "same", "analyze"] = "none"
    max_attempts: int = Field(default=3, ge=1, le=100)
    delay_s: Seconds = 10
    max_delay_s: Seconds = 600


class TaskSpec(Spec):
    """One piece of work for one agent."""

    prompt: Text = Field(min_length=1, max_length=MAX_PROMPT_BYTES)
    directory: Text = Field(min_length=1, max_length=4000)
    agent: Name | None = None
    model: Name | None = None
    title: Name | None = None
    project: Name | None = None
    priority: Priority = Priority.P1
    depends_on: list[str] = Field(default=[], max_length=1000)
    deps_policy: DepsPolicy = DepsPolicy.CANCEL
    continue_from: str | None = None
    fork_session: bool = False
    fallback_agents: list[Name] = Field(default=[], max_length=20)
    max_turns: Turns | None = None
    budget_usd: Money | None = None
    timeout_s: Seconds | None = None
    checks: list[CheckSpec] = Field(default=[], max_length=100)
    retry: RetrySpec = RetrySpec()
    env: dict[EnvName, Text] = {}
    workspace: WorkspaceKind | None = None
    base: Name | None = None
    system_prompt: Text | None = Field(default=None, max_length=MAX_PROMPT_BYTES)
    mcp: dict[ServerName, McpServer] = Field(default={}, max_length=50)
    tags: list[Name] = Field(default=[], max_length=100)
    context: dict[Name, Text] = {}

    @field_validator("prompt")
    @classmethod
    def _prompt_fits(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the prompt is empty")
        if len(value.encode("utf-8", "surrogatepass")) > MAX_PROMPT_BYTES:
            raise ValueError("the prompt is larger than 1 MB")
        return value

    @field_validator("directory")
    @classmethod
    def _directory_is_absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("the directory must be an absolute path")
        return value

    @model_validator(mode="after")
    def _a_session_to_fork(self) -> "TaskSpec":
        if self.fork_session and self.continue_from is None:
            raise ValueError("fork_session needs continue_from: the task whose session is forked")
        return self

    @property
    def display_title(self) -> str:
        return self.title or first_line(self.prompt) or "untitled"
