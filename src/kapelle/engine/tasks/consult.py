"""Questions to an agent beside the work: how difficult a task is, why an attempt failed."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from kapelle.agents.base import AgentRequest, Summary
from kapelle.agents.registry import get as get_agent
from kapelle.agents.summary import summarise
from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import FailureClass
from kapelle.domain.states import AttemptStatus
from kapelle.domain.task import Usage
from kapelle.engine.environment import agent_command, agent_environment
from kapelle.engine.parts import Parts
from kapelle.engine.prompt import section
from kapelle.engine.tasks.accounts import credential
from kapelle.engine.tasks.brief import earlier_attempt
from kapelle.engine.tasks.work import Work
from kapelle.engine.usage import attempt_usage, output_tail
from kapelle.runner.output import lines_of
from kapelle.runner.process_dir import Launch
from kapelle.settings import AgentSettings, Settings
from kapelle.store import attempts, events, tasks
from kapelle.store.database import Connection

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Answer:
    """What was replied; problem says why there is no text."""

    text: str | None
    problem: str | None = None


async def consult(parts: Parts, work: Work, name: str, agent: str, prompt: str) -> Answer:
    """The answer of an agent, run in an empty directory; one that was got before is not asked
    again."""
    process_dir = work.process_dir / name
    try:
        launch = question(
            parts, process_dir, agent, prompt, work.settings, work.task_env, work.attempt_id
        )
    except KapelleError as error:
        return Answer(None, error.message)
    ended = await parts.execute(work.attempt_id, work.task_id, launch)
    summary, tail = await asyncio.to_thread(read, process_dir, agent, work.settings)
    verdict = get_agent(agent, work.settings).judge(summary, ended.exit, tail)
    if not verdict.success:
        return Answer(None, verdict.reason)
    return Answer(verdict.result or summary.tail)


def usage_of(work: Work, name: str, agent: str) -> Usage | None:
    """What such a question cost, which the attempt pays for; None if it was not asked."""
    process_dir = work.process_dir / name
    if not (process_dir / "out.log").exists():
        return None
    try:
        summary, _ = read(process_dir, agent, work.settings)
    except KapelleError:
        return None  # it is not configured any more
    return attempt_usage(summary, {}, None, work.settings)


def question(
    parts: Parts,
    process_dir: Path,
    agent: str,
    prompt: str,
    settings: Settings,
    env: dict[str, str],
    attempt_id: str,
) -> Launch:
    """The command that asks; raises when the agent is not known or not set up."""
    adapter = get_agent(agent, settings)
    empty = process_dir / "empty"
    empty.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = credential(parts, adapter, settings, env)
    request = AgentRequest(
        prompt=prompt,
        workspace=empty,
        prompt_file=process_dir / "prompt",
        settings=adapter.settings,
        credential=found.value if found.source == "stored" else None,
    )
    command = agent_command(adapter, request)
    variables = agent_environment(parts.environ, settings, adapter, command.env) | env
    return Launch(
        process_dir=process_dir,
        argv=command.argv,
        cwd=empty,
        env=variables,
        stdin=command.stdin,
        timeout_s=_TIMEOUT_S,
        grace_s=settings.tasks.grace_s,
        redact=parts.redactions(attempt_id, variables),
        label=f"{agent} is asked",
    )


def read(process_dir: Path, agent: str, settings: Settings) -> tuple[Summary, str]:
    """What was said, and the end of it as text."""
    summary = summarise(get_agent(agent, settings), lines_of(process_dir / "out.log"))
    return summary, output_tail(process_dir)


_DIAGNOSIS_QUESTION = """\
A coding agent failed at the task below. Read what is known of its attempt and write a diagnosis for
the next attempt: the most likely cause, and what to do differently, in at most 15 lines. Do not
change any files.

# The task
{prompt}

