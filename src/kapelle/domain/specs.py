"""Specifications of work: the one schema behind REST, the CLI, the client and the library."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self, Unpack

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kapelle.domain.errors import BrokenRule
from kapelle.domain.options import Argument, Option, argument, command, group, option
from kapelle.domain.text import take_first_line
from kapelle.domain.times import read_seconds

MAX_PROMPT_BYTES = 1_000_000


class FieldFacts(Option, total=False):
    """Keyword arguments of `field`: those of an option, and limits of the value."""

    ge: float
    le: float
    min_length: int
    max_length: int
    allow_inf_nan: bool


def field(default: Any, description: str, *names: str, **facts: Unpack[FieldFacts]) -> Any:
    """Return a pydantic field with a default.

    The names and those facts that belong to `Option` describe its option on the command line. The
    other facts are limits, which pydantic checks.
    """
    limits: dict[str, Any] = {**facts}
    metadata = {name: limits.pop(name) for name in Option.__annotations__ if name in limits}
    if names or metadata:
        limits["json_schema_extra"] = option(*names, **metadata)
    return Field(default, description=description, **limits)


def prompt_argument(
    name: str = "prompt", help: str = "What to do", **how: Unpack[Argument]
) -> dict[str, Any]:
    """Return the metadata of an argument that is a prompt, with an option that reads a file."""
    how["file"] = (f"--{name}-file", f"Read the {name} from a file, or - for stdin.")
    return argument(name.upper(), f"{help}; - reads it from stdin.", **how)


class Spec(BaseModel):
    """Input of a person or program: frozen, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


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
    CI = "ci"


_BUILT_IN = set(CheckKind) - {CheckKind.COMMAND}
_CI_TIMEOUT_S = 3600.0

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


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("the directory must be an absolute path")
    return value


Directory = Annotated[Text, Field(min_length=1, max_length=4000), AfterValidator(_absolute)]
# A repository in a filter: any directory in it, or the end of its path, for example its name.
RepositoryPath = Annotated[Text, Field(min_length=1, max_length=4000)]
# A number, or a duration with units such as 10m.
Seconds = Annotated[
    float, Field(gt=0, le=31_536_000, allow_inf_nan=False), BeforeValidator(read_seconds)
]
# How long a request may wait before the server answers with the present state.
WaitSeconds = Annotated[float, Field(ge=0, le=55, allow_inf_nan=False)]


# The delivery of completed work: leave it on its branch, merge it, or open a pull request.
Deliver = Literal["branch", "merge", "pr"]

# When Kapelle proves that a check looks at the work: it repeats the check in a copy in which the
# changed files hold nonsense, and the check must fail there.
Prove = Literal["never", "once", "always", "required"]


def _relative(value: str) -> str:
    if value.startswith("/"):
        raise ValueError("the directory of a check must be relative")
    return value


RelativeDirectory = Annotated[Text, Field(min_length=1, max_length=4000), AfterValidator(_relative)]


class CheckSpec(Spec):
    """One condition that the work must meet.

    A plain string is accepted too: the name of a built-in check, or a shell command.
    """

    kind: CheckKind = CheckKind.COMMAND
    command: Text | None = Field(default=None, max_length=100_000)
    directory: RelativeDirectory | None = Field(
        default=None,
        description="Directory in which the command runs, relative to the directory of the work. "
        "In a repository's configuration: relative to the directory that contains .kapelle.",
    )
    name: Name | None = None
    timeout_s: Seconds = 600
    prove: Prove | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value in _BUILT_IN:
                value = {"kind": value}
            else:
                value = {"command": value}
        if isinstance(value, dict) and value.get("kind") == CheckKind.CI:
            value = {"timeout_s": _CI_TIMEOUT_S, **value}
        if isinstance(value, dict) and isinstance(value.get("command"), str):
            # Compatibility: other conductors of agents write `custom_command:` before a command.
            value = {**value, "command": value["command"].removeprefix("custom_command:")}
        return value

    @model_validator(mode="after")
    def _command_where_needed(self) -> "CheckSpec":
        if (self.kind is CheckKind.COMMAND) != bool(self.command and self.command.strip()):
            raise ValueError("a command check needs a command; a built-in check takes none")
        if self.directory is not None and self.kind is not CheckKind.COMMAND:
            raise ValueError("only a command check takes a directory")
        return self

    @property
    def label(self) -> str:
        """Return the name of the check, or the first line of its command."""
        return self.name or (self.command or self.kind.value).strip().splitlines()[0][:200]


class McpServer(Spec):
    """A Model Context Protocol server for an agent: a command to start it, or its URL."""

    command: list[Text] = Field(default=[], max_length=1000)
    env: dict[EnvName, Text] = {}
    url: Text | None = Field(default=None, max_length=4000, pattern=r"^https?://")
    headers: dict[Name, Text] = {}

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> "McpServer":
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server needs either a command or a url")
        return self


