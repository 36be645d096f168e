"""Questions to an agent beside the work: the difficulty of a task, the cause of a failure."""

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from kapelle.agents.base import AgentAdapter, AgentRequest
from kapelle.agents.failures import classify
from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.states import AttemptStatus
from kapelle.domain.task import Usage
from kapelle.engine.processes.environment import Origin
from kapelle.engine.processes.launch import ProcessLocation
from kapelle.engine.processes.output import SideLog, attempt_usage, output_tail, read_output
from kapelle.engine.processes.prompt import format_earlier
from kapelle.engine.tasks.accounts import find_credential
from kapelle.engine.tasks.attempt import ActiveAttempt
from kapelle.engine.tasks.brief import earlier_attempt
from kapelle.runner.process_dir import Launch, Process, ProcessEnd
from kapelle.settings import AgentSettings, Settings
from kapelle.store import attempts, events, processes, tasks
from kapelle.store.database import Connection

_TIMEOUT_S = 600.0


# The reply, or why there is none: as a failure class and as a sentence.
Answer = tuple[str | None, Failure | None, str | None]


async def ask_agent(
    attempt: ActiveAttempt, name: str, agent_name: str, prompt: str
) -> tuple[str | None, str | None]:
    """Return the answer of an agent, run in an empty directory, or why there is none.

    An answer from before a crash is not asked for again.
    """
    process = await attempt.process(name)
    settings = attempt.settings
    try:
        agent = get_agent(agent_name, settings)
        place = replace(attempt.place, env=attempt.task_env, origin=Origin(attempt.shell))
        launch, side_log = build_question(place, agent, prompt, process)
    except KapelleError as error:
        return None, error.message
    if side_log is not None:
        await attempt.write(processes.set_side_log, attempt.id, name, side_log.model_dump())
    end = await attempt.execute(name, launch)
    text, _, problem = await read_answer(agent, settings, process.directory, end, side_log)
    return text, problem


async def read_answer(
    agent: AgentAdapter,
    settings: Settings,
    process_dir: Path,
    end: ProcessEnd,
    side_log: SideLog | None,
    within_s: float = _TIMEOUT_S,
) -> Answer:
    """Return the reply of an agent that was asked a question and has ended."""
    if end.ended_by == "timeout":
        reason = f"No answer within {within_s:.0f} s."
        return None, Failure(FailureClass.TIMEOUT, reason), reason
    if end.exit.kind == "not_started":
        reason = end.detail or "It could not be started."
        return None, Failure(FailureClass.ENVIRONMENT, reason), reason
    summary = await asyncio.to_thread(read_output, agent, process_dir, side_log)
    tail = output_tail(process_dir)
    verdict = agent.judge(summary, end.exit, tail)
    if verdict.success:
        return (verdict.result or summary.tail).strip(), None, None
    failure = verdict.failure or classify(summary, end.exit, tail, settings.failures.environment)
    return None, failure, verdict.reason or failure.evidence


async def consulting_usage(attempt: ActiveAttempt) -> list[Usage | None]:
    """Return the usage of the questions that were asked for an attempt, which pays for them."""
    settings = attempt.settings
    usages = list[Usage | None]()
    # Without a process beside the agent, nobody was asked.
    if len(attempt.processes) < 2:
        return usages
    rows = await attempt.parts.db.read(processes.load_by_name, attempt.id)
    judges = {_DIFFICULTY: settings.difficulty.agent, _DIAGNOSIS: settings.roles.judge}
    for name, judge in judges.items():
        with suppress(KapelleError):  # the agent is no longer configured
            if name in attempt.processes:
                agent = get_agent(judge or attempt.agent_name, settings)
                directory = attempt.processes[name].directory
                side_log = SideLog.of_row(rows[name])
                summary = await asyncio.to_thread(read_output, agent, directory, side_log)
                usages.append(attempt_usage(summary, {}, None, settings))
    return usages


def build_question(
    place: ProcessLocation, agent: AgentAdapter, prompt: str, process: Process
) -> tuple[Launch, SideLog | None]:
    """Return the process that asks an agent in an empty directory, and the log of that agent.

    Raises if the agent is not set up.
    """
    empty = process.directory / "empty"
    empty.mkdir(mode=0o700, parents=True, exist_ok=True)
    request = AgentRequest(
        prompt=prompt,
        workspace=empty,
        prompt_file=process.directory / "prompt",
        settings=agent.settings,
        credential=find_credential(place.parts, agent, place.settings, place.env).stored_key,
    )
    return place.agent(process, agent, request, _TIMEOUT_S, f"{agent.name} is asked")


