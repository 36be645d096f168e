"""Collect the context of an agent: earlier attempts, earlier tasks, learnings, a message."""

import re
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kapelle.agents.base import AgentAdapter
from kapelle.agents.summary import summarise
from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import FailureClass
from kapelle.domain.learning import Learning
from kapelle.domain.task import Attempt as PastAttempt
from kapelle.domain.task import Task
from kapelle.domain.text import split_search_terms
from kapelle.engine.parts import Parts
from kapelle.engine.processes.confinement import INSTRUCTIONS as SANDBOX
from kapelle.engine.processes.container import INSTRUCTIONS
from kapelle.engine.processes.prompt import (
    Earlier,
    compose_follow_up,
    compose_prompt,
    format_learning,
)
from kapelle.engine.tasks.attempt import ActiveAttempt, agent_of, recall_worktree, task_diff
from kapelle.runner.output import read_tail
from kapelle.store import attempts, learnings, tasks
from kapelle.store.query import Row

_LAST_OUTPUT = 4_000
_LETTERS_A_TOKEN = 4
_MOST_TERMS = 60
# Words of most prompts, which distinguish nothing.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """about add all also and any are but can code file files for from has have into its make
        new not now one only please should some sure task test tests that the their then there these
        they this use used using want was when where which will with work write you your""",
    )
)
_WITHOUT_WORK = frozenset(
    {FailureClass.SESSION_LOST, FailureClass.RATE_LIMIT, FailureClass.AUTHENTICATION}
)


@dataclass(frozen=True)
class Briefing:
    """The prompt of an agent, and the session that it continues."""

    prompt: str
    session_id: str | None = None
    fork: bool = False
    is_answer: bool = False  # the message answers a question of the agent


async def brief(attempt: ActiveAttempt, agent: AgentAdapter, diagnosis: str | None) -> Briefing:
    """Return the prompt plus context; a resumed session needs no context."""
    parts = attempt.parts
    task = attempt.task
    message = attempt.message
    prompt = task["prompt"]
    context = task["context"]
    guidelines = task["guidelines"]
    earlier_task = await attempt.load_continued_task()
    own_task = None
    last_attempt = None
    if attempt.mode == "resume":
        own_task = await parts.db.read(tasks.get, attempt.task_id)
        last_attempt = next(
            (other for other in reversed(own_task.attempts) if other.id != attempt.id), None
        )
    is_answer = last_attempt is not None and last_attempt.question is not None
    if (
        own_task
        and last_attempt
        and agent.capabilities.resume
        and _leaves_session(last_attempt, agent)
    ):
        text = compose_follow_up(await earlier_attempt(parts, own_task), message)
        return Briefing(text, last_attempt.session_id, is_answer=is_answer)
    if earlier_task and earlier_task.attempts:
        fork_source = earlier_task.attempts[-1]
    else:
        fork_source = None
    can_fork = task["fork_session"] and agent.capabilities.fork and last_attempt is None
    if fork_source and can_fork and _leaves_session(fork_source, agent):
        text = compose_prompt(prompt, context, [], message, guidelines=guidelines)
        return Briefing(text, fork_source.session_id, True)
    sections = []
    if earlier_task:
        sections.append(
            await earlier_attempt(parts, earlier_task, f"An earlier task: {earlier_task.title}")
        )
    if own_task and last_attempt:
        sections.append(await earlier_attempt(parts, own_task))
    if attempt.is_worktree and attempt.settings.workspace.docker.is_configured:
        context = context | {"Container": INSTRUCTIONS}
    if attempt.place.rung is not None:
        context = context | {"Sandbox": SANDBOX}
    memory = await _memory(attempt)
    text = compose_prompt(prompt, context, sections, message, diagnosis, memory, guidelines)
    return Briefing(text, is_answer=is_answer)


def project_of(task: Row | dict[str, Any]) -> str:
    """Return the key of a task's learnings: its project, else its repository or directory."""
    return str(task["project"] or task["repository"] or task["directory"])


async def _memory(attempt: ActiveAttempt) -> list[Learning]:
    """Return the learnings for an attempt within the token budget, and store which they are."""
    parts = attempt.parts
    task = attempt.task
    remaining = attempt.settings.knowledge.prompt_tokens * _LETTERS_A_TOKEN
    if remaining and parts.has_learnings is None:
        has_learnings = await parts.db.glance(learnings.has_any)
        # Another attempt may have found the first learning meanwhile.
        parts.has_learnings = parts.has_learnings or has_learnings
    if not remaining or not parts.has_learnings:
        return []
    words = [term for term in split_search_terms(task["prompt"]) if len(term[0]) > 2]
    terms = {term[0]: term for term in words if term[0] not in _COMMON}
    query_terms = list(terms.values())[:_MOST_TERMS]
    memory = []
    for learning in await parts.db.read(learnings.list_relevant, query_terms, project_of(task)):
        if (letters := len(format_learning(learning))) <= remaining:
            memory.append(learning)
            remaining -= letters
    await attempt.update(
        memory=[{"id": learning.id, "title": learning.title} for learning in memory] or None
    )
    return memory


def _leaves_session(last: PastAttempt, agent: AgentAdapter) -> bool:
    """Return whether an attempt left a session that this agent can resume."""
    is_lost = last.failure is FailureClass.SESSION_LOST
    return last.session_id is not None and last.agent == agent.name and not is_lost


async def earlier_attempt(
    parts: Parts, task: Task, heading: str = "The previous attempt"
) -> Earlier:
    """Return the result of the last ended attempt of a task."""
    ended_attempts = [attempt for attempt in task.attempts if attempt.ended_at is not None]
    # A refused attempt did no work, so the one before it has more to report.
    attempts_with_work = [
        attempt for attempt in ended_attempts if attempt.failure not in _WITHOUT_WORK
    ]
    last = next(reversed(attempts_with_work or ended_attempts), None)
    checks = await parts.db.read(attempts.group_checks, [last.id] if last else [])
    results = chain.from_iterable(checks.values())
    failed_checks = [check for check in results if not check.passed]
    diffstat = None
    if task.workspace.branch:
        try:
            await recall_worktree(parts, task)
            diffstat = (await task_diff(parts, task.id, task.workspace)).stat
        except KapelleError as error:
            diffstat = f"unknown: {error.message}"
    return Earlier(
        heading=heading,
        status=last.status if last else task.status,
        reason=last.reason if last else task.reason,
        result=task.result,
        last_output=_last_words(parts, task, last) if last else "",
        failed_checks=[(check.name, check.output[-_LAST_OUTPUT:]) for check in failed_checks],
        branch=task.workspace.branch,
        diffstat=diffstat,
    )


def _last_words(parts: Parts, task: Task, last: PastAttempt) -> str:
    """Return the end of an attempt's output as text, not in the agent's line format."""
    process_dir = parts.process_directory(last.id)
    lines = read_tail(process_dir / "out.log", 4 * _LAST_OUTPUT).splitlines()
    agent = agent_of(parts, task, last.agent)
    if agent is None:
        return "\n".join(lines)[-_LAST_OUTPUT:]
    words = summarise(agent, lines).tail + "\n" + read_tail(process_dir / "err.log", 1000)
    return words[-_LAST_OUTPUT:]