class RetrySpec(Spec):
    """Automatic retries of a failed task."""

    policy: Literal["none", "same", "analyze"] = field(
        "none",
        "Retry policy: no retry, a retry with the same prompt, or a retry with an analysis of the "
        "failure.",
        "--retry",
    )
    max_attempts: int = field(3, "Maximum number of attempts.", ge=1, le=100)
    delay_s: float = field(
        10, "Delay before the second attempt; it doubles with every retry.", "--retry-delay",
        kind="duration", ge=0, le=31_536_000, allow_inf_nan=False,
    )  # fmt: skip
    max_delay_s: Seconds = field(
        600, "Maximum delay before a retry.", "--max-retry-delay", kind="duration"
    )


class Shell(Spec):
    """The shell environment of the client that submits work from the same machine."""

    variables: dict[EnvName, Text] = field(
        {}, "Variables for agents and commands.", max_length=1000
    )
    dropped: list[EnvName] = field(
        [], "Names of variables that are set there and were not sent.", max_length=1000
    )


class WorkSpec(Spec):
    """Fields of tasks and of all patterns: directory, agent, budget, workspace and delivery."""

    directory: Directory = Field(
        description="Directory of the work; default: the current directory.",
        json_schema_extra=option("-C", kind="directory"),
    )
    title: Name | None = field(
        None, "Short name for lists; default: the first line of the prompt.", metavar="TEXT"
    )
    project: Name | None = field(
        None, "Project that the work belongs to.", metavar="NAME", complete="project"
    )
    agent: Name | None = field(
        None,
        "Agent to use; auto selects the agent that calls Kapelle. Default: the setting "
        "default_agent.",
        "-a",
        metavar="NAME", kind="agent", complete="agents",
    )  # fmt: skip
    model: Name | None = field(None, "Model of the agent.", "-m", metavar="NAME", complete="model")
    template: Name | None = field(
        None, "Template with guidelines for the agent; it may also set the agent and the model.",
        metavar="NAME", complete="templates",
    )  # fmt: skip
    fallback_agents: list[Name] = field(
        [], "Agents that take over, in order, when an agent is rate-limited or unavailable.",
        "--fallback",
        metavar="AGENT", kind="names", complete="agents", max_length=20,
    )  # fmt: skip
    priority: Priority = field(
        Priority.P1, "Priority in the queue; P0 starts first, then P1, then P2.", "-p"
    )
    system_prompt: Text | None = field(
        None, "System prompt for the agent.", metavar="TEXT", max_length=MAX_PROMPT_BYTES
    )
    env: dict[EnvName, Text] = field(
        {}, "Environment variables for agents and commands; not stored in the database.",
        metavar="NAME[=VALUE]", kind="environment",
        help="Environment variable for the agent; NAME alone passes your own value.",
    )  # fmt: skip
    shell: Shell | None = field(
        None,
        "Environment of the client that submits the work; default: the daemon's own.",
        hidden=True,
    )
    workspace: WorkspaceKind | None = field(
        None,
        "Workspace: worktree (the default in a git repository) or in_place.",
        hidden=True,
        flags={
            "--worktree": ("worktree", "Work in a separate git worktree."),
            "--in-place": ("in_place", "Work in the directory itself."),
        },
    )
    base: Name | None = field(
        None,
        "Branch or commit that the worktree starts from; default: the current branch.",
        metavar="BRANCH",
    )
    budget_usd: Money | None = field(
        None, "Maximum cost in USD of all attempts together.", "--budget", kind="usd"
    )
    deliver: Deliver = field(
        "branch",
        "Delivery of completed work: leave it on its branch, merge it into its base, or push it "
        "and open a pull request.",
    )
    push: bool = field(
        False, "Push of the base to its upstream after the merge; only with deliver: merge.",
        help="Push the base to its upstream after the merge; only with --deliver merge.",
    )  # fmt: skip
    prove: Prove | None = field(
        None,
        "When Kapelle proves that a check looks at the work, by repeating a passed check in a copy "
        "whose changed files are garbled: never, once for each repository and command, always, or "
        "required, which fails work whose checks still pass. Default: the setting tasks.prove.",
        help="When to prove that checks look at the work; required fails work without a proof.",
    )

    @model_validator(mode="after")
    def _pushes_what_is_merged(self) -> Self:
        if self.push and self.deliver != "merge":
            raise BrokenRule("push needs a merge: use it with --deliver merge", path=("push",))
        return self

    @property
    def subject(self) -> str:
        """Return the text from which a title is made."""
        return ""

    @property
    def display_title(self) -> str:
        """Return the title, or the first line of the subject; it may be empty."""
        return self.title or take_first_line(self.subject)


