"""What Kapelle asks of an agent: the whole protocol on one screen.

An adapter is made as `Adapter(name, settings)`. It never spawns, stores or retries: it says which
command to run, what a line of output means, and what the end of the process means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

EventKind = Literal[
    "text",  # text: what the agent said
    "tool_call",  # name: the tool, data: its input
    "tool_result",  # name: the tool, text: its output
    "usage",  # data: fields of Usage; "total": true when it replaces what was counted before
    "session",  # text: the id to resume by
    "result",  # text: the final answer, data: {"is_error": bool}
    "error",  # text: the message, name: its class ("rate_limit", …), data: {"retry_at": ISO time}
    "question",  # text: what a person is asked
    "stderr",  # text
]


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
    max_turns: bool = False
    budget: bool = False
    system_prompt: bool = False
    mcp: bool = False


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
    attempt_number: int = 1


@dataclass(frozen=True, slots=True)
class Command:
    """The process to start; stdin None means /dev/null."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a whole output said, folded from its events."""

    result: str | None = None
    is_error: bool = False
    session_id: str | None = None
    usage: Usage | None = None
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
    waiting_for: Literal["input", "rate_limit"] | None = None
    retry_at: datetime | None = None


class Agent(Protocol):
    """An adapter for one kind of worker."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> AgentSettings: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def passes(self) -> tuple[str, ...]:
        """Environment names, or prefixes ending in *, that it needs from the user's environment."""

    @property
    def reads_whole_output(self) -> bool:
        """Whether every line counts for its summary; otherwise the last lines are enough."""

    def installed(self) -> str | None:
        """Where its program is, or None when it cannot be run here."""

    def command(self, request: AgentRequest) -> Command:
        """The command for one attempt; raises AgentMisconfigured when there is none."""

    def parse(self, line: str) -> list[AgentEvent]:
        """What one line of standard output says; any text is accepted."""

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        """Whether the attempt succeeded, given its output, its end and its last output as text."""
