"""The command that an attempt runs, put together from task, agent and settings."""

from dataclasses import dataclass

from kapelle.agents.base import Agent, AgentRequest
from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import KapelleError, LimitReached
from kapelle.domain.ids import attempt_token
from kapelle.engine.environment import agent_command, agent_environment, passed
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.accounts import credential
from kapelle.engine.tasks.brief import brief
from kapelle.engine.tasks.consult import choose_model, diagnose
from kapelle.engine.tasks.watch import Limits, limits_of
from kapelle.engine.tasks.work import Work
from kapelle.runner.process_dir import Launch
from kapelle.secrets import server_secrets
from kapelle.settings import AgentSettings
from kapelle.store import attempts


@dataclass(frozen=True)
class Ready:
    """An agent that can be started."""

    launch: Launch
    agent: Agent | None  # None when it was started before and is not configured any more
    limits: Limits
    chose: bool  # whether a model or a session was chosen, and is in the attempt's row


async def launch_agent(parts: Parts, work: Work) -> Ready:
    """What to run for an attempt; raises when the agent is not known or not set up."""
    agent = get_agent(work.agent, work.settings)
    limits = await limits_of(parts, work)
    if limits.budget_left_usd == 0:
        raise LimitReached(f"Its budget of ${limits.budget_usd:g} is spent.")
    request = await _request(parts, work, agent, limits)
    command = agent_command(agent, request)
    env = agent_environment(parts.environ, work.settings, agent, command.env)
    env |= work.task_env | work.marks
    env |= {"KAPELLE_URL": parts.url, "KAPELLE_TOKEN": attempt_token(parts.secret, work.attempt_id)}
    launch = Launch(
        process_dir=work.process_dir,
        argv=command.argv,
        cwd=work.directory,
        env=env,
        stdin=command.stdin,
        timeout_s=work.timeout_s,
        grace_s=work.settings.tasks.grace_s,
        redact=parts.redactions(
            work.attempt_id, env, *server_secrets(request.mcp_servers.values())
        ),
        label=f"{work.agent} for {work.task_id}",
    )
    return Ready(launch, agent, limits, bool(request.model or request.session_id))


async def _request(parts: Parts, work: Work, agent: Agent, limits: Limits) -> AgentRequest:
    task, settings = work.task, work.settings
    own = settings.agents.get(work.agent) or AgentSettings()
    told = await brief(parts, work, agent, await diagnose(parts, work))
    # A model was named for the task's own agent; another one that takes over has its own.
    named = task["model"] if work.agent == task["agent"] else None
    choice = await choose_model(parts, work)
    model = named or (choice.model if choice else own.model)
    if model or told.session_id:
        await parts.db.write(
            attempts.update,
            work.attempt_id,
            model=model,
            model_reason=choice.reason if choice else None,
            started_from=told.session_id,
        )
    found = credential(parts, agent, settings, work.task_env)
    return AgentRequest(
        prompt=told.prompt,
        workspace=work.directory,
        prompt_file=work.process_dir / "prompt",
        settings=own,
        system_prompt=task["system_prompt"] if agent.capabilities.system_prompt else None,
        model=model if agent.capabilities.model else None,
        session_id=told.session_id,
        fork=told.fork,
        attempt_number=work.number,
        max_turns=limits.max_turns,
        budget_usd=limits.budget_left_usd,
        mcp_servers={**settings.mcp, **own.mcp, **parts.secrets.mcp(work.task_id)},
        environ=agent_environment(parts.environ, settings, agent, {}) | work.task_env,
        credential=found.value if found.source == "stored" else None,
        answer=work.message if told.asked else None,
    )


async def launch_again(parts: Parts, work: Work) -> Ready:
    """Enough to find a run that was started before: what runs there was decided then."""
    launch = Launch(
        process_dir=work.process_dir,
        argv=[],
        cwd=work.directory,
        env={},
        timeout_s=work.timeout_s,
        grace_s=work.settings.tasks.grace_s,
        label=work.task_id,
    )
    try:
        agent = get_agent(work.agent, work.settings)
    except KapelleError:
        agent = None
    return Ready(launch, agent, await limits_of(parts, work), chose=False)


def launch_command(parts: Parts, work: Work, name: str, command: str, timeout_s: float) -> Launch:
    """A shell command beside the agent: a check or the workspace's set-up."""
    env = passed(parts.environ, work.settings.environment.pass_)
    env |= work.settings.environment.set | work.task_env | work.marks
    return Launch(
        process_dir=work.process_dir / name,
        argv=["/bin/sh", "-c", command],
        cwd=work.directory,
        env=env,
        timeout_s=timeout_s,
        grace_s=work.settings.tasks.grace_s,
        redact=parts.redactions(work.attempt_id, env),
        label=f"{name} of {work.task_id}",
    )
