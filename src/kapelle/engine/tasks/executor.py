"""Perform an attempt: prepare, launch, watch, verify, settle.

After a crash the attempt is performed again from the top, and each phase detects what is already
done: a claimed process directory, finished checks, a settled row.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kapelle.agents.base import AgentAdapter, AgentRequest
from kapelle.domain.budget import format_money_limit
from kapelle.domain.errors import KapelleError, LimitReached, Tampered, Unavailable
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.outcome import Evidence
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.engine import messages
from kapelle.engine.background import with_retries
from kapelle.engine.parts import Parts
from kapelle.engine.processes.confinement import explain_refusals, find_refusals
from kapelle.engine.processes.container import begin_container
from kapelle.engine.tasks import browser
from kapelle.engine.tasks.accounts import find_credential
from kapelle.engine.tasks.attempt import AGENT, ActiveAttempt, ClaimLost
from kapelle.engine.tasks.brief import brief
from kapelle.engine.tasks.consult import choose_model, diagnose
from kapelle.engine.tasks.prepare import prepare
from kapelle.engine.tasks.settle import conclude
from kapelle.engine.tasks.verify import verify
from kapelle.engine.tasks.watch import AttemptLimits, limits_of, watch_agent
from kapelle.runner.output import read_both_streams
from kapelle.runner.process_dir import Launch
from kapelle.runner.shim.failpoints import failpoint
from kapelle.workspaces import is_result_needed

_log = logging.getLogger("kapelle.attempts")
# The size of a terminal until somebody attaches to it.
_TERMINAL = (24, 80)
# The end of an output that is searched for refused accesses.
_SEARCHED_OUTPUT = 1_000_000


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
            # Settled just before a crash, or taken over by another performer.
            _log.info("%s no longer belongs to this daemon", attempt_id)


async def _work(parts: Parts, attempt_id: str) -> Evidence:
    """Prepare the workspace, run the agent, and verify its work."""
    attempt = None
    try:
        attempt = await with_retries(ActiveAttempt.load)(parts, attempt_id)
        is_result_needed.set(attempt.is_wanted)
        if not attempt.is_started:
            # An agent that was started before a crash already works in its workspace.
            await with_retries(prepare)(attempt)
        failpoint("perform_after_prepare")
        end = await with_retries(_run)(attempt)
    except Unavailable:
        # The disk or the database, not the attempt: the performer starts again later.
        raise
    except KapelleError as error:
        if attempt is not None:
            await browser.stop_application(attempt)
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
        with suppress(KapelleError):  # an agent that is no longer configured cannot be watched
            agent = attempt.agent()
    failpoint("run_before_execute")
    try:
        async with watch_agent(attempt, agent, limits):
            end = await attempt.execute(AGENT, launch)
    except Tampered as error:
        return Evidence(Exit(kind="tampered"), detail=error.message)
    except FileNotFoundError:
        return Evidence(
            Exit(kind="lost"), detail="its process directory was deleted while it was running"
        )
    failpoint("run_after_execute")
    await _warn_of_refusals(attempt)
    if attempt.is_worktree:
        try:
            await attempt.parts.workspaces.restore_settings(attempt.owner)
        except KapelleError as error:
            # The verification meets the same problem, and reports it.
            _log.warning("the settings of %s were not restored: %s", attempt.owner, error.message)
    has_timed_out = end.ended_by == "timeout"
    return Evidence(
        exit=end.exit,
        timed_out=has_timed_out,
        detail=end.describe_end(attempt.timeout_s) if has_timed_out else end.detail,
        output_bytes=end.out_bytes + end.err_bytes,
    )


async def _warn_of_refusals(attempt: ActiveAttempt) -> None:
    """Record what the agent was refused, with the setting that would allow it."""
    if attempt.row["confinement"] in (None, "none"):
        return
    output = await asyncio.to_thread(read_both_streams, attempt.process_dir, _SEARCHED_OUTPUT)
    if paths := find_refusals(output, attempt.agent_place.seen_top):
        await attempt.warn("refused", explain_refusals(paths))


async def _launch(attempt: ActiveAttempt, agent: AgentAdapter, limits: AttemptLimits) -> Launch:
    """Return the launch of an agent. Raises if the agent is not set up or no budget remains."""
    parts = attempt.parts
    if limits.budget_left_usd == 0:
        raise LimitReached(format_money_limit(limits.budget_usd or 0))
    place = attempt.agent_place
    await begin_container(parts, attempt.settings, place.origin.worktree)
    place = replace(
        place, env=attempt.env | {"KAPELLE_URL": parts.url, "KAPELLE_TOKEN": attempt.token}
    )
    request = await _request(attempt, agent, limits)
    label = f"{attempt.agent_name} for {attempt.task_id}"
    terminal = None
    if attempt.task["interactive"]:
        terminal = _TERMINAL
    launch, side_log = place.agent(
        attempt.processes[AGENT], agent, request, attempt.timeout_s, label, terminal
    )
    rung = "none" if launch.confinement is None else launch.confinement.rung
    if attempt.row["confinement"] != rung:
        await attempt.update(confinement=rung)
    # Stored before the agent starts, since a new daemon has to find the log.
    if side_log is not None:
        side_log = await asyncio.to_thread(side_log.after_present)
        await attempt.update(side_log=side_log.model_dump())
    return launch


async def _request(
    attempt: ActiveAttempt, agent: AgentAdapter, limits: AttemptLimits
) -> AgentRequest:
    """Return the request to an agent: prompt, session, limits, tools and credentials."""
    parts = attempt.parts
    task = attempt.task
    settings = attempt.settings
    own = agent.settings
    briefing = await brief(attempt, agent, await diagnose(attempt))
    model, reason = await choose_model(attempt, own)
    is_own_agent = attempt.agent_name == task["agent"]
    # The task names a model for its own agent; a fallback agent has a model of its own.
    if is_own_agent and task["model"]:
        model = task["model"]
    is_interactive = task["interactive"]
    servers = settings.mcp | own.mcp | parts.secrets.mcp(attempt.task_id) | _own_tools(attempt)
    if agent.capabilities.mcp:
        servers |= browser.tools(attempt)
    if model or briefing.session_id:
        await attempt.update(model=model, model_reason=reason, started_from=briefing.session_id)
    return AgentRequest(
        prompt=briefing.prompt + browser.format_instructions(attempt),
        workspace=attempt.agent_place.cwd,
        prompt_file=attempt.process_dir / "prompt",
        settings=own,
        system_prompt=task["system_prompt"] if agent.capabilities.system_prompt else None,
        model=model if agent.capabilities.model else None,
        session_id=briefing.session_id,
        fork=briefing.fork,
        attempt_number=attempt.number,
        # In a terminal, a person ends the agent, and nothing can be counted.
        max_turns=None if is_interactive else limits.max_turns,
        budget_usd=None if is_interactive else limits.budget_left_usd,
        tools=task["tools"] if is_own_agent else (),
        read_only=attempt.is_read_only,
        mcp_servers=servers,
        credential=find_credential(parts, agent, settings, attempt.task_env).stored_key,
        answer=attempt.message if briefing.is_answer else None,
        messages=messages.folder_of(parts, attempt.id),
        message_key=messages.key_of(parts, attempt.id),
        checkout=Path(task["directory"]),
        daemon={"url": parts.url, "token": attempt.token} if attempt.shares_files else None,
    )


def _own_tools(attempt: ActiveAttempt) -> dict[str, McpServer]:
    """Return Kapelle's MCP server, with the token of the attempt. Its port outlives the daemon."""
    if not attempt.task["coordinate"]:
        return {}
    headers = {
        "Authorization": f"Bearer {attempt.token}",
        "X-Kapelle-Directory": attempt.task["directory"],
    }
    return {"kapelle": McpServer(url=f"{attempt.parts.url}/mcp", headers=headers)}


def _relaunch(attempt: ActiveAttempt) -> Launch:
    """Return a launch that finds a process started before; its command was decided then."""
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
    """Return the end of an attempt whose agent could not be started."""
    problem = error.with_hint
    kinds = {LimitReached: FailureClass.LIMIT, Tampered: FailureClass.TAMPERED}
    kind = kinds.get(type(error), FailureClass.ENVIRONMENT)
    end = Exit(kind="not_started")
    failure = Failure(kind, problem)
    return Evidence(end, detail=problem, reason=problem, failure=failure)
