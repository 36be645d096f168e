"""An attempt from beginning to end: prepare, launch, watch, verify, settle. After a crash it is
performed again from the top, and every phase finds what was done: a claimed process directory,
finished checks, a settled row."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kapelle.agents.base import AgentAdapter, AgentRequest
from kapelle.domain.budget import money_spent
from kapelle.domain.errors import KapelleError, LimitReached, Tampered, Unavailable
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.outcome import Evidence
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.engine import messages
from kapelle.engine.container import begin_container
from kapelle.engine.parts import Parts
from kapelle.engine.retry import with_retries
from kapelle.engine.tasks import browser
from kapelle.engine.tasks.accounts import credential
from kapelle.engine.tasks.attempt import AGENT, ActiveAttempt, ClaimLost
from kapelle.engine.tasks.brief import brief
from kapelle.engine.tasks.consult import choose_model, diagnose
from kapelle.engine.tasks.prepare import prepare
from kapelle.engine.tasks.settle import conclude
from kapelle.engine.tasks.verify import verify
from kapelle.engine.tasks.watch import AttemptLimits, limits_of, watched
from kapelle.runner.process_dir import Launch
from kapelle.runner.shim.failpoints import failpoint
from kapelle.workspaces import wanted

_log = logging.getLogger("kapelle.attempts")
# The size that a terminal has until somebody attaches to it.
_TERMINAL = (24, 80)


async def perform(parts: Parts, attempt_id: str) -> None:
    """Perform an attempt from its beginning, or from where a crash left it, to its end."""
    with parts.register_performer(attempt_id):
        failpoint("perform_begin")
        try:
            evidence = await _work(parts, attempt_id)
            failpoint("perform_after_verify")
            await with_retries(conclude)(parts, attempt_id, evidence)
            failpoint("perform_end")
        except ClaimLost:
            # It was settled just before a crash, or another performer took it over.
            _log.info("%s is left alone: it is not this daemon's any more", attempt_id)


async def _work(parts: Parts, attempt_id: str) -> Evidence:
    """Prepare the workspace, run the agent, verify its work."""
    attempt = None
    try:
        attempt = await with_retries(ActiveAttempt.load)(parts, attempt_id)
        wanted.set(attempt.is_wanted)
        if not attempt.is_started:
            # An agent that was started before a crash has its workspace to itself.
            await with_retries(prepare)(attempt)
        failpoint("perform_after_prepare")
        end = await with_retries(_run)(attempt)
    except Unavailable:
        raise
    except KapelleError as error:
        if attempt is not None:
            await browser.stop(attempt)
        return _not_possible(error)
    failpoint("perform_after_run")
    return await with_retries(verify)(attempt, end)


async def _run(attempt: ActiveAttempt) -> Evidence:
    """Start the agent, or find the one that was started before a crash, and wait for its end."""
    limits = await limits_of(attempt)
    agent = None
    if not attempt.is_started:
        agent = attempt.agent()
        launch = await _launch(attempt, agent, limits)
    else:
        launch = _relaunch(attempt)
        with suppress(KapelleError):  # it is not configured any more, so nobody can watch it
            agent = attempt.agent()
    failpoint("run_before_execute")
    try:
        async with watched(attempt, agent, limits):
            ended = await attempt.execute(AGENT, launch)
    except Tampered as error:
        return Evidence(Exit(kind="tampered"), detail=error.message)
    except FileNotFoundError:
        return Evidence(Exit(kind="lost"), detail="its process directory was deleted while it ran")
    failpoint("run_after_execute")
    timed_out = ended.ended_by == "timeout"
    return Evidence(
        exit=ended.exit,
        timed_out=timed_out,
        detail=ended.ending(attempt.timeout_s) if timed_out else ended.detail,
        output_bytes=ended.out_bytes + ended.err_bytes,
    )


async def _launch(attempt: ActiveAttempt, agent: AgentAdapter, limits: AttemptLimits) -> Launch:
    """What to run for an attempt; raises when the agent is not set up or nothing is left."""
    parts = attempt.parts
    if limits.budget_left_usd == 0:
        raise LimitReached(money_spent(limits.budget_usd or 0))
    place = attempt.agent_place
    await begin_container(parts, attempt.settings, place.origin.worktree)
    place = replace(
        place, env=attempt.env | {"KAPELLE_URL": parts.url, "KAPELLE_TOKEN": attempt.token}
    )
    request = await _request(attempt, agent, limits)
    label = f"{attempt.agent_name} for {attempt.task_id}"
    if attempt.task["interactive"]:
        terminal = _TERMINAL
    else:
        terminal = None
    launch, side_log = place.agent(
        attempt.processes[AGENT], agent, request, attempt.timeout_s, label, terminal
    )
    if side_log is not None:
        side_log = await asyncio.to_thread(side_log.after_present)
        await attempt.update(side_log=side_log.model_dump())
    return launch


async def _request(
    attempt: ActiveAttempt, agent: AgentAdapter, limits: AttemptLimits
) -> AgentRequest:
    parts = attempt.parts
    task = attempt.task
    settings = attempt.settings
    own = agent.settings
    briefing = await brief(attempt, agent, await diagnose(attempt))
    # A model was named for the task's own agent; another one that takes over has its own.
    if attempt.agent_name == task["agent"]:
        named = task["model"]
    else:
        named = None
    chosen, reason = await choose_model(attempt, own)
    model = named or chosen
    if model or briefing.session_id:
        await attempt.update(model=model, model_reason=reason, started_from=briefing.session_id)
    return AgentRequest(
        prompt=briefing.prompt + browser.told(attempt),
        workspace=attempt.agent_place.cwd,
        prompt_file=attempt.process_dir / "prompt",
        settings=own,
        system_prompt=task["system_prompt"] if agent.capabilities.system_prompt else None,
        model=model if agent.capabilities.model else None,
        session_id=briefing.session_id,
        fork=briefing.fork,
        attempt_number=attempt.number,
        # A person in a terminal ends it; nobody can count there.
        max_turns=None if task["interactive"] else limits.max_turns,
        budget_usd=None if task["interactive"] else limits.budget_left_usd,
        tools=task["tools"] if attempt.agent_name == task["agent"] else (),
        read_only=attempt.is_read_only,
        mcp_servers={
            **settings.mcp,
            **own.mcp,
            **parts.secrets.mcp(attempt.task_id),
            **_own_tools(attempt),
            **(browser.tools(attempt) if agent.capabilities.mcp else {}),
        },
        credential=credential(parts, agent, settings, attempt.task_env).stored,
        answer=attempt.message if briefing.asked else None,
        messages=messages.folder_of(parts, attempt.id),
        message_key=messages.key_of(parts, attempt.id),
        checkout=Path(task["directory"]),
        daemon={"url": parts.url, "token": attempt.token} if attempt.shares_files else None,
    )


def _own_tools(attempt: ActiveAttempt) -> dict[str, McpServer]:
    """Kapelle's own tools, called with the token of the attempt; the port outlives the daemon."""
    if not attempt.task["coordinate"]:
        return {}
    headers = {
        "Authorization": f"Bearer {attempt.token}",
        "X-Kapelle-Directory": attempt.task["directory"],
    }
    return {"kapelle": McpServer(url=f"{attempt.parts.url}/mcp", headers=headers)}


def _relaunch(attempt: ActiveAttempt) -> Launch:
    """Enough to find a process that was started before: what runs there was decided then."""
    return Launch(
        process_dir=attempt.process_dir,
        secret=attempt.processes[AGENT].secret,
        argv=[],
        cwd=attempt.agent_place.cwd,
        env={},
        timeout_s=attempt.timeout_s,
        grace_s=attempt.settings.tasks.grace_s,
        label=attempt.task_id,
    )


def _not_possible(error: KapelleError) -> Evidence:
    """The end of an attempt whose agent could not even be started."""
    problem = error.with_hint
    kinds = {LimitReached: FailureClass.LIMIT, Tampered: FailureClass.TAMPERED}
    kind = kinds.get(type(error), FailureClass.ENVIRONMENT)
    end = Exit(kind="not_started")
    failure = Failure(kind, problem)
    return Evidence(end, detail=problem, reason=problem, failure=failure)
