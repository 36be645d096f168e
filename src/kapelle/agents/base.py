"""Define `AgentAdapter`, the base of every adapter, with its requests, commands and verdicts."""

import glob
import json
import os
import re
import shlex
import shutil
import signal
import sys
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from kapelle.agents.events import AgentEvent, parse_event
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

ClaimedOutcome = Literal["success", "failure"]
Comparison = Literal["same", "newer", "older"]

# Linux takes 128 KiB in one argument.
LONGEST_ARGUMENT = 100_000
# Where the daemon is, for a hook, and the hook.
_DAEMON = "daemon.json"
_SCRIPT = Path(__file__).parent / "bridges" / "hook.py"
_HOOK = shlex.join([sys.executable, "-I", "-S", str(_SCRIPT)])
_QUOTE = 300
_TAIL = 10_000
_VERSION = re.compile(r"\d+(?:\.\d+)+")


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
    terminal: bool = False  # whether a person can talk to it in a terminal
    acp: bool = False  # whether its program also speaks the Agent Client Protocol
    usage: bool = False
    cost: bool = False  # whether it reports money itself; else the price table tells
    tools: bool = False  # whether it can be given a list of the only tools it may use
    read_only: bool = False  # whether it can be kept from changing files


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
    interactive: bool = False  # in a terminal, with a prompt that may be empty
    attempt_number: int = 1
    max_turns: int | None = None
    budget_usd: float | None = None  # what is left of it
    tools: Sequence[str] = ()  # the only ones that it may use, by its own names
    read_only: bool = False  # it changes nothing
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)  # what its process will find
    credential: str | None = None  # a stored API key, when the environment has none
    answer: str | None = None  # what a person replied to its question
    messages: Path | None = None  # the folder to which messages of people come while it works
    message_key: str = ""  # that they are signed with
    checkout: Path | None = None  # whose trust was judged, if the workspace is a worktree of it
    # Where the daemon is and with which token, if others work on the same files: it is asked what
    # they hold before one is written.
    daemon: Mapping[str, str] | None = None

    @property
    def chosen_model(self) -> str | None:
        return self.model or self.settings.model

    @property
    def forks(self) -> bool:
        """Whether it goes on from a copy of an earlier session."""
        return self.fork and self.session_id is not None

    def first_words(self, *option: str) -> list[str]:
        """The prompt as the last argument, behind its option if it has one; nothing if empty."""
        if self.prompt.strip():
            return [*option, self.prompt]
        return []

    @property
    def stdin(self) -> bytes:
        """The prompt for a program that takes it by standard input."""
        return self.prompt.encode("utf-8", "replace")

    def beside(self, name: str) -> Path:
        """Where a file of AgentCommand.files will be."""
        return self.prompt_file.parent / name

    def guard(self, form: str) -> str | None:
        """The command that asks, before a tool writes, who holds the file; None where nobody else
        is. It refuses by its exit code where it cannot even begin."""
        if self.daemon is None:
            return None
        # The same text for every attempt: codex trusts a hook by its digest.
        return f'{_HOOK} "$KAPELLE_RUN_DIR/{_DAEMON}" {form} || exit 2'

    def hooks(self, event: str, tools: str, form: str) -> dict[str, Any]:
        """The guard as a hook before tools that write, as agents are configured with."""
        command = {"type": "command", "command": self.guard(form)}
        if self.daemon:
            return {event: [{"matcher": tools, "hooks": [command]}]}
        return {}

    def message_hooks(self) -> dict[str, Any]:
        """Return the hooks that bring messages of people: after each tool, and before its end.

        Until there is a message there is no folder, and they cost next to nothing.
        """
        if self.messages is None or self.interactive:
            return {}
        folder = shlex.quote(str(self.messages))
        read = f"{_HOOK} {folder} {self.message_key}"
        command = {"type": "command", "command": f"test ! -d {folder} || {read}"}
        return {event: [{"hooks": [command]}] for event in ("PostToolUse", "Stop")}

    @property
    def daemon_file(self) -> dict[str, str]:
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
        """The MCP servers as most programs take them in a file, with fields of the program's own;
        literal writes a text so that the program replaces no variable in it, secret the values."""
        servers: dict[str, object] = {}
        for name, server in self.mcp_servers.items():
            if server.url:
                given = server.headers
            else:
                given = server.env
            values = {key: (secret or literal)(value) for key, value in given.items()}
            if server.url:
                servers[name] = {url_key: literal(server.url), "headers": values, **remote}
            else:
                command, *args = map(literal, server.command)
                servers[name] = {"command": command, "args": args, "env": values, **local}
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
    answered: bool = False  # whether it said something after its last tool
    tail: str = ""

    @property
    def claimed(self) -> ClaimedOutcome | None:
        """What the agent itself says of its work."""
        if self.is_error or (self.result is None and self.error):
            return "failure"
        if self.result is None:
            return None
        return "success"


@dataclass(frozen=True, slots=True)
class AgentVerdict:
    """What an ended process means; claimed is the agent's own word, success is ours."""

    success: bool
    reason: str | None = None
    result: str | None = None
    claimed: ClaimedOutcome | None = None
    question: str | None = None
    failure: Failure | None = None


