"""Run coding agents with Kapelle's adapters in the calling process."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack

from pydantic import ValidationError

from kapelle.agents import registry
from kapelle.agents.base import AgentAdapter as Adapter
from kapelle.agents.base import AgentCommand, AgentRequest
from kapelle.agents.summary import OutputFold
from kapelle.domain.errors import AgentMisconfigured, InvalidInput, format_problem
from kapelle.engine.processes.environment import (
    Origin,
    agent_environment,
    build_agent_command,
    map_into_worktree,
)
from kapelle.engine.processes.output import (
    SideLog,
    attempt_usage,
    output_tail,
    read_output,
    with_side_log,
)
from kapelle.library.agent import Agent, Request, Response
from kapelle.library.execution import block_on, execute, process_directory
from kapelle.runner.output import LogReader, read_tail
from kapelle.runner.process_dir import Launch, ProcessEnd
from kapelle.runner.shim.files import ERR, OUT
from kapelle.settings import AgentSettings, Settings

_KILL_S = 15.0
_LOOK_S = 2.0
_LONGEST_ANSWER = 1 << 20


class Common(TypedDict, total=False):
    """The options of every agent that is a program."""

    cwd: Path | str | None
    skip_permissions: bool
    model: str | None
    timeout_s: float | None
    env: Mapping[str, str] | None
    grace_s: float


class CliAgent(Agent):
    """An agent of Kapelle by its name, such as claude or codex, with its own login.

    No configuration file is read. With skip_permissions=False the agent may change files in its
    directory, and everything that needs a permission is denied. An agent that cannot be restrained
    so raises AgentMisconfigured.
    """

    def __init__(
        self,
        name: str,
        settings: AgentSettings | None = None,
        *,
        cwd: Path | str | None = None,
        skip_permissions: bool = True,
        model: str | None = None,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
    ) -> None:
        self.name = name
        self.cwd = None if cwd is None else Path(cwd).expanduser().absolute()
        self.ends_within_s = grace_s + _KILL_S
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._is_restrained = not skip_permissions
        own = settings or AgentSettings()
        changes: dict[str, Any] = {"env": {**own.env, **(env or {})}, "model": model or own.model}
        if self._is_restrained:
            changes["permissions"] = "deny"
        self._settings = _settings(name, own.model_copy(update=changes))
        # Settings make any name an agent. Without a type or command the name itself must be known.
        registry.type_of(name, self._settings if own.type or own.command else Settings())
        if self._is_restrained and isinstance(restraint := self._adapter().restraint, str):
            raise AgentMisconfigured(
                f"The agent {name} cannot be run with skip_permissions=False: {restraint}.",
                hint="Let it skip permissions and work in a worktree, or in a sandbox of yours.",
            )

    @classmethod
    def claude_code(cls, settings: AgentSettings | None = None, **options: Unpack[Common]) -> Self:
        """Return Claude Code as an agent."""
        return cls("claude", settings, **options)

    @classmethod
    def codex(cls, settings: AgentSettings | None = None, **options: Unpack[Common]) -> Self:
        """Return Codex as an agent."""
        return cls("codex", settings, **options)

    @classmethod
    def gemini(cls, settings: AgentSettings | None = None, **options: Unpack[Common]) -> Self:
        """Return Gemini CLI as an agent."""
        return cls("gemini", settings, **options)

    @classmethod
    def opencode(cls, settings: AgentSettings | None = None, **options: Unpack[Common]) -> Self:
        """Return opencode as an agent."""
        return cls("opencode", settings, **options)

    @classmethod
    def aider(cls, settings: AgentSettings | None = None, **options: Unpack[Common]) -> Self:
        """Return aider as an agent."""
        return cls("aider", settings, **options)

    @classmethod
    def qwen(cls, settings: AgentSettings | None = None, **options: Unpack[Common]) -> Self:
        """Return Qwen Code as an agent."""
        return cls("qwen", settings, **options)

    @classmethod
    def copilot(cls, settings: AgentSettings | None = None, **options: Unpack[Common]) -> Self:
        """Return GitHub Copilot CLI as an agent."""
        return cls("copilot", settings, **options)

    @classmethod
    def command(
        cls,
        template: Sequence[str],
        *,
        name: str | None = None,
        output: Literal["text", "events"] = "text",
        **options: Unpack[Common],
    ) -> Self:
        """Return any program as an agent, by its command line.

        Placeholders are {prompt}, {system}, {combined}, {model}, {workspace} and {prompt_file}.
        Without one for the prompt, the prompt comes on stdin.
        """
        own = AgentSettings(type="command", command=list(template), output=output)
        program = os.path.basename(template[0]) if template else ""
        program_name = re.sub(r"[^A-Za-z0-9_-]+", "-", program).strip("-_")[:64]
        return cls(name or program_name or "command", own, **options)

    def run(self, request: Request) -> Response:
        """Run the program in the request's directory and judge its output.

        A missing program is a failed response, too.
        """
        try:
            return block_on(self._execute(request))
        except AgentMisconfigured as error:
            reason = error.message
            # The remedy without the hint: the library reads no configuration.
            if error.remedy:
                reason += f" {error.remedy.rstrip('.')}."
            return Response(ok=False, reason=reason, hopeless=True)

    async def _execute(self, request: Request) -> Response:
        cwd = request.cwd or self.cwd or Path.cwd()
        with process_directory() as directory:
            adapter = self._adapter()
            command, side_log = self._command(adapter, request, cwd, directory)
            launch = Launch(
                process_dir=directory,
                argv=command.argv,
                cwd=cwd,
                env=map_into_worktree(
                    agent_environment(os.environ, self._settings, adapter) | command.env,
                    Origin.around(cwd),
                ).values,
                stdin=command.stdin,
                timeout_s=self._limit_s(request),
                grace_s=self._grace_s,
            )
            meter = asyncio.ensure_future(self._meter(request, directory, side_log))
            try:
                end = await execute(launch, request.stop)
            finally:
                meter.cancel()
            return self._response(request, end, directory, side_log)

    async def _meter(self, request: Request, directory: Path, side_log: SideLog | None) -> None:
        """Report the cost of the agent regularly, if the request has a budget."""
        adapter = self._adapter()
        fold = OutputFold()
        out = LogReader(directory / OUT)
        if request.budget_usd is None or not adapter.capabilities.usage:
            return
        while True:
            await asyncio.sleep(_LOOK_S)
            while lines := out.lines():
                for line in lines:
                    for event in adapter.parse(line.text):
                        fold.add(event)
            summary = with_side_log(adapter, side_log, fold.summary())
            usage = attempt_usage(summary, {}, adapter.settings.model, self._settings)
            if usage is not None and usage.cost_usd is not None:
                request.spent(usage.cost_usd)

    def _adapter(self) -> Adapter:
        # A new one for each use, because some adapters count what they read.
        return registry.get(self.name, self._settings)

    def _limit_s(self, request: Request) -> float | None:
        limits = [limit for limit in (request.timeout_s, self._timeout_s) if limit is not None]
        return min(limits, default=None)

    def _command(
        self, adapter: Adapter, request: Request, cwd: Path, directory: Path
    ) -> tuple[AgentCommand, SideLog | None]:
        """Return the command with its restraint, and the side log."""
        capabilities = adapter.capabilities
        prompt = request.prompt
        if request.system and not capabilities.system_prompt:
            prompt = f"{request.system}\n\n{prompt}"
        command, side_log = build_agent_command(
            adapter,
            AgentRequest(
                prompt=prompt,
                workspace=cwd,
                prompt_file=directory / "prompt",
                settings=adapter.settings,
                system_prompt=request.system if capabilities.system_prompt else None,
                model=adapter.settings.model if capabilities.model else None,
                budget_usd=request.budget_usd,
                environ=agent_environment(os.environ, self._settings, adapter),
            ),
        )
        restraint = adapter.restraint
        if not self._is_restrained or restraint is None or isinstance(restraint, str):
            return command, side_log
        return replace(command, argv=self._restrain(command.argv, *restraint)), side_log

    def _restrain(self, argv: list[str], dangerous: list[str], instead: list[str]) -> list[str]:
        """Replace the options that skip permissions by those that allow changes of files only."""
        count = len(dangerous)
        for start in range(len(argv)):
            if argv[start : start + count] == dangerous:
                return argv[:start] + instead + argv[start + count :]
        raise AgentMisconfigured(
            f"The permissions of {self.name} cannot be limited, because its command has no "
            f"{' '.join(dangerous)}.",
            hint="Remove options about permissions from extra_args.",
        )

    def _response(
        self, request: Request, end: ProcessEnd, directory: Path, side_log: SideLog | None
    ) -> Response:
        """Return the response by the output and the end of the program."""
        adapter = self._adapter()
        summary = read_output(adapter, directory, side_log)
        verdict = adapter.judge(summary, end.exit, output_tail(directory))
        usage = attempt_usage(summary, {}, adapter.settings.model, self._settings)
        cause = self._cause(request, end)
        ok = verdict.success and cause is None
        text = verdict.result or summary.tail
        if not adapter.reads_whole_output:
            # All that such a program prints is its answer.
            text = read_tail(directory / OUT, _LONGEST_ANSWER).strip()
        reason = None
        if not ok:
            reason = cause or verdict.reason or "The agent did not succeed."
        return Response(
            text=text,
            ok=ok,
            reason=reason,
            cost_usd=usage.cost_usd if usage else None,
            stderr=read_tail(directory / ERR, _LONGEST_ANSWER),
            usage=usage,
            session_id=summary.session_id,
        )

    def _cause(self, request: Request, end: ProcessEnd) -> str | None:
        """Return why the program was not started or was stopped; None if it ended by itself."""
        if end.exit.kind == "not_started" and end.ended_by is None:
            return f"It could not be started: {end.detail}"
        if end.ended_by == "timeout":
            return f"It was stopped after {self._limit_s(request):g} s."
        if end.ended_by == "stop":
            return f"It was stopped: {request.stop.reason}."
        return None


def _settings(name: str, own: AgentSettings) -> Settings:
    """Return settings with this one agent; raise InvalidInput if they are invalid."""
    try:
        # Dumped, because model_copy() does not validate the changes.
        return Settings.model_validate({"agents": {name: own.model_dump(by_alias=True)}})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][2:] if part != "[key]") or "its name"
        raise InvalidInput(f"The agent {name!r}: {format_problem(first, where)}.") from None
