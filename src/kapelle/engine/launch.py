"""How agents and shell commands are launched as processes of attempts and runs."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kapelle.agents.base import Agent, AgentRequest
from kapelle.engine.container import begin_container, script_of
from kapelle.engine.environment import (
    Origin,
    Variables,
    agent_command,
    agent_environment,
    in_worktree,
    passed,
)
from kapelle.engine.parts import Parts
from kapelle.runner.process_dir import Launch, Process
from kapelle.secrets import server_secrets
from kapelle.settings import Settings


def launch_agent(
    parts: Parts,
    settings: Settings,
    agent: Agent,
    request: AgentRequest,
    owner: str,
    *,
    process: Process,
    env: Mapping[str, str],
    timeout_s: float | None,
    label: str,
    origin: Origin,
    terminal: tuple[int, int] | None = None,
) -> Launch:
    """An agent in the directory of its prompt file, where all that it needs is written first."""
    base = agent_environment(parts.environ, settings, agent, origin)
    command = agent_command(agent, replace(request, environ=base | dict(env)))
    variables = in_worktree(base | command.env | dict(env), origin).values
    if script := script_of(parts.home, settings, origin.worktree):
        variables["PATH"] = os.pathsep.join([str(script.parent), variables.get("PATH", os.defpath)])
    secrets = server_secrets(request.mcp_servers.values())
    return Launch(
        process_dir=process.directory,
        secret=process.secret,
        argv=command.argv,
        cwd=request.workspace,
        env=variables,
        stdin=command.stdin,
        timeout_s=timeout_s,
        grace_s=settings.tasks.grace_s,
        redact=parts.redactions(owner, variables, *secrets),
        label=label,
        terminal=terminal,
    )


def command_variables(
    parts: Parts, settings: Settings, env: Mapping[str, str], origin: Origin
) -> Variables:
    """What a shell command beside the agents sees."""
    base = passed(parts.environ, settings.environment.pass_, origin.shell)
    return in_worktree(base | settings.environment.set | dict(env), origin)


async def launch_command(
    parts: Parts,
    settings: Settings,
    command: str,
    owner: str,
    *,
    process: Process,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    label: str,
    origin: Origin,
) -> Launch:
    """A shell command beside the agents: a check, a score, or a workspace's set-up."""
    variables = command_variables(parts, settings, env, origin).values
    script = await begin_container(parts, settings, origin.worktree)
    return Launch(
        process_dir=process.directory,
        secret=process.secret,
        argv=[*([str(script)] if script else []), "/bin/sh", "-c", command],
        cwd=cwd,
        env=variables,
        timeout_s=timeout_s,
        grace_s=settings.tasks.grace_s,
        redact=parts.redactions(owner, variables),
        label=label,
    )
