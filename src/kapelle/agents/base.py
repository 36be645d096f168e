"""Define `AgentAdapter`, the base of every adapter.

An adapter finds here all that its methods take and return.
"""

import glob
import os
import re
import shutil
import signal
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kapelle.agents.events import AgentEvent, parse_event
from kapelle.agents.request import AgentCommand, AgentRequest
from kapelle.agents.verdict import AgentVerdict, ClaimedOutcome, Summary
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

__all__ = [
    "LONGEST_ARGUMENT",
    "Access",
    "AgentAdapter",
    "AgentCommand",
    "AgentRequest",
    "AgentVerdict",
    "Capabilities",
    "ClaimedOutcome",
    "Summary",
]

# Linux takes 128 KiB in one argument.
LONGEST_ARGUMENT = 100_000
_QUOTE = 300
_TAIL = 10_000


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of an agent beyond taking a prompt."""

    resume: bool = False
    fork: bool = False
    model: bool = False
    max_turns: bool = False  # by an option of its own; otherwise Kapelle counts turns and stops it
    budget: bool = False  # by an option of its own; otherwise Kapelle counts the cost and stops it
    system_prompt: bool = False
    mcp: bool = False
    terminal: bool = False  # a person can talk to it in a terminal
    acp: bool = False  # its program also speaks the Agent Client Protocol
    usage: bool = False
    cost: bool = False  # it reports its cost; otherwise Kapelle computes it by the price table
    tools: bool = False  # it can be limited to a list of tools
    read_only: bool = False  # it can be kept from changing files


@dataclass(frozen=True, slots=True)
class Access:
    """The sources of a credential: variables first, then a stored key, then a login."""

    variables: tuple[str, ...] = ()  # may hold the key; a stored key is passed in the first one
    login_files: tuple[str, ...] = ()  # written by the program's own login; ~ is the home directory
    needed: bool = True  # the agent cannot work without a credential


@dataclass(frozen=True)
class AgentFiles:
    """Files in a person's home directory that belong to the program of an agent.

    A confined agent can write them, except those that its program executes or obeys: otherwise it
    could plant a command for the next session of the person.
    """

    # Directories and files with sessions, caches and logins.
    state: tuple[str, ...] = ()
    # Settings and commands; a path that ends in a slash is a directory. Those that are missing are
    # created empty, so that no agent can create them.
    pinned: tuple[str, ...] = ()


class AgentAdapter(ABC):
    """The adapter of one agent: its command line, and the meaning of its output and its end.

    An adapter is made as Adapter(name, settings), and never spawns, stores or retries. A subclass
    implements command(), and overrides class variables and methods where its agent differs.
    """

    program: ClassVar[str]  # the executable, looked up on PATH; settings.program overrides it
    package: ClassVar[str] = ""  # the command that installs the program
    example: ClassVar[str] = '["mytool", "--ask", "{prompt}"]'  # a valid settings.command
    tested: str | None = None  # the version of the program that the adapter was tested with
    capabilities = Capabilities()
    access = Access()  # {home} in the path of a login file is replaced by home_in()
    access_by_url: Access | None = None  # overrides access if settings.base_url is set
    url_variable: str | None = None  # the environment variable that takes settings.base_url
    # Variables of the user's environment that the agent needs: names, or prefixes ending in *.
    passes: tuple[str, ...] = ()
    # Variables that the agent must never see, such as the marks of a session around the daemon.
    drops: tuple[str, ...] = ()
    # The directory of the program's sessions and login: the variables that may name it, and at
    # last its default, relative to the home directory.
    home: tuple[str, ...] = ("",)
    # Further directories that the program writes, relative to the person's home directory.
    state: tuple[str, ...] = ()
    # Paths in `home` that the program executes or obeys, such as its settings; see AgentFiles.
    pinned: tuple[str, ...] = ()
    # Patterns of the messages, outside of its events, with which the program fails to start.
    last_words: tuple[tuple[str, FailureClass], ...] = ()
    # The failure class of an exit code, if the output does not explain the end.
    exits: ClassVar[Mapping[int, FailureClass]] = {}
    # For the library: its options that allow everything, and those that allow changes of files
    # only. None if it has no dangerous permissions; a sentence if it cannot be restrained.
    restraint: tuple[list[str], list[str]] | str | None = "nothing is known of its permissions"
    # The agent can read messages of people while it works.
    hears = False
    # Fields of the ACP bridge's job that over_acp() delivers in another way than the protocol.
    beside_acp: tuple[str, ...] = ()
    reads_whole_output = True  # if False, the last lines are enough for the summary
    # The first characters of a document that the program prints over several lines.
    begins_with = b""
    # The PATH of the client that asked for the work, if it is known; see registry.get().
    search_path: str | None = None

    def __init__(self, name: str, settings: AgentSettings) -> None:
        self.name = name
        self.settings = settings
        access = self.access
        if settings.base_url and self.access_by_url is not None:
            access = self.access_by_url
        home = self.home_in(settings.env)
        files = tuple(file.replace("{home}", home) for file in access.login_files)
        self.access = replace(access, login_files=files)

    @abstractmethod
    def command(self, request: AgentRequest) -> AgentCommand:
        """Return the command for one attempt; raise AgentMisconfigured if there is none."""

    def parse(self, line: str) -> list[AgentEvent]:
        """Return the events of one line of standard output, which may be any text."""
        return parse_event(line)

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        """Return notices of trouble that one line of standard error reports."""
        return []

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        """Return what the program needs in addition if it speaks ACP.

        That is further options, variables, files, and a side log, whose lines go to parse().
        """
        return AgentCommand([], {})

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        """Decide whether the attempt succeeded, by its summary, its exit and its last output.

        Success is a clean exit and a result that is no error. Without a result there is no success.
        """
        if exit.code == 0 and summary.claimed == "success":
            return AgentVerdict(True, result=summary.result, claimed="success")
        if exit.kind != "exited" or summary.claimed == "success":
            reason = self.exit_sentence(exit, tail)
            return AgentVerdict(False, reason, summary.result, summary.claimed)
        if summary.question is not None:
            reason = f"It asks: {summary.question}"
            return AgentVerdict(False, reason, claimed=summary.claimed, question=summary.question)
        if summary.claimed == "failure":
            message = summary.error.text if summary.error else summary.result
            reason = message or self.exit_sentence(exit, tail)
            return AgentVerdict(False, reason, summary.result, "failure")
        return self._judge_silence(summary, exit, tail)

    def _judge_silence(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        """Judge an attempt that reported neither a result nor an error."""
        if summary.session_id is None:
            verdict = self._judge_last_words(tail)
            if verdict is not None:
                return verdict
        if exit.code == 0:
            return AgentVerdict(False, "The agent exited with code 0 without reporting a result.")
        sentence = self.exit_sentence(exit, tail)
        kind = self.exits.get(exit.code or 0)
        if kind is None:
            return AgentVerdict(False, sentence)
        return AgentVerdict(False, sentence, failure=Failure(kind, sentence))

    def _judge_last_words(self, tail: str) -> AgentVerdict | None:
        """Return the verdict if the last output has a message of last_words."""
        text = "\n".join(_lines_for_people(tail))
        for pattern, kind in self.last_words:
            match = re.search(pattern, text)
            if match is None:
                continue
            quote = match[0][:_QUOTE]
            reason = quote
            if kind is FailureClass.SESSION_LOST:
                reason = f"{self.program} does not have the session any more."
            return AgentVerdict(False, reason, failure=Failure(kind, f"it said: {quote}"))
        return None

    @property
    def update_command(self) -> str | None:
        """The command that installs the version that the adapter was tested with.

        Without a version npm installs an old one if Node is older than the newest one requires.
        """
        if not self.package or not self.tested:
            return self.package
        if self.package.startswith("npm "):
            return f"{self.package}@{self.tested}"
        return f"{self.package}=={self.tested}".replace("pipx install", "pipx install --force")

    @property
    def asked_for(self) -> str:
        """The program by the settings or the adapter; empty if neither names one."""
        return self.settings.program or self.program

    def installed(self) -> str | None:
        """Return the path of the program, or None if it cannot be run here."""
        if self.asked_for:
            return self.on_path(self.asked_for, self.settings.env)
        return None

    @staticmethod
    def exit_sentence(exit: Exit, tail: str) -> str:
        """Return a sentence about a process that did not succeed, with its last line."""
        signals = {number.value: number.name for number in signal.Signals}
        name = signals.get(exit.signal or 0, f"signal {exit.signal}")
        sentence = {
            "exited": f"The agent exited with code {exit.code}",
            "signaled": f"The agent was killed by {name}",
            "not_started": "The agent could not be started",
            "lost": "Nobody saw how the agent ended",
            "tampered": "Another process than the supervisor wrote the agent's exit record",
        }[exit.kind]
        lines = _lines_for_people(tail)
        if lines:
            return f"{sentence}: {lines[-1][:_QUOTE]}"
        return f"{sentence}."

    def on_path(self, program: str, env: Mapping[str, str]) -> str | None:
        """Return the path of a program, by the PATH of env, of the client or of this process."""
        path = env.get("PATH") or self.search_path or os.environ.get("PATH")
        return shutil.which(os.path.expanduser(program), path=path)

    def executable(self) -> str:
        """Return the path of the program; raise AgentMisconfigured if there is none."""
        path = self.installed()
        if path is None:
            raise self.not_found(self.asked_for)
        return path

    def not_found(self, program: str) -> AgentMisconfigured:
        """Return the error for a missing program, or for a missing command if program is empty."""
        by_command = f"kapelle config set agents.{self.name}.command"
        if not program:
            text = f"The agent {self.name} has no command."
            return AgentMisconfigured(text, hint=f"{by_command} '{self.example}'", remedy="")
        text = f"The agent {self.name} needs {program!r}, which is not an executable on PATH."
        if self.package:
            remedy = self.package
            command = f"kapelle agents config set {self.name} program PATH"
        else:
            remedy = "Install it"
            command = f"""{by_command} '["/full/path/to/it", …]'"""
        return AgentMisconfigured(text, hint=f"{remedy}, or: {command}", remedy=remedy)

    def environment(self, request: AgentRequest) -> dict[str, str]:
        """Return the variables of the process: base URL, stored key, then those of the settings."""
        env = {}
        if self.url_variable and request.settings.base_url:
            env[self.url_variable] = request.settings.base_url
        if request.credential and self.access.variables:
            env[self.access.variables[0]] = request.credential
        return env | request.settings.env

    @staticmethod
    def options(values: Mapping[str, object]) -> list[str]:
        """Return options as arguments: True is the option alone, an empty value leaves it out."""
        argv: list[str] = []
        for name, value in values.items():
            if value is True:
                argv.append(name)
            elif value is not None and value is not False and value != "":
                argv += [name, str(value)]
        return argv

    def side_log(self, request: AgentRequest, env: Mapping[str, str], pattern: str) -> str:
        """Return the glob pattern of a file in the program's home."""
        home = os.path.join(request.workspace, self.home_in(request.environ, env))
        return f"{glob.escape(home)}/{pattern}"

    def home_in(self, *environments: Mapping[str, str]) -> str:
        """Return the directory of the program's sessions and login.

        A later environment has precedence over an earlier one, and all over that of this process.
        """
        variables = ChainMap(*map(dict, reversed(environments)), os.environ)
        *names, directory = self.home
        for name in names:
            if variables.get(name):
                return os.path.expanduser(variables[name])
        return os.path.expanduser(os.path.join(variables.get("HOME") or "~", directory))

    def files_in(self, *environments: Mapping[str, str]) -> AgentFiles:
        """Return the files of the program for these environments."""
        home = self.home_in(*environments)
        state = list(self.state)
        if self.home[-1]:
            state.insert(0, home)
        return AgentFiles(tuple(state), tuple(f"{home}/{path}" for path in self.pinned))

    def require_model(self, request: AgentRequest) -> str:
        """Return the model of the request; raise AgentMisconfigured if it names none."""
        if request.chosen_model:
            return request.chosen_model
        if request.settings.base_url:
            text = f"The agent {self.name} has a base_url, but no model."
        else:
            text = f"The agent {self.name} has no model."
        hint = f"kapelle agents config set {self.name} model NAME"
        raise AgentMisconfigured(text, hint=hint, remedy="")

    def refuse_prompt(self, request: AgentRequest) -> None:
        """Raise AgentMisconfigured if there is a prompt, which the program cannot start with."""
        if request.prompt.strip():
            text = f"{self.name} takes no prompt when it starts in a terminal."
            raise AgentMisconfigured(text, hint="Leave the prompt out, and type it there.")

    @staticmethod
    def fits(text: str) -> bool:
        """Tell whether a text fits into one argument."""
        return len(text.encode("utf-8", "replace")) <= LONGEST_ARGUMENT

    def require_argument(self, text: str, what: str, hint: str) -> str:
        """Return the text; raise AgentMisconfigured if it does not fit into one argument."""
        if self.fits(text):
            return text
        size = len(text.encode("utf-8", "replace"))
        message = (
            f"{self.name} takes {what} as one argument, and {size:,} bytes are too many for it:"
            f" more than {LONGEST_ARGUMENT:,} do not fit on a command line."
        )
        raise AgentMisconfigured(message, hint=hint)


def _lines_for_people(tail: str) -> list[str]:
    """Return the lines of a last output that are meant for people: neither JSON nor a log."""
    stripped = (line.strip() for line in tail[-_TAIL:].splitlines())
    return [line for line in stripped if line and not line.startswith(("{", "timestamp="))]
