"""Define what an attempt asks of an agent, and the command by which the agent is started."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kapelle.domain.specs import McpServer
from kapelle.settings import AgentSettings

# The file that tells a hook where the daemon is.
_DAEMON = "daemon.json"
_HOOK_SCRIPT = Path(__file__).parent / "bridges" / "hook.py"
_HOOK = shlex.join([sys.executable, "-I", "-S", str(_HOOK_SCRIPT)])


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
    fork: bool = False  # continue in a copy of the session
    interactive: bool = False  # in a terminal; the prompt may be empty
    attempt_number: int = 1
    max_turns: int | None = None
    budget_usd: float | None = None  # the remaining budget
    tools: Sequence[str] = ()  # the only tools that the agent may use, by the agent's names
    read_only: bool = False
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)  # the environment of its process
    credential: str | None = None  # a stored API key, if the environment has none
    answer: str | None = None  # a person's answer to the agent's question
    messages: Path | None = None  # the folder for messages of people to the running agent
    message_key: str = ""  # the key that signs these messages
    # The user's checkout, which was checked for trust, if the workspace is a worktree of it.
    checkout: Path | None = None
    # Address and token of the daemon, if other agents work on the same files: before a file is
    # written, the daemon is asked who holds it.
    daemon: Mapping[str, str] | None = None

    @property
    def chosen_model(self) -> str | None:
        return self.model or self.settings.model

    @property
    def forks(self) -> bool:
        """Tell whether the attempt continues in a copy of an earlier session."""
        return self.fork and self.session_id is not None

    def first_words(self, *option: str) -> list[str]:
        """Return the prompt as the last argument, after its option; no argument if it is empty."""
        if self.prompt.strip():
            return [*option, self.prompt]
        return []

    @property
    def stdin(self) -> bytes:
        """The prompt for a program that reads it from standard input."""
        return self.prompt.encode("utf-8", "replace")

    def beside(self, name: str) -> Path:
        """Return the path of a file of AgentCommand.files."""
        return self.prompt_file.parent / name

    def guard(self, form: str) -> str | None:
        """Return the command that asks the daemon, before a tool writes, who holds the file.

        None if no other agent works on the same files. If the command itself fails to start, its
        exit code refuses the tool call.
        """
        if self.daemon is None:
            return None
        # The text is the same for every attempt, because codex trusts a hook by its digest.
        return f'{_HOOK} "$KAPELLE_RUN_DIR/{_DAEMON}" {form} || exit 2'

    def hooks(self, event: str, tools: str, form: str) -> dict[str, Any]:
        """Return the guard as a hook before writing tools, in the form of the agents' settings."""
        command = {"type": "command", "command": self.guard(form)}
        if self.daemon:
            return {event: [{"matcher": tools, "hooks": [command]}]}
        return {}

    def message_hooks(self) -> dict[str, Any]:
        """Return the hooks that deliver messages of people, after each tool and before the end.

        Without a message the folder is empty or missing, so the hooks cost next to nothing.
        """
        if self.messages is None or self.interactive:
            return {}
        folder = shlex.quote(str(self.messages))
        read = f"{_HOOK} {folder} {self.message_key}"
        command = {
            "type": "command",
            "command": f'test -z "$(ls -A {folder} 2>/dev/null)" || {read}',
        }
        return {event: [{"hooks": [command]}] for event in ("PostToolUse", "Stop")}

    @property
    def daemon_file(self) -> dict[str, str]:
        """The file that the guard reads, for AgentCommand.files; empty without a guard."""
        if self.daemon:
            return {_DAEMON: json.dumps(self.daemon)}
        return {}

    def mcp_config(
        self,
        local: Mapping[str, object],
        remote: Mapping[str, object],
        url_key: str = "url",
        literal: Callable[[str], str] = str,
        secret: Callable[[str], str] | None = None,
    ) -> dict[str, object]:
        """Return the MCP servers in the form that most programs read from a file.

        local and remote are further fields of servers by command and by URL. literal escapes a
        text so that the program replaces no variable in it; secret does that for the values of
        headers and environment variables, if they need another escape.
        """
        escape = secret or literal
        servers: dict[str, object] = {}
        for name, server in self.mcp_servers.items():
            if server.url:
                headers = {key: escape(value) for key, value in server.headers.items()}
                servers[name] = {url_key: literal(server.url), "headers": headers, **remote}
            else:
                env = {key: escape(value) for key, value in server.env.items()}
                command, *args = map(literal, server.command)
                servers[name] = {"command": command, "args": args, "env": env, **local}
        return {"mcpServers": servers}


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """The process to start; stdin None means /dev/null.

    files are written, private, beside prompt_file before the start. side_log is a glob pattern of a
    file in which the agent notes its usage while it works; {session} in it is the session's id.
    """

    argv: list[str]
    env: dict[str, str]
    stdin: bytes | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    side_log: str | None = None
