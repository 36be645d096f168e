"""The agent that an attempt launches, put together from task, agent and settings."""

from dataclasses import dataclass

from kapelle.agents.base import Agent, AgentRequest
from kapelle.domain.budget import money_spent
from kapelle.domain.errors import KapelleError, LimitReached
from kapelle.domain.ids import attempt_token
from kapelle.engine.environment import agent_environment
from kapelle.engine.launch import launch_agent
from kapelle.engine.tasks.accounts import stored_credential
from kapelle.engine.tasks.attempt import Attempt
from kapelle.engine.tasks.brief import brief
from kapelle.engine.tasks.consult import choose_model, diagnose
from kapelle.engine.tasks.watch import Limits, limits_of
from kapelle.runner.process_dir import Launch


@dataclass(frozen=True)
class Ready:
    """An agent that can be started."""

    launch: Launch
    agent: Agent | None  # None when it was started before and is not configured any more
    limits: Limits


async def launch(attempt: Attempt) -> Ready:
    """What to run for an attempt; raises when the agent is not known or not set up."""
    parts, agent, limits = attempt.parts, attempt.agent(), await limits_of(attempt)
    if limits.budget_left_usd == 0:
        raise LimitReached(money_spent(limits.budget_usd or 0))
    token = attempt_token(parts.secret, attempt.id)
    made = launch_agent(
        parts,
        attempt.settings,
        agent,
        await _request(attempt, agent, limits),
        attempt.id,
        env=attempt.env | {"KAPELLE_URL": parts.url, "KAPELLE_TOKEN": token},
        timeout_s=attempt.timeout_s,
        label=f"{attempt.agent_name} for {attempt.task_id}",
    )
    return Ready(made, agent, limits)


async def _request(attempt: Attempt, agent: Agent, limits: Limits) -> AgentRequest:
    parts, task, settings, own = attempt.parts, attempt.task, attempt.settings, agent.settings
    briefing = await brief(attempt, agent, await diagnose(attempt))
    # A model was named for the task's own agent; another one that takes over has its own.
    named = task["model"] if attempt.agent_name == task["agent"] else None
    choice = await choose_model(attempt, own)
    model = named or (choice.model if choice else own.model)
    if model or briefing.session_id:
        reason = choice.reason if choice else None
        await attempt.update(model=model, model_reason=reason, started_from=briefing.session_id)
    return AgentRequest(
        prompt=briefing.prompt,
        workspace=attempt.directory,
        prompt_file=attempt.process_dir / "prompt",
        settings=own,
        system_prompt=task["system_prompt"] if agent.capabilities.system_prompt else None,
        model=model if agent.capabilities.model else None,
        session_id=briefing.session_id,
        fork=briefing.fork,
        attempt_number=attempt.number,
        max_turns=limits.max_turns,
        budget_usd=limits.budget_left_usd,
        mcp_servers={**settings.mcp, **own.mcp, **parts.secrets.mcp(attempt.task_id)},
        environ=agent_environment(parts.environ, settings, agent, {}) | attempt.task_env,
        credential=stored_credential(parts, agent, settings, attempt.task_env),
        answer=attempt.message if briefing.asked else None,
    )


async def launch_again(attempt: Attempt) -> Ready:
    """Enough to find a process that was started before: what runs there was decided then."""
    found = Launch(
        process_dir=attempt.process_dir,
        argv=[],
        cwd=attempt.directory,
        env={},
        timeout_s=attempt.timeout_s,
        grace_s=attempt.settings.tasks.grace_s,
        label=attempt.task_id,
    )
    try:
        agent = attempt.agent()
    except KapelleError:
        agent = None
    return Ready(found, agent, await limits_of(attempt))
