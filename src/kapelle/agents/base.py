"""What Kapelle asks of an agent: the whole protocol on one screen.

An adapter is made as `Adapter(name, settings)`. It never spawns, stores or retries: it says which
command to run, what a line of output means, and what the end of the process means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

# Bridges load this module at every start, and pydantic would take most of that time.
if TYPE_CHECKING:
    from kapelle.domain.failures import Failure
    from kapelle.domain.specs import McpServer
    from kapelle.domain.task import Exit, Usage
    from kapelle.settings import AgentSettings

EventKind = Literal[
    "text",  # text: what the agent said, data: {"delta": true} for a piece of a longer text
    "tool_call",  # name: the tool, data: its input
    "tool_result",  # name: the tool, text: its output
    "usage",  # data: see UsageData
    "session",  # text: the id to resume by
    "model",  # text: the model that really answers
    "plan",  # text: what it intends to do, as lines
    "result",  # text: the final answer, data: {"is_error": bool}
    "error",  # text: the message, name: a FailureClass if the agent says so much, data: ErrorData
    "notice",  # text: what goes wrong without ending it, such as a retry; name, data: as error
    "question",  # text: what a person is asked
    "stderr",  # text
]


class UsageData(TypedDict, total=False):
    """What was used; input_tokens includes cached_tokens, and a turn is one answer of a model."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    turns: int
    cost_usd: float
    total: bool  # it replaces the fields counted so far in this attempt instead of adding to them
    of_session: list[str]  # fields that count the whole session, earlier attempts included
    id: str  # one with the id of the last replaces it: streams repeat themselves


class ErrorData(TypedDict, total=False):
    status: int  # of HTTP
    type: str  # the provider's own name of the error
    retry_at: str  # ISO time


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One thing an agent said or did."""

    kind: EventKind
    text: str = ""
    name: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        filled = {"text": self.text, "name": self.name, "data": dict(self.data)}
        return {"kind": self.kind, **{key: value for key, value in filled.items() if value}}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an agent can be asked for beyond a prompt."""

    resume: bool = False
    fork: bool = False
    model: bool = False
    max_turns: bool = False  # by its own option; where it has none Kapelle counts and stops it
    budget: bool = False  # likewise
    system_prompt: bool = False
    mcp: bool = False
    hooks: bool = False
    acp: bool = False  # whether its program also speaks the Agent Client Protocol
    usage: bool = False
    cost: bool = False  # whether it reports money itself; else the price table tells


@dataclass(frozen=True, slots=True)
class Access:
    """Where a credential may come from: variables first, then what is stored, then a login."""

    variables: tuple[str, ...] = ()  # that may hold it; a stored one is given as the first
    login_files: tuple[str, ...] = ()  # what the program's own login leaves behind, ~ for home
    needed: bool = True  # whether nothing works without one


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One attempt's work; the caller has written the prompt to prompt_file before the start."""

    prompt: str
    workspace: Path
    prompt_file: Path
    settings: AgentSettings
    system_prompt: str | None = None
    model: str | None = None
    session_id: str | None = None
    fork: bool = False  # of the session: go on from a copy of it
    attempt_number: int = 1
    max_turns: int | None = None
    budget_usd: float | None = None  # what is left of it
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)  # what its process will find
    credential: str | None = None  # a stored API key, when the environment has none
    answer: str | None = None  # what a person replied to its question

    @property
    def chosen_model(self) -> str | None:
        return self.model or self.settings.model

    @property
    def stdin(self) -> bytes:
        """The prompt for a program that takes it by standard input."""
        return self.prompt.encode("utf-8", "replace")

    def beside(self, name: str) -> Path:
        """Where a file of Command.files will be."""
        return self.prompt_file.parent / name


@dataclass(frozen=True, slots=True)
class Command:
    """The process to start; stdin None means /dev/null.

    files are written, private, beside prompt_file before the start. side_log is a glob pattern of a
    file in which the agent notes its usage while it works; {session} in it is the session's id.
    """

    argv: list[str]
    env: dict[str, str]
    stdin: bytes | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    side_log: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a whole output said, folded from its events."""

    result: str | None = None
    is_error: bool = False
    session_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    of_session: frozenset[str] = frozenset()  # fields of usage that count the whole session
    error: AgentEvent | None = None
    question: str | None = None
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an ended process means; claimed is the agent's own word, success is ours."""

    success: bool
    reason: str | None = None
    result: str | None = None
    claimed: Literal["success", "failure"] | None = None
    question: str | None = None
    failure: Failure | None = None


class Agent(Protocol):
    """An adapter for one kind of worker."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> AgentSettings: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def access(self) -> Access:
        """How it proves to its provider who it is."""

    @property
    def tested(self) -> str | None:
        """The version of its program that the adapter was tried with."""

    @property
    def passes(self) -> tuple[str, ...]:
        """Environment names, or prefixes ending in *, that it needs from the user's environment."""

    @property
    def drops(self) -> tuple[str, ...]:
        """Names or prefixes it must never see, such as the marks of a session around the daemon."""

    @property
    def reads_whole_output(self) -> bool:
        """Whether every line counts for its summary; otherwise the last lines are enough."""

    def installed(self) -> str | None:
        """Where its program is, or None when it cannot be run here."""

    def command(self, request: AgentRequest) -> Command:
        """The command for one attempt; raises AgentMisconfigured when there is none."""

    def parse(self, line: str) -> list[AgentEvent]:
        """What one line of standard output says; any text is accepted."""

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        """What one line of standard error says of trouble while it works: notices, or nothing."""

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        """Whether the attempt succeeded, given its output, its end and its last output as text."""
