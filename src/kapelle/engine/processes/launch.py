"""Build the processes of attempts and runs: agents and shell commands."""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kapelle.agents.base import AgentAdapter, AgentFiles, AgentRequest
from kapelle.domain.errors import WorkspaceError
from kapelle.domain.specs import CheckSpec
from kapelle.domain.task import CheckResult
from kapelle.engine.parts import Parts
from kapelle.engine.processes.confinement import (
    WITH_MOUNTS,
    ConfinedPlace,
    ConfinementPolicy,
    explain_refusals,
    find_refusals,
)
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
from kapelle.engine.processes.shares import share_directories
from kapelle.runner.output import read_both_streams
from kapelle.runner.process_dir import Launch, Process, ProcessEnd
from kapelle.runner.shim.request import Confinement
from kapelle.secrets.detection import collect_server_values
from kapelle.settings import Settings
from kapelle.workspaces import checkouts_around, list_borrowed_objects

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
    # The name of the workspace that this location is a copy of.
    copied_from: str | None = None

    def in_copy(self, copy: Path) -> "ProcessLocation":
        """Return the location inside a copy of the worktree.

        Paths that lead into the worktree lead into the copy instead.
        """
        worktree = self.origin.worktree
        assert worktree is not None
        checkouts = (*self.origin.checkouts, worktree)
        origin = replace(self.origin, checkouts=checkouts, worktree=copy)
        cwd = copy / self.cwd.relative_to(worktree)
        return replace(self, cwd=cwd, origin=origin, copied_from=worktree.name)

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
    def rung(self) -> str | None:
        """Return by which means its processes are confined; None if they are not.

        Raises WorkspaceError if they cannot be confined as the settings demand.
        """
        return self.parts.confiner.choose_rung(self.settings.confine)

    @property
    def top(self) -> Path:
        """Return the directory on the disk in which its processes may write."""
        if self.origin.worktree is not None:
            return self.origin.worktree
        return next(iter(checkouts_around(self.cwd)), self.cwd)

    @property
    def seen_top(self) -> Path:
        """Return the path at which its processes see that directory.

        Where mounts are possible, a workspace stands at the path of the person's checkout.
        """
        has_mounts = self.rung in WITH_MOUNTS
        if has_mounts and self.origin.worktree is not None and self.origin.checkouts:
            return self.origin.checkouts[0]
        return self.top

    def see(self, path: Path) -> Path:
        """Return the path at which its processes see a path on the disk."""
        if path.is_relative_to(self.top):
            return self.seen_top / path.relative_to(self.top)
        return path

    @property
    def variables(self) -> Variables:
        """Return the variables of a shell command that runs beside the agents."""
        base = select_variables(
            self.parts.environ, self.settings.environment.pass_, self.origin.shell
        )
        return self._map(base | self.settings.environment.set | dict(self.env))

    def _map(self, variables: Mapping[str, str]) -> Variables:
        """Return variables that lead into the workspace and not into the checkout."""
        if self.seen_top != self.top:
            # At its path the processes find the workspace.
            return Variables(dict(variables), [], [])
        return map_into_worktree(variables, self.origin)

    async def command(
        self,
        process: Process,
        command: str,
        timeout_s: float,
        label: str,
        *,
        keeps_changes: bool = False,
    ) -> Launch:
        """Build the launch of a shell command: a check, a score or a set-up.

        With `keeps_changes`, the next processes of the workspace see what the command changes in
        shared directories; only a set-up does that. Raises WorkspaceError if the command cannot
        be confined as the settings demand.
        """
        script = await begin_container(self.parts, self.settings, self.origin.worktree)
        argv = ["/bin/sh", "-c", command]
        if script:
            argv.insert(0, str(script))
        how: dict[str, Any] = {"timeout_s": timeout_s, "label": label}
        # An agent may have written its secrets into files that the command prints.
        agents = self.settings.agents.values()
        servers = [*self.settings.mcp.values()]
        for agent in agents:
            servers += agent.mcp.values()
        secrets = [*(agent.env for agent in agents), *collect_server_values(servers)]
        confined = self._confine(
            process, argv, self.variables.values, self.cwd, is_alone=not keeps_changes
        )
        return self._launch(process, argv, confined, *secrets, **how)

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
        if self.rung is not None and (paths := find_refusals(output, self.seen_top)):
            hints.append(explain_refusals(paths))
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
        directory = request.workspace
        request = replace(request, workspace=self.see(directory), environ=base | env)
        command, side_log = build_agent_command(agent, request)
        variables = self._map(base | command.env | env).values
        # The agent itself runs outside of the container, and calls the script for its commands.
        if script := script_of(parts.home, settings, self.origin.worktree):
            path = variables.get("PATH", os.defpath)
            variables["PATH"] = os.pathsep.join([str(script.parent), path])
        secrets = collect_server_values(request.mcp_servers.values())
        writable = [process.directory]
        if request.messages is not None:
            writable.append(request.messages)
        if request.session_id and os.path.isabs(request.session_id):
            # Some agents keep a session in a file beside the prompt of its first attempt.
            writable.append(Path(request.session_id))
        confined = self._confine(
            process,
            command.argv,
            variables,
            directory,
            agent=agent.files_in(variables),
            shown=[Path(path) for path in agent.access.login_files],
            writable=writable,
            is_read_only=request.read_only,
        )
        how = {"timeout_s": timeout_s, "label": label, "terminal": terminal}
        launch = self._launch(process, command.argv, confined, *secrets, stdin=command.stdin, **how)
        return launch, side_log

    def _confine(
        self,
        process: Process,
        argv: list[str],
        variables: Mapping[str, str],
        directory: Path,
        *,
        agent: AgentFiles = AgentFiles(),  # noqa: B008 - it is frozen
        shown: Sequence[Path] = (),
        writable: Sequence[Path] = (),
        is_read_only: bool = False,
        is_alone: bool = False,
    ) -> "ConfinedLaunch":
        """Return the directory, the variables and the confinement of a process.

        What a process that is alone changes in shared directories, no other process sees.
        """
        rung = self.rung
        if rung is None:
            return ConfinedLaunch(directory, dict(variables), None)
        home = self.parts.home
        tmp = home.scratch / self.owner
        tmp.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in writable:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Kapelle itself has named these files to the process.
        named = [Path(word) for word in argv if os.path.isabs(word) and os.path.exists(word)]
        program = shutil.which(argv[0], path=variables.get("PATH"))
        if program is not None:
            named += [Path(program).parent, Path(os.path.realpath(program)).parent]
        policy = ConfinementPolicy(
            self.settings.confine,
            person_home=Path(variables.get("HOME") or Path.home()),
            kapelle_home=home.root,
            kapelle_config=home.config.parent,
            variables=variables,
            agent=agent,
        )
        place = ConfinedPlace(
            workspace=self.top,
            path=self.seen_top,
            tmp=tmp,
            shown=(*shown, *named),
            writable=tuple(writable),
            objects=self._list_objects(),
            overlays=self._share(rung, process if is_alone else None),
            is_read_only=is_read_only and self.origin.worktree is None,
            has_own_repository=self.origin.worktree is not None,
        )
        env = dict(variables)
        env["KAPELLE_CONFINED"] = rung
        if rung in WITH_MOUNTS:
            env["TMPDIR"] = "/tmp"
        else:
            env["TMPDIR"] = str(tmp)
        return ConfinedLaunch(self.see(directory), env, policy.confine(rung, place))

    def _share(
        self, rung: str, process: Process | None
    ) -> tuple[tuple[tuple[Path, ...], Path, Path, Path], ...]:
        """Prepare the directories that the workspace shares with the checkout."""
        if rung != "namespaces" or self.seen_top == self.top:
            return ()
        shares = share_directories(
            self.settings.workspace,
            checkout=self.seen_top,
            workspace=self.top,
            seen_top=self.seen_top,
            storage=self.parts.home.shares / (self.copied_from or self.top.name),
            process=process.directory.name if process is not None else None,
        )
        return tuple((share.layers, share.changes, share.work, share.path) for share in shares)

    def _list_objects(self) -> tuple[tuple[Path, Path], ...]:
        if self.origin.worktree is None or not self.origin.checkouts:
            return ()
        return tuple(list_borrowed_objects(self.origin.worktree, self.origin.checkouts[0]))

    def _launch(
        self,
        process: Process,
        argv: list[str],
        confined: "ConfinedLaunch",
        *secrets: Mapping[str, str],
        **how: Any,
    ) -> Launch:
        redact = self.parts.spell_secrets([self.owner], confined.variables, *secrets)
        return Launch(
            process.directory,
            argv,
            cwd=confined.directory,
            env=confined.variables,
            grace_s=self.settings.tasks.grace_s,
            redact=redact,
            confinement=confined.confinement,
            secret=process.secret,
            **how,
        )


@dataclass(frozen=True)
class ConfinedLaunch:
    """Where a process starts, with which variables, and what it may reach."""

    directory: Path
    variables: dict[str, str]
    confinement: Confinement | None