_DIAGNOSIS_QUESTION = """\
A coding agent failed at the task below. Diagnose the failure for the next attempt.
1. Read the task and the report of the attempt.
2. Do not change any files.
3. Reply with the most likely cause and with what to do differently, in at most 15 lines.

# The task
{prompt}

{attempt}
"""
_DIAGNOSIS = "diagnosis"
_LONGEST_FAILED_PROMPT = 20_000
_LONGEST_DIAGNOSIS = 10_000
# A diagnosis helps if the work was wrong, not if the provider or the machine failed.
_WORTH_IT = {
    FailureClass.CHECKS,
    FailureClass.TASK,
    FailureClass.TOOL,
    FailureClass.TIMEOUT,
    FailureClass.STALLED,
    FailureClass.CONTEXT_OVERFLOW,
    FailureClass.UNKNOWN,
}


async def diagnose(attempt: ActiveAttempt) -> str | None:
    """Return the diagnosis of the previous attempt, asked for once; None if none is due."""
    if attempt.task["retry"].get("policy") != "analyze" or attempt.number == 1:
        return None
    stored: str | None = attempt.row["diagnosis"]
    if stored is not None:
        return stored
    task = await attempt.parts.db.read(tasks.get, attempt.task_id)
    last = [other for other in task.attempts if other.id != attempt.id][-1]
    if last.status is not AttemptStatus.FAILED or last.failure not in _WORTH_IT:
        return None
    judge = attempt.settings.roles.judge or attempt.agent_name
    question = _DIAGNOSIS_QUESTION.format(
        prompt=task.prompt[:_LONGEST_FAILED_PROMPT],
        attempt=format_earlier(await earlier_attempt(attempt.parts, task)),
    )
    answer, problem = await ask_agent(attempt, _DIAGNOSIS, judge, question)
    if answer is None:
        await attempt.warn("diagnosis", f"{judge} gave no diagnosis: {problem}")
        return None
    text = answer[:_LONGEST_DIAGNOSIS]

    def record(connection: Connection) -> None:
        attempts.update(connection, attempt.id, diagnosis=text)
        about = (attempt.task_id, attempt.id)
        events.append(connection, "attempt.diagnosed", *about, agent=judge, text=text[:500])

    await attempt.write(record)
    return text


Difficulty = Literal["simple", "medium", "complex"]

_DIFFICULTY_QUESTION = """\
Judge how difficult the following task is for a programmer who knows the code.
- simple: one small, obvious change
- medium: anything between
- complex: several parts, a design, or a search for an unknown cause

~~~
{prompt}
~~~

Reply with one word and nothing else: simple, medium or complex.
"""
_DIFFICULTY = "difficulty"
_LONGEST_PROMPT = 8_000


async def choose_model(attempt: ActiveAttempt, own: AgentSettings) -> tuple[str | None, str | None]:
    """Return the agent's model and the reason, by difficulty if that is configured."""
    if attempt.task["model"] or not attempt.settings.difficulty.classify or not own.models:
        return own.model, None
    difficulty, reason = await _difficulty(attempt)
    model = own.models.get(difficulty) or own.model
    return model, f"{difficulty}: {reason}" if model else None


async def _difficulty(attempt: ActiveAttempt) -> tuple[Difficulty, str]:
    """Return the difficulty of a task and who judged it; medium if nobody could."""
    judge = attempt.settings.difficulty.agent or attempt.agent_name
    prompt = attempt.task["prompt"]
    question = _DIFFICULTY_QUESTION.format(prompt=prompt[:_LONGEST_PROMPT])
    answer, problem = await ask_agent(attempt, _DIFFICULTY, judge, question)
    words = re.findall(r"\b(simple|medium|complex)\b", (answer or "").lower())
    if words:
        difficulty: Difficulty = next(label for label in get_args(Difficulty) if label == words[-1])
        return difficulty, f"{judge} said so"
    problem = problem or f"it replied {(answer or '')[:80]!r}"
    return "medium", f"{judge} could not tell: {problem}"
