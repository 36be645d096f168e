"""Build the processes of attempts and runs: agents and shell commands."""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kapelle.agents.base import AgentAdapter, AgentRequest
from kapelle.domain.errors import WorkspaceError
from kapelle.domain.specs import CheckSpec
from kapelle.domain.task import CheckResult
from kapelle.engine.parts import Parts
from kapelle.engine.processes.container import begin_container, script_of
from kapelle.engine.processes.environment import (
    Origin,
    Variables,
    agent_environment,
    build_agent_command,
    explain_omitted,
    map_into_worktree,
    select_variables,
)
from kapelle.engine.processes.output import MAX_OUTPUT, SideLog, check_result
from kapelle.runner.output import read_both_streams
from kapelle.runner.process_dir import Launch, Process, ProcessEnd
from kapelle.secrets.detection import collect_server_values
from kapelle.settings import Settings
from kapelle.workspaces import checkouts_around

# Messages of other shells about syntax that only bash has.
_BASH = re.compile(r"Bad substitution|Illegal option -o pipefail|\[\[: not found")


@dataclass(frozen=True)
class ProcessLocation:
    """The directory, the variables and the settings of an owner's processes.

    The owner is an attempt, a run or a merge.
    """

    parts: Parts
    settings: Settings
    owner: str
    cwd: Path
    env: Mapping[str, str]
    origin: Origin

    def in_copy(self, copy: Path) -> "ProcessLocation":
        """Return the location inside a copy of the worktree.

        Paths that lead into the worktree lead into the copy instead.
        """
        worktree = self.origin.worktree
        assert worktree is not None
        checkouts = (*self.origin.checkouts, worktree)
        origin = replace(self.origin, checkouts=checkouts, worktree=copy)
        return replace(self, cwd=copy / self.cwd.relative_to(worktree), origin=origin)

    def at(self, work: str, directory: str | None) -> "ProcessLocation":
        """Return the location in another directory, relative to the directory of the work.

        Raises WorkspaceError if that directory is outside the repository.
        """
        if directory is None:
            return self
        target = Path(os.path.normpath(os.path.join(os.path.realpath(work), directory)))
        worktree = self.origin.worktree
        if worktree is not None:
            top = next(iter(checkouts_around(Path(work))), target)
            if not target.is_relative_to(top):
                raise WorkspaceError(
                    f"The directory {directory} of a check is outside the repository."
                )
            # The same place inside the worktree.
            target = worktree / target.relative_to(top)
        return replace(self, cwd=target)

    @property
    def variables(self) -> Variables:
        """Return the variables of a shell command that runs beside the agents."""
        base = select_variables(
            self.parts.environ, self.settings.environment.pass_, self.origin.shell
        )
        return map_into_worktree(base | self.settings.environment.set | dict(self.env), self.origin)

    async def command(self, process: Process, command: str, timeout_s: float, label: str) -> Launch:
        """Build the launch of a shell command: a check, a score or a set-up."""
        script = await begin_container(self.parts, self.settings, self.origin.worktree)
        argv = ["/bin/sh", "-c", command]
        if script:
            argv.insert(0, str(script))
        how = {"timeout_s": timeout_s, "label": label}
        # An agent may have written its secrets into files that the command prints.
        agents = self.settings.agents.values()
        servers = [*self.settings.mcp.values()]
        for agent in agents:
            servers += agent.mcp.values()
        secrets = [*(agent.env for agent in agents), *collect_server_values(servers)]
        return self._launch(process, argv, self.variables.values, *secrets, cwd=self.cwd, **how)

    async def judge_check(self, check: CheckSpec, process: Process, end: ProcessEnd) -> CheckResult:
        """Return the result of a check whose command has ended here."""
        output = await asyncio.to_thread(read_both_streams, process.directory, MAX_OUTPUT)
        if not end.succeeded:
            output = await asyncio.to_thread(self.with_hints, output, check.command or "")
        return check_result(check, end, output).model_copy(update={"directory": str(self.cwd)})

    def with_hints(self, output: str, command: str) -> str:
        """Return the output of a failed command with hints about the environment."""
        shell = self.origin.shell
        variables = self.variables
        words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", f"{command}\n{output}"))
        missing = []
        if shell:
            missing = [name for name in shell.dropped if name in words]
        hints = []
        if variables.omitted:
            hints.append(explain_omitted(variables.omitted))
        hints += [f"In the worktree, {entry}." for entry in variables.mapped]
        if self._lacks_modules():
            hints.append(
                "node_modules exists in your checkout but not in the worktree: let workspace.setup "
                "install it, for example with npm ci."
            )
        if missing:
            hints.append(
                f"Set in your shell but not passed on: {', '.join(missing)}. Add --env "
                f"{missing[0]}, or `kapelle config set environment.pass '[\"{missing[0]}\"]'`."
            )
        if _BASH.search(output):
            hints.append("Commands run under /bin/sh. For bash, write bash -o pipefail -c '…'.")
        return "\n".join([output.rstrip("\n"), *(f"[{hint}]" for hint in hints)]).lstrip("\n")

    def _lacks_modules(self) -> bool:
        """Return whether node_modules is missing here but present in the checkout."""
        worktree = self.origin.worktree
        if worktree is None or not self.cwd.is_relative_to(worktree):
            return False
        inside = self.cwd.relative_to(worktree)
        is_missing = not os.path.lexists(self.cwd / "node_modules")
        is_node = (self.cwd / "package.json").is_file()
        is_in_checkout = any(
            (top / inside / "node_modules").is_dir() for top in self.origin.checkouts
        )
        return is_node and is_missing and is_in_checkout

    def agent(
        self,
        process: Process,
        agent: AgentAdapter,
        request: AgentRequest,
        timeout_s: float | None,
        label: str,
        terminal: tuple[int, int] | None = None,
    ) -> tuple[Launch, SideLog | None]:
        """Return the launch of an agent, and where the agent keeps a log of its own.

        Everything that the agent needs is written into the directory of its prompt file.
        """
        parts = self.parts
        settings = self.settings
        env = dict(self.env)
        base = agent_environment(parts.environ, settings, agent, self.origin)
        command, side_log = build_agent_command(agent, replace(request, environ=base | env))
        variables = map_into_worktree(base | command.env | env, self.origin).values
        # The agent itself runs outside of the container, and calls the script for its commands.
        if script := script_of(parts.home, settings, self.origin.worktree):
            path = variables.get("PATH", os.defpath)
            variables["PATH"] = os.pathsep.join([str(script.parent), path])
        secrets = collect_server_values(request.mcp_servers.values())
        how = {"timeout_s": timeout_s, "label": label, "terminal": terminal}
        launch = self._launch(
            process,
            command.argv,
            variables,
            *secrets,
            cwd=request.workspace,
            stdin=command.stdin,
            **how,
        )
        return launch, side_log

    def _launch(
        self,
        process: Process,
        argv: list[str],
        variables: dict[str, str],
        *secrets: Mapping[str, str],
        **how: Any,
    ) -> Launch:
        redact = self.parts.spell_secrets([self.owner], variables, *secrets)
        grace_s = self.settings.tasks.grace_s
        how |= {"env": variables, "grace_s": grace_s, "redact": redact}
        return Launch(process.directory, argv, secret=process.secret, **how)
