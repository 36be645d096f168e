"""Talk to an agent over the Agent Client Protocol, and print its updates as events."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt; the prompt comes on standard input, the agent's command as arguments."""

    permissions: str = "allow"  # or "deny", or "ask"
    read_only: bool = False  # requests to change files are refused
    answer: str | None = None  # a person's answer to a request for permission
    mode: str | None = None
    model: str | None = None
    session_id: str | None = None
    fork: bool = False
    system_prompt: str | None = None
    initialize_s: float = 60.0  # in which the agent must answer its first message
    messages: str | None = None  # the folder for messages of people to the running agent
    message_key: str = ""  # the key that signs these messages
    mcp_servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Address and token of the daemon, if other agents work on the same files. The bridge then
    # writes the files for the agent, unless another agent holds them.
    daemon: Mapping[str, str] | None = None
    claude_settings: str | None = None  # Claude's hooks, because Claude writes files itself

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> "Job":
        return cls(**json.loads(text))

    @property
    def decision(self) -> str:
        """The answer to requests for permission: "allow", "deny" or "ask"."""
        if self.permissions != "ask" or self.answer is None:
            return self.permissions
        if self.answer.strip().lower() == "allow":
            return "allow"
        return "deny"