class AgentAdapter(ABC):
    """The adapter of one agent: which command to run, what its lines and its end mean.

    It is made as Adapter(name, settings), and never spawns, stores or retries. A subclass says
    command(); what else differs from the defaults here it says by class variables and methods.
    """

    program: ClassVar[str]  # on PATH, unless settings.program is another
    package: ClassVar[str] = ""  # what to install, as a command
    example: ClassVar[str] = '["mytool", "--ask", "{prompt}"]'  # of a command in the settings
    tested: str | None = None  # the version of its program that the adapter was tried with
    capabilities = Capabilities()
    access = Access()  # how it proves to its provider who it is; {home} in a file's path is home
    access_by_url: Access | None = None  # the same, where settings.base_url names the server
    url_variable: str | None = None  # what takes the address of that server
    # Environment names, or prefixes ending in *, that it needs from the user's environment.
    passes: tuple[str, ...] = ()
    # Those that it must never see, such as the marks of a session around the daemon.
    drops: tuple[str, ...] = ()
    # Where the program keeps sessions and login: variables that name it, then a directory at home.
    home: tuple[str, ...] = ("",)
    # What it says, outside its output, when it could not begin: patterns and what they mean.
    last_words: tuple[tuple[str, FailureClass], ...] = ()
    # What its exit codes mean where its output ends without a word about it.
    exits: ClassVar[Mapping[int, FailureClass]] = {}
    # Its options to do everything, and those that let it change files only, as the library may ask
    # for; None if it does no more anyway, a sentence if it cannot be held back.
    restraint: tuple[list[str], list[str]] | str | None = "nothing is known of its permissions"
    # Whether it can be told something while it works.
    hears = False
    # What over_acp() gives it in the protocol's place: fields of the bridge's job.
    beside_acp: tuple[str, ...] = ()
    reads_whole_output = True  # otherwise the last lines are enough for its summary
    # With what the first line begins of something that it prints over several, if it does that.
    begins_with = b""
    # The PATH of whoever asked for the work, if it is known; see registry.get().
    search_path: str | None = None

    def __init__(self, name: str, settings: AgentSettings) -> None:
        self.name = name
        self.settings = settings
        access = (self.access_by_url if settings.base_url else None) or self.access
        home = self.home_in(settings.env)
        files = tuple(file.replace("{home}", home) for file in access.login_files)
        self.access = replace(access, login_files=files)

    @abstractmethod
    def command(self, request: AgentRequest) -> AgentCommand:
        """The command for one attempt; raises AgentMisconfigured when there is none."""

    def parse(self, line: str) -> list[AgentEvent]:
        """What one line of standard output says; any text is accepted."""
        return parse_event(line)

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        """What one line of standard error says of trouble while it works: notices, or nothing."""
        return []

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        """What its program is given besides where it speaks ACP: options, variables, files, and
        the side log, whose lines parse() is asked for."""
        return AgentCommand([], {})

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        """Whether the attempt succeeded, given its output, its end and its last output as text.

        Success is a clean exit and a result that is no error; silence is not success.
        """
        if exit.code == 0 and summary.claimed == "success":
            return AgentVerdict(True, result=summary.result, claimed="success")
        if exit.kind != "exited" or summary.claimed == "success":
            return AgentVerdict(
                False, self.exit_sentence(exit, tail), summary.result, summary.claimed
            )
        if (asked := summary.question) is not None:
            return AgentVerdict(False, f"It asks: {asked}", claimed=summary.claimed, question=asked)
        if summary.claimed == "failure":
            said = summary.error.text if summary.error else summary.result
            return AgentVerdict(
                False, said or self.exit_sentence(exit, tail), summary.result, "failure"
            )
        return self._judge_silence(summary, exit, tail)

    def _judge_silence(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        words = "\n".join(_words(tail))
        for pattern, kind in self.last_words if summary.session_id is None else ():
            if found := re.search(pattern, words):
                said = found[0][:_QUOTE]
                lost = f"{self.program} does not have the session any more."
                if kind is FailureClass.SESSION_LOST:
                    reason = lost
                else:
                    reason = said
                return AgentVerdict(False, reason, failure=Failure(kind, f"it said: {said}"))
        if exit.code == 0:
            return AgentVerdict(False, "The agent exited with code 0 without reporting a result.")
        sentence = self.exit_sentence(exit, tail)
        meant = self.exits.get(exit.code or 0)
        return AgentVerdict(False, sentence, failure=Failure(meant, sentence) if meant else None)

    @property
    def update_command(self) -> str | None:
        """The command that installs the version that the adapter was tried with.

        Without a version npm installs an old one where Node is older than the newest one wants.
        """
        if not self.package or not self.tested:
            return self.package
        if self.package.startswith("npm "):
            return f"{self.package}@{self.tested}"
        return f"{self.package}=={self.tested}".replace("pipx install", "pipx install --force")

    @property
    def asked_for(self) -> str:
        """The program as the adapter or the settings name it; empty where neither does."""
        return self.settings.program or self.program

    def installed(self) -> str | None:
        """Where its program is, or None when it cannot be run here."""
        if self.asked_for:
            return self.on_path(self.asked_for, self.settings.env)
        return None

    @staticmethod
    def exit_sentence(exit: Exit, tail: str) -> str:
        """The end of a process that did not succeed, with its last words."""
        signals = {number.value: number.name for number in signal.Signals}
        name = signals.get(exit.signal or 0, f"signal {exit.signal}")
        sentence = {
            "exited": f"The agent exited with code {exit.code}",
            "signaled": f"The agent was killed by {name}",
            "not_started": "The agent could not be started",
            "lost": "Nobody saw how the agent ended",
            "tampered": "Somebody else than its supervisor wrote how the agent ended",
        }[exit.kind]
        words = _words(tail)
        if words:
            return f"{sentence}: {words[-1][:_QUOTE]}"
        return f"{sentence}."

    def on_path(self, program: str, env: Mapping[str, str]) -> str | None:
        """The path of a program, by the PATH of these settings, of the caller or this process."""
        path = env.get("PATH") or self.search_path or os.environ.get("PATH")
        return shutil.which(os.path.expanduser(program), path=path)

    def executable(self) -> str:
        """The path of the program; raises AgentMisconfigured when there is none."""
        if found := self.installed():
            return found
        raise self.not_found(self.asked_for)

    def not_found(self, program: str) -> AgentMisconfigured:
        """The error that a program is missing, or a command that would name one."""
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
        """The variables of every call: an address, a stored key, then what the settings say."""
        env = {}
        if self.url_variable and request.settings.base_url:
            env[self.url_variable] = request.settings.base_url
        if request.credential and self.access.variables:
            env[self.access.variables[0]] = request.credential
        return env | request.settings.env

    @staticmethod
    def options(values: Mapping[str, object]) -> list[str]:
        """Options as arguments: one that is True stands alone, one without a value is left out."""
        argv: list[str] = []
        for name, value in values.items():
            if value is True:
                argv.append(name)
            elif value is not None and value is not False and value != "":
                argv += [name, str(value)]
        return argv

    def side_log(self, request: AgentRequest, env: Mapping[str, str], pattern: str) -> str:
        """The glob pattern of a file in the program's home."""
        home = os.path.join(request.workspace, self.home_in(request.environ, env))
        return f"{glob.escape(home)}/{pattern}"

    def home_in(self, *environments: Mapping[str, str]) -> str:
        """Where the program keeps its sessions and its login; a later environment goes before."""
        known = ChainMap(*map(dict, reversed(environments)), os.environ)
        *variables, directory = self.home
        named = next(filter(None, map(known.get, variables)), None)
        return os.path.expanduser(named or os.path.join(known.get("HOME") or "~", directory))

    def require_model(self, request: AgentRequest) -> str:
        """The model to ask for; raises AgentMisconfigured when none is named."""
        if request.chosen_model:
            return request.chosen_model
        by_url = request.settings.base_url
        if by_url:
            what = "a base_url, but no model to ask for there"
        else:
            what = "no model"
        hint = f"kapelle agents config set {self.name} model NAME"
        raise AgentMisconfigured(f"The agent {self.name} has {what}.", hint=hint, remedy="")

    def refuse_prompt(self, request: AgentRequest) -> None:
        """For a program that takes none before it has begun."""
        if request.prompt.strip():
            text = f"{self.name} takes no prompt when it starts in a terminal."
            raise AgentMisconfigured(text, hint="Leave the prompt out, and type it there.")

    @staticmethod
    def fits(text: str) -> bool:
        """Whether a text fits into one argument."""
        return len(text.encode("utf-8", "replace")) <= LONGEST_ARGUMENT

    def require_argument(self, text: str, what: str, hint: str) -> str:
        """The text, if it fits into one argument; raises AgentMisconfigured otherwise."""
        if self.fits(text):
            return text
        size = len(text.encode("utf-8", "replace"))
        text = f"{self.name} takes {what} as one argument, and {size:,} bytes are too many for it:"
        text = f"{text} more than {LONGEST_ARGUMENT:,} do not fit on a command line."
        raise AgentMisconfigured(text, hint=hint)


def _words(tail: str) -> list[str]:
    """The lines of a last output that are meant for people: neither JSON nor a log."""
    stripped = (line.strip() for line in tail[-_TAIL:].splitlines())
    return [line for line in stripped if line and not line.startswith(("{", "timestamp="))]


def version_in(text: str) -> str | None:
    """The first version in what a program prints."""
    found = _VERSION.search(text)
    return found[0] if found else None


def compared(version: str, tested: str) -> Comparison:
    """How the version that is here stands to the tested one."""
    here = _numbers(version)
    there = _numbers(tested)
    if here == there:
        return "same"
    return "newer" if here > there else "older"


def remark(version: str | None, tested: str) -> str:
    """A version in words that promise nothing about untested ones."""
    if version is None:
        return f"version unknown, tested with {tested}"
    comparison = compared(version, tested)
    if comparison == "same":
        note = ""
    else:
        note = f" ({comparison})"
    return f"version {version}{note}, tested with {tested}"


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
