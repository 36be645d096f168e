"""Coding agents that are programs: Kapelle's own adapters, run by the calling process."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack

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
    """What every agent that is a program takes."""

    cwd: Path | str | None
    skip_permissions: bool
    model: str | None
    timeout_s: float | None
    env: Mapping[str, str] | None
    grace_s: float


class Options(Common, total=False):
    """What Kapelle's own agents take besides."""

    settings: AgentSettings | None


class _AgentFactory(Protocol):
    def __call__(self, **options: Unpack[Options]) -> "CliAgent": ...


class _NamedAgentFactory:
    """What makes an agent of one name; it is typed `CliAgent.codex(model="…")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, _: object, kind: "type[CliAgent]") -> _AgentFactory:
        return partial(kind, self._name)


class CliAgent(Agent):
    """An agent of Kapelle by its name, such as claude or codex; its own login is used.

    No configuration file is read. Without skip_permissions it changes files where it works, and
    whatever it would have to ask for is denied; one that cannot be held back so is refused.
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
        if cwd is None:
            self.cwd = None
        else:
            self.cwd = Path(cwd).expanduser().absolute()
        self.ends_within_s = grace_s + _KILL_S
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._restrained = not skip_permissions
        own = settings or AgentSettings()
        changes: dict[str, Any] = {"env": {**own.env, **(env or {})}, "model": model or own.model}
        if self._restrained:
            changes["permissions"] = "deny"
        self._settings = _settings(name, own.model_copy(update=changes))
        # Not by its own settings, which would make an agent of any name.
        registry.type_of(name, self._settings if own.type or own.command else Settings())
        if self._restrained and isinstance(restraint := self._adapter().restraint, str):
            raise AgentMisconfigured(
                f"The agent {name} cannot be run with skip_permissions=False: {restraint}.",
                hint="Let it skip permissions and work in a worktree, or in a sandbox of yours.",
            )

    claude_code = _NamedAgentFactory("claude")
    codex = _NamedAgentFactory("codex")
    gemini = _NamedAgentFactory("gemini")
    opencode = _NamedAgentFactory("opencode")
    aider = _NamedAgentFactory("aider")
    qwen = _NamedAgentFactory("qwen")
    copilot = _NamedAgentFactory("copilot")

    @classmethod
    def command(
        cls,
        template: Sequence[str],
        *,
        name: str | None = None,
        output: Literal["text", "events"] = "text",
        **options: Unpack[Common],
    ) -> Self:
        """Any program by its command line, with {prompt} {system} {combined} {model} {workspace}.

        Without a placeholder for it the prompt comes on stdin.
        """
        own = AgentSettings(type="command", command=list(template), output=output)
        if template:
            program = os.path.basename(template[0])
        else:
            program = ""
        its_name = re.sub(r"[^A-Za-z0-9_-]+", "-", program).strip("-_")[:64] or "command"
        return cls(name or its_name, own, **options)

    def run(self, request: Request) -> Response:
        """Run the program in the request's directory and judge what it printed.

        A program that is missing is a response, too, which is not ok.
        """
        try:
            return block_on(self._execute(request))
        except AgentMisconfigured as error:
            reason = error.message
            # No configuration of Kapelle is read here.
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
                ended = await execute(launch, request.stop)
            finally:
                meter.cancel()
            return self._response(request, ended, directory, side_log)

    async def _meter(self, request: Request, directory: Path, side_log: SideLog | None) -> None:
        """Report, now and then, what the agent has cost so far, if anybody keeps a budget."""
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
        # A new one each time: some count what they read.
        return registry.get(self.name, self._settings)

    def _limit_s(self, request: Request) -> float | None:
        limits = [limit for limit in (request.timeout_s, self._timeout_s) if limit is not None]
        return min(limits, default=None)

    def _command(
        self, adapter: Adapter, request: Request, cwd: Path, directory: Path
    ) -> tuple[AgentCommand, SideLog | None]:
        can = adapter.capabilities
        prompt = request.prompt
        if request.system and not can.system_prompt:
            prompt = f"{request.system}\n\n{prompt}"
        command, side_log = build_agent_command(
            adapter,
            AgentRequest(
                prompt=prompt,
                workspace=cwd,
                prompt_file=directory / "prompt",
                settings=adapter.settings,
                system_prompt=request.system if can.system_prompt else None,
                model=adapter.settings.model if can.model else None,
                budget_usd=request.budget_usd,
                environ=agent_environment(os.environ, self._settings, adapter),
            ),
        )
        restraint = adapter.restraint
        if not self._restrained or restraint is None or isinstance(restraint, str):
            return command, side_log
        return replace(command, argv=self._restrain(command.argv, *restraint)), side_log

    def _restrain(self, argv: list[str], dangerous: list[str], instead: list[str]) -> list[str]:
        """The command line of an agent without what lets it do everything."""
        for at in range(len(argv)):
            if argv[at : at + len(dangerous)] == dangerous:
                return argv[:at] + instead + argv[at + len(dangerous) :]
        raise AgentMisconfigured(
            f"The command of {self.name} has no {' '.join(dangerous)}, so that nobody knows how to "
            "take its permissions away.",
            hint="Remove options about permissions from extra_args.",
        )

    def _response(
        self, request: Request, ended: ProcessEnd, directory: Path, side_log: SideLog | None
    ) -> Response:
        adapter = self._adapter()
        summary = read_output(adapter, directory, side_log)
        verdict = adapter.judge(summary, ended.exit, output_tail(directory))
        usage = attempt_usage(summary, {}, adapter.settings.model, self._settings)
        cause = self._cause(request, ended)
        ok = verdict.success and cause is None
        text = verdict.result or summary.tail
        if not adapter.reads_whole_output:
            # It prints nothing but text, and all of that is its answer.
            text = read_tail(directory / OUT, _LONGEST_ANSWER).strip()
        return Response(
            text=text,
            ok=ok,
            reason=None if ok else cause or verdict.reason or "It did not succeed.",
            cost_usd=usage.cost_usd if usage else None,
            stderr=read_tail(directory / ERR, _LONGEST_ANSWER),
            usage=usage,
            session_id=summary.session_id,
        )

    def _cause(self, request: Request, ended: ProcessEnd) -> str | None:
        """Why the program did not end by itself, if it did not."""
        if ended.exit.kind == "not_started" and ended.ended_by is None:
            return f"It could not be started: {ended.detail}"
        if ended.ended_by == "timeout":
            return f"It was ended after {self._limit_s(request):g} s."
        if ended.ended_by == "stop":
            return f"It was ended: {request.stop.reason}."
        return None


def _settings(name: str, own: AgentSettings) -> Settings:
    try:
        # Dumped, so that what was copied with changes is validated too.
        return Settings.model_validate({"agents": {name: own.model_dump(by_alias=True)}})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][2:] if part != "[key]") or "its name"
        raise InvalidInput(f"The agent {name!r}: {format_problem(first, where)}.") from None
