"""What a person or a program may ask for: the one schema behind REST, the CLI and the library."""

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
    ge: float
    le: float
    min_length: int
    max_length: int
    allow_inf_nan: bool


def field(default: Any, description: str, *names: str, **facts: Unpack[FieldFacts]) -> Any:
    """A field that may be left out: its default, what it is, how it is an option, its limits."""
    given: dict[str, Any] = {**facts}
    how = {name: given.pop(name) for name in Option.__annotations__ if name in given}
    if names or how:
        given["json_schema_extra"] = option(*names, **how)
    return Field(default, description=description, **given)


def prompt_argument(
    name: str = "prompt", help: str = "What to do", **how: Unpack[Argument]
) -> dict[str, Any]:
    """How a prompt, whatever it is called, is given on the command line."""
    how["file"] = (f"--{name}-file", f"Read the {name} from a file, or - for stdin.")
    return argument(name.upper(), f"{help}; - reads it from stdin.", **how)


class Spec(BaseModel):
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
# A repository in a filter: any directory in it, or the end of its path, such as its name.
RepositoryPath = Annotated[Text, Field(min_length=1, max_length=4000)]
# A number, or a duration with units such as 10m.
Seconds = Annotated[
    float, Field(gt=0, le=31_536_000, allow_inf_nan=False), BeforeValidator(read_seconds)
]
# How long a request may wait for something before it is answered as things are.
WaitSeconds = Annotated[float, Field(ge=0, le=55, allow_inf_nan=False)]


# What becomes of completed work: it stays on its branch, is merged, or becomes a pull request.
Deliver = Literal["branch", "merge", "pr"]

# When a check is proved to look at the work: made again, it must fail where that holds nonsense.
Prove = Literal["never", "once", "always", "required"]


def _relative(value: str) -> str:
    if value.startswith("/"):
        raise ValueError("the directory of a check must be relative")
    return value


RelativeDirectory = Annotated[Text, Field(min_length=1, max_length=4000), AfterValidator(_relative)]


