"""What adapters share: a program on PATH, its version, and defaults for the whole protocol."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from kapelle.agents.base import Access, AgentEvent, AgentRequest, Capabilities, Summary, Verdict
from kapelle.agents.failures import judge_report
from kapelle.agents.output import Json, parse_event
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

Comparison = Literal["same", "newer", "older"]

# Linux takes 128 KiB in one argument.
LONGEST_ARGUMENT = 100_000
_VERSION = re.compile(r"\d+(?:\.\d+)+")


class ProgramAgent:
    """An adapter names its program and says how it is called and read; the rest is here."""

    program: ClassVar[str]
    package: ClassVar[str]  # what to install, as a command
    tested: str | None = None
    capabilities = Capabilities()
    access = Access()
    passes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    reads_whole_output = True

    def __init__(self, name: str, settings: AgentSettings) -> None:
        self.name = name
        self.settings = settings

    def installed(self) -> str | None:
        return on_path(self.settings.program or self.program, self.settings.env)

    def executable(self) -> str:
        """The path of the program; raises AgentMisconfigured when there is none."""
        if found := self.installed():
            return found
        hint = f"{self.package}, or: kapelle agents config set {self.name} program PATH"
        raise self.not_found(self.settings.program or self.program, hint)

    def not_found(self, program: str, hint: str = "") -> AgentMisconfigured:
        """The error that a program is missing; hint is what to do instead of giving its path."""
        key = f"agents.{self.name}.command"
        by_path = f"""Install it, or: kapelle config set {key} '["/full/path/to/it", …]'"""
        return AgentMisconfigured(
            f"The agent {self.name} needs {program!r}, which is not an executable on PATH.",
            hint=hint or by_path,
        )

    def environment(self, request: AgentRequest) -> dict[str, str]:
        """The variables of every call: a stored key, then what the settings say."""
        env = {}
        if request.credential and self.access.variables:
            env[self.access.variables[0]] = request.credential
        return env | request.settings.env

    def require_model(self, request: AgentRequest) -> str:
        """The model to ask for; raises AgentMisconfigured when none is named."""
        if request.chosen_model:
            return request.chosen_model
        place = "a base_url, but no model to ask for there"
        raise AgentMisconfigured(
            f"The agent {self.name} has {place if request.settings.base_url else 'no model'}.",
            hint=f"kapelle agents config set {self.name} model NAME",
        )

    def require_argument(self, text: str, what: str, hint: str) -> str:
        """The text, if it fits into one argument; raises AgentMisconfigured otherwise."""
        size = len(text.encode("utf-8", "replace"))
        if size <= LONGEST_ARGUMENT:
            return text
        raise AgentMisconfigured(
            f"{self.name} takes {what} as one argument, and {size:,} bytes are too many for it:"
            f" more than {LONGEST_ARGUMENT:,} do not fit on a command line.",
            hint=hint,
        )

    def parse(self, line: str) -> list[AgentEvent]:
        return parse_event(line)

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        return judge_report(summary, exit, tail)


def session_lost(program: str, said: str) -> Verdict:
    """The verdict on a program that cannot go on with the session it was given."""
    lost = Failure(FailureClass.SESSION_LOST, f"it said: {said}")
    return Verdict(False, f"{program} does not have the session any more.", failure=lost)


def mcp_config(servers: Mapping[str, McpServer], entry: Callable[[McpServer], Json]) -> str:
    """The JSON file of MCP servers that most programs take, each server in their own words."""
    return json.dumps({"mcpServers": {name: entry(server) for name, server in servers.items()}})


def on_path(program: str, env: dict[str, str]) -> str | None:
    """The path of a program, by the PATH of these settings or else of this process."""
    path = env.get("PATH", os.environ.get("PATH"))
    return shutil.which(os.path.expanduser(program), path=path)


def version_in(text: str) -> str | None:
    """The first version in what a program prints."""
    found = _VERSION.search(text)
    return found[0] if found else None


def compared(version: str, tested: str) -> Comparison:
    """How the version that is here stands to the tested one."""
    here, there = _numbers(version), _numbers(tested)
    if here == there:
        return "same"
    return "newer" if here > there else "older"


def remark(version: str | None, tested: str) -> str:
    """A version in words that promise nothing about untested ones."""
    if version is None:
        return f"version unknown, tested with {tested}"
    comparison = compared(version, tested)
    note = "" if comparison == "same" else f" ({comparison})"
    return f"version {version}{note}, tested with {tested}"


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
