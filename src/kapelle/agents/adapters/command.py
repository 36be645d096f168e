"""Any command line as an agent: a template from the settings, judged by its exit code."""

import os
import re
import shutil
import sys
from pathlib import Path

from kapelle.agents.adapters.command_json import json_events, judge_json
from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.endings import failure, how_it_ended, judge_report
from kapelle.agents.events import parse_event
from kapelle.agents.program import LONGEST_ARGUMENT
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

_PLACEHOLDER = re.compile(r"\{(prompt|system|combined|model|workspace|prompt_file|session)\}")
_CARRIES_PROMPT = frozenset({"prompt", "combined", "prompt_file"})


class CommandAgent:
    """Runs settings.command, placeholders filled in; the prompt goes to stdin if none takes it."""

    access = Access(needed=False)
    tested: str | None = None
    passes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()

    def __init__(self, name: str, settings: AgentSettings) -> None:
        self.name = name
        self.settings = settings

    @property
    def capabilities(self) -> Capabilities:
        used = _placeholders(self.settings.command)
        by_stdin = not used & _CARRIES_PROMPT
        output, read = self.settings.output, self.settings.read
        by_events, by_json = output == "events", output == "json"
        return Capabilities(
            resume="session" in used and (by_events or (by_json and bool(read.session))),
            model="model" in used,
            system_prompt=by_stdin or bool(used & {"system", "combined"}),
            usage=by_events or (by_json and bool(read.input_tokens or read.output_tokens)),
            cost=by_events or (by_json and bool(read.cost_usd)),
        )

    @property
    def reads_whole_output(self) -> bool:
        return self.settings.output != "text"

    def installed(self) -> str | None:
        template = self.settings.command
        return _executable(template[0], self.settings.env, None) if template else None

    def command(self, request: AgentRequest) -> Command:
        template = request.settings.command
        if not template:
            raise AgentMisconfigured(
                f"The agent {self.name} has no command.",
                hint=f"kapelle config set agents.{self.name}.command"
                """ '["mytool", "--ask", "{prompt}"]'""",
            )
        values = _values(request)
        argv = _filled(template, values) + request.settings.extra_args
        self._check(argv, request)
        if request.settings.output == "json":
            argv = self._in_json_lines(argv, request.settings)
        used = _placeholders(template)
        stdin = None
        if not used & _CARRIES_PROMPT:
            stdin = values["prompt" if "system" in used else "combined"].encode("utf-8", "replace")
        return Command(argv, dict(request.settings.env), stdin)

    def parse(self, line: str) -> list[AgentEvent]:
        match self.settings.output:
            case "events":
                return parse_event(line)
            case "json":
                return json_events(line, self.settings.read)
            case "text":
                return [AgentEvent("text", text=line.rstrip("\r\n"))]

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        if self.settings.output == "events":
            return judge_report(summary, exit, tail)
        if self.settings.output == "json":
            return judge_json(summary, exit, tail, self.settings.read)
        if exit.kind != "exited":
            return failure(how_it_ended(exit, tail), None, None)
        result = summary.tail.strip() or None
        if exit.code != 0:
            return failure(how_it_ended(exit, tail), result, "failure")
        return Verdict(True, result=result, claimed="success")

    def _in_json_lines(self, argv: list[str], settings: AgentSettings) -> list[str]:
        """The command behind the bridge that puts each document of its output on one line."""
        if not settings.read.text and not settings.read.result:
            raise AgentMisconfigured(
                f"The agent {self.name} prints JSON, and nothing says where its answer is in it.",
                hint=f"kapelle config set agents.{self.name}.read.result path.of.the.answer",
            )
        return [sys.executable, "-I", "-m", "kapelle.agents.bridges.json_lines", *argv]

    def _check(self, argv: list[str], request: AgentRequest) -> None:
        key = f"agents.{self.name}.command"
        for argument in argv:
            size = len(argument.encode("utf-8", "replace"))
            if size > LONGEST_ARGUMENT:
                raise AgentMisconfigured(
                    f"The prompt makes an argument of {size:,} bytes for {self.name}, and more"
                    f" than {LONGEST_ARGUMENT:,} do not fit on a command line.",
                    hint=f"Use {{prompt_file}} in {key}, or no placeholder, for stdin.",
                )
            if not argument or "\0" in argument:
                raise AgentMisconfigured(f"{key} makes an argument that is empty or has a NUL.")
        if not _executable(argv[0], request.settings.env, request.workspace):
            raise AgentMisconfigured(
                f"The agent {self.name} needs {argv[0]!r}, which is not an executable on PATH.",
                hint=f"""Install it, or: kapelle config set {key} '["/full/path/to/it", …]'""",
            )


def _values(request: AgentRequest) -> dict[str, str]:
    system = request.system_prompt or ""
    return {
        "prompt": request.prompt,
        "system": system,
        "combined": f"{system}\n\n{request.prompt}" if system else request.prompt,
        "model": request.model or request.settings.model or "",
        "workspace": str(request.workspace),
        "prompt_file": str(request.prompt_file),
        "session": request.session_id or "",
    }


def _placeholders(template: list[str]) -> set[str]:
    return {name for argument in template for name in _PLACEHOLDER.findall(argument)}


def _filled(template: list[str], values: dict[str, str]) -> list[str]:
    """The template with its values; what has no value goes, with the option it belongs to."""
    argv: list[str] = []
    for argument in template:
        if any(not values[name] for name in _PLACEHOLDER.findall(argument)):
            if _PLACEHOLDER.fullmatch(argument) and len(argv) > 1 and argv[-1].startswith("-"):
                argv.pop()
            continue
        argv.append(_PLACEHOLDER.sub(lambda match: values[match[1]], argument))
    return argv


def _executable(program: str, env: dict[str, str], workspace: Path | None) -> str | None:
    if "/" in program and not program.startswith("/"):
        # A relative program belongs to the workspace, which is known only when it runs.
        if workspace is None:
            return program
        program = str(workspace / program)
    return shutil.which(program, path=env.get("PATH", os.environ.get("PATH")))
