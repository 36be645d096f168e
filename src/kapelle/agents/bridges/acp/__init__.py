"""Talks to an agent over the Agent Client Protocol, and prints what comes of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt; the prompt comes by standard input and the agent's command as arguments."""

    permissions: str = "allow"  # or "deny", or "ask"
    read_only: bool = False  # requests to change files are refused
    answer: str | None = None  # to what was asked before
    mode: str | None = None
    model: str | None = None
    session_id: str | None = None
    fork: bool = False
    system_prompt: str | None = None
    initialize_s: float = 60.0  # in which the agent must answer its first message
    messages: str | None = None  # the folder to which messages of people come meanwhile
    message_key: str = ""  # that they are signed with
    mcp_servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    # Where the daemon is and with which token, if others work on the same files: files are written
    # by the bridge then, and only what nobody else holds.
    daemon: Mapping[str, str] | None = None
    claude_settings: str | None = None  # Claude writes by itself, so its own hooks keep it

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> "Job":
        return cls(**json.loads(text))

    @property
    def decision(self) -> str:
        """What requests for permission get; an answer settles what was asked."""
        if self.permissions != "ask" or self.answer is None:
            return self.permissions
        if self.answer.strip().lower() == "allow":
            return "allow"
        return "deny"
