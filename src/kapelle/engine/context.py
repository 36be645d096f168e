"""Collects what an agent is told beyond its task: earlier attempts, earlier tasks, a message."""

import contextlib
from typing import Any

from kapelle.agents.base import Agent
from kapelle.agents.registry import get as get_agent
from kapelle.agents.summary import summarise
from kapelle.domain.errors import KapelleError, NotFound
from kapelle.engine.prompt import Earlier, compose
from kapelle.engine.stage import Stage
from kapelle.engine.work import Work
from kapelle.runner.output import tail_text
from kapelle.store import attempts, tasks

_LAST_OUTPUT = 4_000


async def full_prompt(stage: Stage, work: Work, agent: Agent) -> tuple[str, str | None]:
    """The prompt with its context, and the session to resume where the agent can do that."""
    row = work.task
    if row["continue_from"] is None and work.mode != "resume":
        return compose(row["prompt"], row["context"], [], work.message), None
    task = await stage.db.read(tasks.get, work.task_id)
    earlier: list[Earlier] = []
    session_id = None
    if task.continue_from:
        with contextlib.suppress(NotFound):  # it may have been forgotten meanwhile
            other = await stage.db.read(tasks.get, task.continue_from)
            earlier.append(await _earlier(stage, other, f"An earlier task: {other.title}"))
    ended = [attempt for attempt in task.attempts if attempt.id != work.attempt_id]
    if work.mode == "resume" and ended:
        earlier.append(await _earlier(stage, task, "The attempt before this one"))
        if agent.capabilities.resume:
            session_id = ended[-1].session_id
    return compose(task.prompt, task.context, earlier, work.message), session_id


async def _earlier(stage: Stage, task: Any, heading: str) -> Earlier:
    ended = [attempt for attempt in task.attempts if attempt.ended_at is not None]
    last = ended[-1] if ended else None
    checks = await stage.db.read(attempts.checks_of, [last.id] if last else [])
    failed = [check for results in checks.values() for check in results if not check.passed]
    diffstat = None
    if task.workspace.branch:
        try:
            diffstat = (await stage.workspaces.diff(task.id)).stat
        except KapelleError as error:
            diffstat = f"unknown: {error.message}"
    return Earlier(
        heading=heading,
        status=last.status if last else task.status,
        reason=last.reason if last else task.reason,
        result=task.result,
        last_output=_last_words(stage, task, last.id) if last else "",
        failed_checks=[(check.name, check.output[-_LAST_OUTPUT:]) for check in failed],
        branch=task.workspace.branch,
        diffstat=diffstat,
    )


def _last_words(stage: Stage, task: Any, attempt_id: str) -> str:
    """The end of an attempt's output, as text and not in the agent's own line format."""
    run_dir = stage.run_directory(attempt_id)
    lines = tail_text(run_dir / "out.log", 4 * _LAST_OUTPUT).splitlines()
    try:
        agent = get_agent(task.agent, stage.settings(task.directory))
    except KapelleError:
        return "\n".join(lines)[-_LAST_OUTPUT:]
    words = summarise(agent, lines).tail + "\n" + tail_text(run_dir / "err.log", 1000)
    return words[-_LAST_OUTPUT:]
