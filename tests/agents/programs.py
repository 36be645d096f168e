"""The real agents that the tests drive: their exact versions, and where they are installed."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Program:
    """One pinned program of one package, in a folder of its own below the cache."""

    name: str
    package: str
    version: str
    executable: str
    source: Literal["npm", "pypi"] = "npm"
    runs_on_own_node: bool = False
    shows_version: bool = True

    @property
    def folder(self) -> Path:
        return cache() / self.name

    @property
    def path(self) -> Path:
        """The file to run."""
        if self.source == "pypi" or self.runs_on_own_node:
            return self.folder / "bin" / self.executable
        return self.script

    @property
    def script(self) -> Path:
        """The file that the package manager made for it."""
        inside = "bin" if self.source == "pypi" else "node_modules/.bin"
        return self.folder / inside / self.executable

    @property
    def marker(self) -> Path:
        """A file that tells which version is here and runs, or why none does."""
        return self.folder / "kapelle.json"


_ALL = (
    Program("node", "node", "24.21.0", "node"),
    Program("claude", "@anthropic-ai/claude-code", "2.1.325", "claude"),
    Program("codex", "@openai/codex", "0.166.0", "codex"),
    Program("gemini", "@google/gemini-cli", "0.61.0", "gemini"),
    Program("opencode", "opencode-ai", "1.18.33", "opencode"),
    Program("aider", "aider-chat", "0.86.2", "aider", source="pypi"),
    Program("qwen", "@qwen-code/qwen-code", "0.24.4", "qwen", runs_on_own_node=True),
    Program("copilot", "@github/copilot", "1.0.102", "copilot"),
    Program(
        "claude-acp",
        "@agentclientprotocol/claude-agent-acp",
        "0.49.0",
        "claude-agent-acp",
        shows_version=False,
    ),
    Program("codex-acp", "@agentclientprotocol/codex-acp", "2.6.0", "codex-acp"),
)
PROGRAMS = {program.name: program for program in _ALL}


def cache() -> Path:
    """The directory of all installs and of the homes of tests that use them."""
    named = os.environ.get("KAPELLE_AGENTS_CACHE")
    return Path(named).absolute() if named else Path.home() / ".cache" / "kapelle-agents"


def program(name: str) -> Path | str:
    """The executable of an agent, or a sentence that says why there is none."""
    wanted = PROGRAMS[name]
    try:
        found = json.loads(wanted.marker.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} {wanted.version} is not installed: python -m tests.agents.install {name}"
    if "problem" in found:
        return f"{name} {wanted.version} could not be installed: {found['problem']}"
    if found["version"] != wanted.version or not wanted.path.exists():
        return f"{name} {wanted.version} is not installed: python -m tests.agents.install {name}"
    return wanted.path