class TaskSpec(WorkSpec):
    """One piece of work for one agent."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Give an agent a task and print the task's id.",
            examples=(
                'kapelle run "fix the failing test" --check "make test"',
                'kapelle run "review the last commit" --read-only -f',
            ),
        )
    )

    interactive: bool = field(
        False, "Interactive work in a terminal; the prompt may then be empty.", "-i",
        help="Work with the agent in a terminal: start the task and attach to it.",
    )  # fmt: skip
    prompt: Text = Field(
        max_length=MAX_PROMPT_BYTES,
        description="Task for the agent.",
        json_schema_extra=prompt_argument(),
    )
    depends_on: list[str] = field(
        [], "Tasks that must end before this task starts; several are separated by commas.",
        "--after", "--depends-on", "--deps", metavar="ID", kind="names", complete="tasks",
        max_length=1000,
    )  # fmt: skip
    deps_policy: DepsPolicy = field(
        DepsPolicy.CANCEL, "Effect of a failed dependency: cancel this task, or run it anyway."
    )
    continue_from: str | None = field(
        None, "Earlier task whose work is described to the agent.", metavar="ID", complete="tasks"
    )
    fork_session: bool = field(
        False, "Continuation in a copy of the conversation of the task in continue_from.", "--fork",
        help="Continue in a copy of the conversation of the task in --continue-from.",
    )  # fmt: skip
    max_turns: Turns | None = field(None, "Maximum number of turns per attempt.")
    tools: list[Name] = field(
        [], "The only tools of its own that the agent may use, by the agent's names; tools of MCP "
        "servers stay available.", "--tool", metavar="NAME", kind="list", max_length=100,
        help="A tool that the agent may use, by the agent's name; all others are disabled.",
    )  # fmt: skip
    read_only: bool = field(
        False,
        "Read-only work: the agent gets no tools that write, where the agent supports that, and "
        "Kapelle discards everything that it changes, commits or deletes.",
    )
    timeout_s: Seconds | None = field(
        None, "Maximum duration of an attempt: 90, 90s, 10m or 2h.", "--timeout", kind="duration"
    )
    checks: list[CheckSpec] = field(
        [], "Checks that must pass: a command, diff_not_empty, no_error_in_output or ci.",
        "--check", kind="check", timeout=("--check-timeout", "Maximum duration of a check."),
        max_length=100,
    )  # fmt: skip
    retry: RetrySpec = Field(default=RetrySpec(), json_schema_extra=group({"policy": "same"}))
    mcp: dict[ServerName, McpServer] = field(
        {}, "MCP servers for the agent, each as a command or an https URL.",
        metavar="NAME=COMMAND", kind="servers", max_length=50,
        help="MCP server for the agent, as a command or an https URL.",
    )  # fmt: skip
    coordinate: bool = field(
        False, "Kapelle's own tools for the agent, so that it can delegate work to other agents."
    )
    browser: bool = field(
        False, "A browser for the agent, with the application that browser.serve starts."
    )
    tags: list[Name] = field(
        [], "Tags for lists.", "--tag", metavar="NAME", kind="names", max_length=100,
        help="Tag for lists.",
    )  # fmt: skip
    context: dict[Name, Text] = field(
        {}, "Facts for the agent.", metavar="KEY=VALUE", max_length=1000,
        help="Fact for the agent.",
    )  # fmt: skip

    @field_validator("prompt")
    @classmethod
    def _prompt_fits(cls, value: str, info: ValidationInfo) -> str:
        if not value.strip() and not info.data.get("interactive"):
            raise ValueError("the prompt is empty")
        if len(value.encode("utf-8", "surrogatepass")) > MAX_PROMPT_BYTES:
            raise ValueError("the prompt is larger than 1 MB")
        return value

    @model_validator(mode="after")
    def _a_session_to_fork(self) -> "TaskSpec":
        if self.fork_session and self.continue_from is None:
            raise BrokenRule(
                "`fork_session` needs `continue_from`: the task whose session is forked",
                "fork_session",
                "continue_from",
            )
        return self

    @property
    def subject(self) -> str:
        return self.prompt

    @property
    def display_title(self) -> str:
        return super().display_title or ("terminal" if self.interactive else "untitled")


class PullRequestSpec(Spec):
    """How to open or update the pull request of a task or run."""

    draft: bool | None = field(
        None,
        "true: a draft, the only possibility for failed work; false: ready for review. Default: an "
        "open pull request keeps its state, and a new one is ready for review.",
    )
    force: bool = field(False, "Delivery even if the work contains a secret known to Kapelle.")


class UndoSpec(Spec):
    """How to undo the merge of a task or run."""

    message: Annotated[Text | None, Field(min_length=1, max_length=100_000)] = None


class MergeSpec(Spec):
    """How to merge the work of a task or run into a branch, by default its base."""

    into: Name | None = None
    force: bool = field(False, "Merge even if the work is incomplete or unverified.")
    verify: bool = field(True, "Run the checks on the merged result if the base has moved.")
    style: Literal["merge", "squash", "rebase"] = field(
        "merge",
        "Merge style: a merge commit, one squashed commit, or the commits rebased onto the base.",
    )
    message: Annotated[Text | None, Field(min_length=1, max_length=100_000)] = None

    @model_validator(mode="after")
    def _has_a_commit(self) -> Self:
        if self.message is not None and self.style == "rebase":
            raise ValueError("a rebase keeps the commit messages: leave message out")
        return self