{attempt}
"""
DIAGNOSIS = "diagnosis"
_LONGEST_FAILED_PROMPT = 20_000
_LONGEST_DIAGNOSIS = 10_000
# A diagnosis helps where the work was wrong, not where the provider or the machine was.
_WORTH_IT = frozenset(
    {
        FailureClass.CHECKS,
        FailureClass.TASK,
        FailureClass.TOOL,
        FailureClass.TIMEOUT,
        FailureClass.STALLED,
        FailureClass.CONTEXT_OVERFLOW,
        FailureClass.UNKNOWN,
    }
)


async def diagnose(parts: Parts, work: Work) -> str | None:
    """The diagnosis of the attempt before this one, asked for once; None where none is due."""
    if work.task["retry"].get("policy") != "analyze" or work.number == 1:
        return None
    if work.attempt["diagnosis"] is not None:
        known: str = work.attempt["diagnosis"]
        return known
    task = await parts.db.read(tasks.get, work.task_id)
    last = [attempt for attempt in task.attempts if attempt.id != work.attempt_id][-1]
    if last.status is not AttemptStatus.FAILED or last.failure not in _WORTH_IT:
        return None
    judge = work.settings.roles.judge or work.agent
    attempt = section(await earlier_attempt(parts, task))
    question = _DIAGNOSIS_QUESTION.format(
        prompt=task.prompt[:_LONGEST_FAILED_PROMPT], attempt=attempt
    )
    answer = await consult(parts, work, DIAGNOSIS, judge, question)
    if answer.text is None:
        await parts.db.write(_not_diagnosed, work, judge, answer.problem)
        return None
    await parts.db.write(_diagnosed, work, judge, answer.text[:_LONGEST_DIAGNOSIS])
    return answer.text[:_LONGEST_DIAGNOSIS]


def _diagnosed(connection: Connection, work: Work, judge: str, text: str) -> None:
    attempts.update(connection, work.attempt_id, diagnosis=text)
    events.append(
        connection, "attempt.diagnosed", work.task_id, work.attempt_id, agent=judge, text=text[:500]
    )


def _not_diagnosed(connection: Connection, work: Work, judge: str, problem: str | None) -> None:
    text = f"{judge} gave no diagnosis: {problem}"
    if attempts.warn(connection, work.attempt_id, "diagnosis", text):
        events.append(
            connection,
            "attempt.warning",
            work.task_id,
            work.attempt_id,
            what="diagnosis",
            text=text,
        )


Difficulty = Literal["simple", "medium", "complex"]

_DIFFICULTY_QUESTION = """\
How difficult is the following task for a programmer who knows the code? Reply with one word and
nothing else: simple (one small, obvious change), medium, or complex (several parts, a design, or a
search for an unknown cause).

~~~
{prompt}
~~~
"""
DIFFICULTY = "difficulty"
_LONGEST_PROMPT = 8_000
_COMPLEX = re.compile(
    r"\b(architect\w*|redesign|refactor\w*|migrat\w+|concurren\w+|race condition|deadlock|security"
    r"|performance|optimi[sz]\w+|distributed|from scratch|investigate|root cause)\b",
    re.IGNORECASE,
)
_SIMPLE = re.compile(
    r"\b(typo|rename|comment|docstring|readme|bump|format\w*|spelling|changelog|log message)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Choice:
    """A model with the reason why it was chosen."""

    model: str
    reason: str


async def choose_model(parts: Parts, work: Work) -> Choice | None:
    """The model of this task's difficulty; None where a model is named or none is configured."""
    settings = work.settings
    own = settings.agents.get(work.agent) or AgentSettings()
    if work.task["model"] or not settings.difficulty.classify or not own.models:
        return None
    difficulty, reason = await _difficulty(parts, work)
    model = own.models.get(difficulty) or own.model
    return Choice(model, f"{difficulty}: {reason}") if model else None


async def _difficulty(parts: Parts, work: Work) -> tuple[Difficulty, str]:
    judge, prompt = work.settings.difficulty.agent, work.task["prompt"]
    if judge is None:
        return by_wording(prompt)
    question = _DIFFICULTY_QUESTION.format(prompt=prompt[:_LONGEST_PROMPT])
    answer = await consult(parts, work, DIFFICULTY, judge, question)
    words = re.findall(r"\b(simple|medium|complex)\b", (answer.text or "").lower())
    if words:
        found: Difficulty = next(x for x in get_args(Difficulty) if x == words[-1])
        return found, f"{judge} said so"
    difficulty, reason = by_wording(prompt)
    problem = answer.problem or f"it replied {(answer.text or '')[:80]!r}"
    return difficulty, f"{reason} ({judge} could not tell: {problem})"


def by_wording(prompt: str) -> tuple[Difficulty, str]:
    """A plain guess from length and wording."""
    words = len(prompt.split())
    steps = len(re.findall(r"^\s*(?:[-*]|\d+[.)])\s", prompt, re.MULTILINE))
    if found := _COMPLEX.search(prompt):
        return "complex", f"the prompt says {found[0]!r}"
    if words > 300 or steps > 6:
        return "complex", f"the prompt has {words} words and {steps} listed steps"
    if (found := _SIMPLE.search(prompt)) and words <= 60:
        return "simple", f"a short prompt that says {found[0]!r}"
    if words <= 12 and not steps:
        return "simple", f"the prompt has only {words} words"
    return "medium", f"the prompt has {words} words and {steps} listed steps"
