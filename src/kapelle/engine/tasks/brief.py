"""Collects what an agent is told beyond its task: earlier attempts, earlier tasks, a message."""

import re
from dataclasses import dataclass
from typing import Any

from kapelle.agents.base import AgentAdapter
from kapelle.agents.summary import summarise
from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import FailureClass
from kapelle.domain.learning import Learning
from kapelle.domain.task import Attempt as PastAttempt
from kapelle.domain.task import Task
from kapelle.domain.text import search_terms
from kapelle.engine.container import INSTRUCTIONS
from kapelle.engine.parts import Parts
from kapelle.engine.prompt import Earlier, compose_follow_up, compose_prompt, format_learning
from kapelle.engine.tasks.attempt import ActiveAttempt, agent_of, recall, task_diff
from kapelle.runner.output import tail_text
from kapelle.store import attempts, learnings, tasks
from kapelle.store.query import Row

_LAST_OUTPUT = 4_000
_LETTERS_A_TOKEN = 4
_MOST_TERMS = 60
# Words of every prompt, which say nothing about it.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """about add all also and any are but can code file files for from has have into its make
        new not now one only please should some sure task test tests that the their then there these
        they this use used using want was when where which will with work write you your""",
    )
)
_REFUSED = frozenset(
    {FailureClass.SESSION_LOST, FailureClass.RATE_LIMIT, FailureClass.AUTHENTICATION}
)


@dataclass(frozen=True)
class Briefing:
    """What an agent is told, and the session that it goes on with."""

    prompt: str
    session_id: str | None = None
    fork: bool = False
    asked: bool = False  # whether the message answers a question of the agent's


async def brief(attempt: ActiveAttempt, agent: AgentAdapter, diagnosis: str | None) -> Briefing:
    """The prompt with its context; the session does for context where the agent can resume it."""
    parts = attempt.parts
    task = attempt.task
    message = attempt.message
    prompt = task["prompt"]
    context = task["context"]
    guidelines = task["guidelines"]
    continued = await attempt.continued()
    before = None
    resumed = None
    if attempt.mode == "resume":
        before = await parts.db.read(tasks.get, attempt.task_id)
        resumed = next((one for one in reversed(before.attempts) if one.id != attempt.id), None)
    asked = resumed is not None and resumed.question is not None
    if before and resumed and agent.capabilities.resume and _leaves_session(resumed, agent):
        text = compose_follow_up(await earlier_attempt(parts, before), message)
        return Briefing(text, resumed.session_id, asked=asked)
    if continued and continued.attempts:
        forked = continued.attempts[-1]
    else:
        forked = None
    can_fork = task["fork_session"] and agent.capabilities.fork and resumed is None
    if forked and can_fork and _leaves_session(forked, agent):
        text = compose_prompt(prompt, context, [], message, guidelines=guidelines)
        return Briefing(text, forked.session_id, True)
    pieces = []
    if continued:
        pieces.append(
            await earlier_attempt(parts, continued, f"An earlier task: {continued.title}")
        )
    if before and resumed:
        pieces.append(await earlier_attempt(parts, before))
    if attempt.is_worktree and attempt.settings.workspace.docker.wanted:
        context = context | {"Container": INSTRUCTIONS}
    memory = await _memory(attempt)
    told = compose_prompt(prompt, context, pieces, message, diagnosis, memory, guidelines)
    return Briefing(told, asked=asked)


def project_of(task: Row | dict[str, Any]) -> str:
    """What a task's learnings belong to: its project, or where it has none its repository."""
    return str(task["project"] or task["repository"] or task["directory"])


async def _memory(attempt: ActiveAttempt) -> list[Learning]:
    """The learnings that an attempt is told, within the budget, which is noted with it."""
    parts = attempt.parts
    task = attempt.task
    left = attempt.settings.knowledge.prompt_tokens * _LETTERS_A_TOKEN
    if left and parts.has_learnings is None:
        found = await parts.db.glance(learnings.is_any)
        # The first one may have come meanwhile.
        parts.has_learnings = parts.has_learnings or found
    if not left or not parts.has_learnings:
        return []
    words = [term for term in search_terms(task["prompt"]) if len(term[0]) > 2]
    terms = {term[0]: term for term in words if term[0] not in _COMMON}
    chosen = list(terms.values())[:_MOST_TERMS]
    told = []
    for one in await parts.db.read(learnings.relevant, chosen, project_of(task)):
        if (letters := len(format_learning(one))) <= left:
            told.append(one)
            left -= letters
    await attempt.update(memory=[{"id": one.id, "title": one.title} for one in told] or None)
    return told


def _leaves_session(last: PastAttempt, agent: AgentAdapter) -> bool:
    """Whether an attempt left a session that this agent can go on with."""
    lost = last.failure is FailureClass.SESSION_LOST
    return last.session_id is not None and last.agent == agent.name and not lost


async def earlier_attempt(
    parts: Parts, task: Task, heading: str = "The attempt before this one"
) -> Earlier:
    """What the last attempt of a task that ended left behind."""
    ended = [attempt for attempt in task.attempts if attempt.ended_at is not None]
    # One that was refused knew nothing and did nothing: the one before it has more to tell.
    worked = [attempt for attempt in ended if attempt.failure not in _REFUSED]
    last = next(reversed(worked or ended), None)
    checks = await parts.db.read(attempts.checks_of, [last.id] if last else [])
    failed = [check for results in checks.values() for check in results if not check.passed]
    diffstat = None
    if task.workspace.branch:
        try:
            await recall(parts, task)
            diffstat = (await task_diff(parts, task.id, task.workspace)).stat
        except KapelleError as error:
            diffstat = f"unknown: {error.message}"
    return Earlier(
        heading=heading,
        status=last.status if last else task.status,
        reason=last.reason if last else task.reason,
        result=task.result,
        last_output=_last_words(parts, task, last) if last else "",
        failed_checks=[(check.name, check.output[-_LAST_OUTPUT:]) for check in failed],
        branch=task.workspace.branch,
        diffstat=diffstat,
    )


def _last_words(parts: Parts, task: Task, last: PastAttempt) -> str:
    """The end of an attempt's output, as text and not in the agent's own line format."""
    process_dir = parts.process_directory(last.id)
    lines = tail_text(process_dir / "out.log", 4 * _LAST_OUTPUT).splitlines()
    agent = agent_of(parts, task, last.agent)
    if agent is None:
        return "\n".join(lines)[-_LAST_OUTPUT:]
    words = summarise(agent, lines).tail + "\n" + tail_text(process_dir / "err.log", 1000)
    return words[-_LAST_OUTPUT:]
