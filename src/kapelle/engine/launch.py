"""How agents and shell commands are launched as processes of attempts and runs."""

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
from kapelle.engine.container import begin_container, script_of
from kapelle.engine.environment import (
    Origin,
    Variables,
    agent_command,
    agent_environment,
    in_worktree,
    left_out,
    passed,
)
from kapelle.engine.output import SHOWN_OUTPUT, SideLog, check_result
from kapelle.engine.parts import Parts
from kapelle.runner.output import read_both_streams
from kapelle.runner.process_dir import Launch, Process, ProcessEnd
from kapelle.secrets.detection import collect_server_values
from kapelle.settings import Settings
from kapelle.workspaces import checkouts_around

# What a shell that is not bash says of bash's own words.
_BASH = re.compile(r"Bad substitution|Illegal option -o pipefail|\[\[: not found")


@dataclass(frozen=True)
class ProcessLocation:
    """Where processes of an attempt, a run or a merge, their owner, work, and what they see."""

    parts: Parts
    settings: Settings
    owner: str
    cwd: Path
    env: Mapping[str, str]
    origin: Origin

    def in_copy(self, copy: Path) -> "ProcessLocation":
        """The same in a copy of the worktree: what leads into that leads into the copy."""
        worktree = self.origin.worktree
        assert worktree is not None
        checkouts = (*self.origin.checkouts, worktree)
        origin = replace(self.origin, checkouts=checkouts, worktree=copy)
        return replace(self, cwd=copy / self.cwd.relative_to(worktree), origin=origin)

    def at(self, work: str, directory: str | None) -> "ProcessLocation":
        """Return the same place in another directory, relative to that of the work.

        Raises WorkspaceError if that directory is not in the repository.
        """
        if directory is None:
            return self
        target = Path(os.path.normpath(os.path.join(os.path.realpath(work), directory)))
        worktree = self.origin.worktree
        if worktree is not None:
            top = next(iter(checkouts_around(Path(work))), target)
            if not target.is_relative_to(top):
                raise WorkspaceError(f"The directory {directory} of a check leaves the repository.")
            target = worktree / target.relative_to(top)
        return replace(self, cwd=target)

    @property
    def variables(self) -> Variables:
        """What a shell command beside the agents sees."""
        base = passed(self.parts.environ, self.settings.environment.pass_, self.origin.shell)
        return in_worktree(base | self.settings.environment.set | dict(self.env), self.origin)

    async def command(self, process: Process, command: str, timeout_s: float, label: str) -> Launch:
        """A shell command beside the agents: a check, a score, or a workspace's set-up."""
        script = await begin_container(self.parts, self.settings, self.origin.worktree)
        argv = [*([str(script)] if script else []), "/bin/sh", "-c", command]
        how = {"timeout_s": timeout_s, "label": label}
        # An agent may have written its secrets into files that the command prints.
        agents = self.settings.agents.values()
        groups = [self.settings.mcp, *(agent.mcp for agent in agents)]
        servers = [server for group in groups for server in group.values()]
        secrets = [*(agent.env for agent in agents), *collect_server_values(servers)]
        return self._launch(process, argv, self.variables.values, *secrets, cwd=self.cwd, **how)

    async def judged(self, check: CheckSpec, process: Process, ended: ProcessEnd) -> CheckResult:
        """What a command says that is a check, made here."""
        output = await asyncio.to_thread(read_both_streams, process.directory, SHOWN_OUTPUT)
        if not ended.succeeded:
            output = await asyncio.to_thread(self.with_hints, output, check.command or "")
        return check_result(check, ended, output).model_copy(update={"directory": str(self.cwd)})

    def with_hints(self, output: str, command: str) -> str:
        """The output of a failed command, and below it what it may have missed here."""
        shell = self.origin.shell
        variables = self.variables
        words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", f"{command}\n{output}"))
        missing = [name for name in (shell.dropped if shell else ()) if name in words]
        if variables.omitted:
            found = [left_out(variables.omitted)]
        else:
            found = []
        found += [f"In the worktree, {entry}." for entry in variables.mapped]
        if self._lacks_modules():
            found.append(
                "node_modules is in your checkout and not in the worktree: let workspace.setup "
                "make it, for example by npm ci."
            )
        if missing:
            found.append(
                f"Set in your shell and not passed on: {', '.join(missing)}. Add --env "
                f"{missing[0]}, or `kapelle config set environment.pass '[\"{missing[0]}\"]'`."
            )
        if _BASH.search(output):
            found.append("Commands run under /bin/sh: for bash, write bash -o pipefail -c '…'.")
        return "\n".join([output.rstrip("\n"), *(f"[{hint}]" for hint in found)]).lstrip("\n")

    def _lacks_modules(self) -> bool:
        """Return whether node_modules is missing here, and is there in the checkout."""
        worktree = self.origin.worktree
        if worktree is None or not self.cwd.is_relative_to(worktree):
            return False
        inside = self.cwd.relative_to(worktree)
        is_missing = not os.path.lexists(self.cwd / "node_modules")
        is_node = (self.cwd / "package.json").is_file()
        known = any((top / inside / "node_modules").is_dir() for top in self.origin.checkouts)
        return is_node and is_missing and known

    def agent(
        self,
        process: Process,
        agent: AgentAdapter,
        request: AgentRequest,
        timeout_s: float | None,
        label: str,
        terminal: tuple[int, int] | None = None,
    ) -> tuple[Launch, SideLog | None]:
        """Return how to start an agent, and where it keeps a log of its own.

        All that the agent needs is written into the directory of its prompt file.
        """
        parts = self.parts
        settings = self.settings
        env = dict(self.env)
        base = agent_environment(parts.environ, settings, agent, self.origin)
        command, side_log = agent_command(agent, replace(request, environ=base | env))
        variables = in_worktree(base | command.env | env, self.origin).values
        if script := script_of(parts.home, settings, self.origin.worktree):
            path = variables.get("PATH", os.defpath)
            variables["PATH"] = os.pathsep.join([str(script.parent), path])
        secrets = collect_server_values(request.mcp_servers.values())
        how = {"timeout_s": timeout_s, "label": label, "terminal": terminal}
        launch = self._launch(
            process, command.argv, variables, *secrets,
            cwd=request.workspace, stdin=command.stdin, **how,
        )  # fmt: skip
        return launch, side_log

    def _launch(
        self,
        process: Process,
        argv: list[str],
        variables: dict[str, str],
        *secrets: Mapping[str, str],
        **how: Any,
    ) -> Launch:
        redact = self.parts.known_secrets([self.owner], variables, *secrets)
        grace_s = self.settings.tasks.grace_s
        how |= {"env": variables, "grace_s": grace_s, "redact": redact}
        return Launch(process.directory, argv, secret=process.secret, **how)