class CheckSpec(Spec):
    """One condition the work must meet; as a plain string, a built-in's name or a shell command."""

    kind: CheckKind = CheckKind.COMMAND
    command: Text | None = Field(default=None, max_length=100_000)
    directory: RelativeDirectory | None = Field(
        default=None,
        description="where the command runs: relative to the directory of the work, or, in a "
        "repository's configuration, to the directory that contains its .kapelle",
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
            # As other conductors of agents spell it.
            value = {**value, "command": value["command"].removeprefix("custom_command:")}
        return value

    @model_validator(mode="after")
    def _command_where_needed(self) -> "CheckSpec":
        if (self.kind is CheckKind.COMMAND) != bool(self.command and self.command.strip()):
            raise ValueError("a command check needs a command, and a built-in check has none")
        if self.directory is not None and self.kind is not CheckKind.COMMAND:
            raise ValueError("only a command check has a directory")
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

    policy: Literal["none", "same", "analyze"] = field(
        "none",
        "whether failed work is tried again, and whether its failure is analyzed first",
        "--retry",
    )
    max_attempts: int = field(3, "at most so many attempts", ge=1, le=100)
    delay_s: float = field(
        10, "wait this long before the second attempt", "--retry-delay",
        kind="duration", ge=0, le=31_536_000, allow_inf_nan=False,
    )  # fmt: skip
    max_delay_s: Seconds = field(
        600, "wait at most this long before a further one", "--max-retry-delay", kind="duration"
    )


class Shell(Spec):
    """The environment that work was asked for in, as the client on the same machine sends it."""

    variables: dict[EnvName, Text] = field(
        {}, "what is passed on to agents and commands", max_length=1000
    )
    dropped: list[EnvName] = field(
        [], "the names of what is set there and not sent", max_length=1000
    )


class WorkSpec(Spec):
    """What tasks and patterns take: where the work is, who does it, and what it may cost."""

    directory: Directory = Field(
        description="where the work is; by default here",
        json_schema_extra=option("-C", kind="directory"),
    )
    title: Name | None = field(
        None, "a short name for lists; by default made of what is asked for", metavar="TEXT"
    )
    project: Name | None = field(
        None, "the project that it belongs to", metavar="NAME", complete="project"
    )
    agent: Name | None = field(
        None, "the agent, auto for the one that calls Kapelle; by default default_agent", "-a",
        metavar="NAME", kind="agent", complete="agents",
    )  # fmt: skip
    model: Name | None = field(None, "the agent's model", "-m", metavar="NAME", complete="model")
    template: Name | None = field(
        None, "guidelines of yours by their name, with the agent and the model that go with them",
        metavar="NAME", complete="templates",
    )  # fmt: skip
    fallback_agents: list[Name] = field(
        [], "who takes over, in order, from an agent that is limited or unavailable", "--fallback",
        metavar="AGENT", kind="names", complete="agents", max_length=20,
    )  # fmt: skip
    priority: Priority = field(
        Priority.P1, "in the queue: P0 goes before P1, and P1 before P2", "-p"
    )
    system_prompt: Text | None = field(
        None, "standing instructions for the agent", metavar="TEXT", max_length=MAX_PROMPT_BYTES
    )
    env: dict[EnvName, Text] = field(
        {}, "a variable for agents and commands, which is kept out of the database",
        metavar="NAME[=VALUE]", kind="environment",
        help="a variable for the agent; NAME alone passes yours on",
    )  # fmt: skip
    shell: Shell | None = field(
        None,
        "the environment it was asked for in, sent by the client; by default the daemon's own",
        hidden=True,
    )
    workspace: WorkspaceKind | None = field(
        None,
        "worktree, the default in a git repository, or in_place",
        hidden=True,
        flags={
            "--worktree": ("worktree", "In a git worktree of its own."),
            "--in-place": ("in_place", "Right in the directory."),
        },
    )
    base: Name | None = field(
        None,
        "what the worktree starts from; by default the branch that is checked out",
        metavar="BRANCH",
    )
    budget_usd: Money | None = field(
        None, "what all its attempts together may cost", "--budget", kind="usd"
    )
    deliver: Deliver = field(
        "branch",
        "what becomes of it once completed: it stays on its branch, is merged into its base, or is "
        "pushed and made a pull request",
    )
    push: bool = field(
        False, "with deliver merge: push the base to its upstream after the merge",
        help="with --deliver merge: push the base to its upstream after the merge",
    )  # fmt: skip

    prove: Prove | None = field(
        None,
        "when a check that passed is made again where the changed files are garbled, "
        "to see that it looks at them: never, once for each repository and command, always, or "
        "required; by default tasks.prove",
        help="when it is proved that checks look at the work; required fails it if they do not",
    )

    @model_validator(mode="after")
    def _pushes_what_is_merged(self) -> Self:
        if self.push and self.deliver != "merge":
            raise BrokenRule("only a merge is pushed: use it with --deliver merge", path=("push",))
        return self

    @property
    def subject(self) -> str:
        """What it is about, from which a title is made."""
        return ""

    @property
    def display_title(self) -> str:
        """Its title, or one made of the first line of what it is about; may be empty."""
        return self.title or take_first_line(self.subject)


class TaskSpec(WorkSpec):
    """One piece of work for one agent."""

    model_config = ConfigDict(
        json_schema_extra=command("Give an agent a task and print the task's id.")
    )

    interactive: bool = field(
        False, "in a terminal, where you talk to the agent; the prompt may then be empty", "-i",
        help="in a terminal, where you talk to the agent: start it and attach",
    )  # fmt: skip
    prompt: Text = Field(
        max_length=MAX_PROMPT_BYTES,
        description="what is to be done",
        json_schema_extra=prompt_argument(),
    )
    depends_on: list[str] = field(
        [], "start when this task has ended, or several separated by commas", "--after",
        "--depends-on", "--deps", metavar="ID", kind="names", complete="tasks", max_length=1000,
    )  # fmt: skip
    deps_policy: DepsPolicy = field(DepsPolicy.CANCEL, "what becomes of it when one of those fails")
    continue_from: str | None = field(
        None, "tell the agent what that task did", metavar="ID", complete="tasks"
    )
    fork_session: bool = field(
        False, "with continue_from: go on in a copy of that task's conversation", "--fork",
        help="with --continue-from: go on in a copy of that task's conversation",
    )  # fmt: skip
    max_turns: Turns | None = field(None, "the most turns of one attempt")
    tools: list[Name] = field(
        [], "the only tools that the agent may use, by its own names for them, besides those of "
        "MCP servers", "--tool", metavar="NAME", kind="list", max_length=100,
        help="a tool that the agent may use, by its own name for it; then it has no others",
    )  # fmt: skip
    read_only: bool = field(
        False,
        "it is to report and to change nothing: the agent has no tools that write, if it can be "
        "kept from them, and whatever it changes, commits or deletes is thrown away",
    )
    timeout_s: Seconds | None = field(
        None, "stop an attempt after 90, 90s, 10m or 2h", "--timeout", kind="duration"
    )
    checks: list[CheckSpec] = field(
        [], "what must pass: a command, diff_not_empty, no_error_in_output, or the forge's ci",
        "--check", kind="check", timeout=("--check-timeout", "Stop a check after this long."),
        max_length=100,
    )  # fmt: skip
    retry: RetrySpec = Field(default=RetrySpec(), json_schema_extra=group({"policy": "same"}))
    mcp: dict[ServerName, McpServer] = field(
        {}, "an MCP server, as a command or an https URL", metavar="NAME=COMMAND", kind="servers",
        max_length=50,
    )  # fmt: skip
    coordinate: bool = field(
        False, "give the agent Kapelle's own tools, to hand work on to agents of its own"
    )
    browser: bool = field(
        False, "give the agent a browser, and the application that browser.serve starts"
    )
    tags: list[Name] = field([], "a tag", "--tag", metavar="NAME", kind="names", max_length=100)
    context: dict[Name, Text] = field(
        {}, "a fact for the agent", metavar="KEY=VALUE", max_length=1000
    )

    @field_validator("prompt")
    @classmethod
    def _prompt_fits(cls, value: str, known: ValidationInfo) -> str:
        if not value.strip() and not known.data.get("interactive"):
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
    """How the work of a task or a run is made a pull request, or its pull request updated."""

    draft: bool | None = field(
        None,
        "true: a draft, the only way for failed work; false: ready for review; without it a pull "
        "request stays as it is, and a new one is ready",
    )
    force: bool = field(False, "even with a secret that Kapelle knows in it")


class UndoSpec(Spec):
    """How the merge of a task or a run is undone."""

    message: Annotated[Text | None, Field(min_length=1, max_length=100_000)] = None


class MergeSpec(Spec):
    """How the work of a task or a run is brought into a branch, by default its base."""

    into: Name | None = None
    force: bool = field(False, "even what is not completed, and unverified")
    verify: bool = field(True, "make the checks on the result if the base has moved")
    style: Literal["merge", "squash", "rebase"] = field(
        "merge", "a merge commit, one commit of all, or the commits one by one onto the base"
    )
    message: Annotated[Text | None, Field(min_length=1, max_length=100_000)] = None

    @model_validator(mode="after")
    def _has_a_commit(self) -> Self:
        if self.message is not None and self.style == "rebase":
            raise ValueError("a rebase keeps the messages of the commits: leave message out")
        return self
