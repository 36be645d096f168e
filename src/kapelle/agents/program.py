"""What agents that are one installed program have in common."""

import os
import re
import shutil
from typing import ClassVar, Literal

from kapelle.agents.base import Access, AgentEvent, AgentRequest, Capabilities, Summary, Verdict
from kapelle.agents.failures import judge_report
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

# Linux takes 128 KiB in one argument.
LONGEST_ARGUMENT = 100_000


class ProgramAgent:
    """An adapter names its program and says how it is called and read; the rest is here."""

    program: ClassVar[str]
    package: ClassVar[str]  # what to install, as a command
    tested: ClassVar[str | None] = None
    capabilities = Capabilities()
    access = Access()
    passes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    reads_whole_output = True

    def __init__(self, name: str, settings: AgentSettings) -> None:
        self.name = name
        self.settings = settings

    def installed(self) -> str | None:
        path = self.settings.env.get("PATH", os.environ.get("PATH"))
        return shutil.which(os.path.expanduser(self.settings.program or self.program), path=path)

    def executable(self) -> str:
        """The path of the program; raises AgentMisconfigured when there is none."""
        found = self.installed()
        if found is None:
            wanted = self.settings.program or self.program
            raise AgentMisconfigured(
                f"The agent {self.name} needs {wanted!r}, which is not an executable on PATH.",
                hint=f"{self.package}, or: kapelle agents config set {self.name} program PATH",
            )
        return found

    def environment(self, request: AgentRequest) -> dict[str, str]:
        """The variables of every call: a stored key, then what the settings say."""
        env = {}
        if request.credential and self.access.variables:
            env[self.access.variables[0]] = request.credential
        return env | request.settings.env

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        return judge_report(summary, exit, tail)


Comparison = Literal["same", "newer", "older"]

_VERSION = re.compile(r"\d+(?:\.\d+)+")


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
