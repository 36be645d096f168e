"""For the retry policy analyze: another agent reads the failed attempt and says what went wrong."""

from kapelle.domain.failures import FailureClass
from kapelle.domain.states import AttemptStatus
from kapelle.engine.consult import consult
from kapelle.engine.context import earlier_attempt
from kapelle.engine.parts import Stage
from kapelle.engine.prompt import section
from kapelle.engine.work import Work
from kapelle.store import attempts, events, tasks
from kapelle.store.database import Connection

_QUESTION = """\
A coding agent failed at the task below. Read what is known of its attempt and write a diagnosis for
the next attempt: the most likely cause, and what to do differently, in at most 15 lines. Do not
change any files.

# The task
{prompt}

{attempt}
"""
RUN = "diagnosis"
_LONGEST_PROMPT = 20_000
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


async def diagnose(stage: Stage, work: Work) -> str | None:
    """The diagnosis of the attempt before this one, asked for once; None where none is due."""
    if work.task["retry"].get("policy") != "analyze" or work.number == 1:
        return None
    if work.attempt["diagnosis"] is not None:
        known: str = work.attempt["diagnosis"]
        return known
    task = await stage.db.read(tasks.get, work.task_id)
    last = [attempt for attempt in task.attempts if attempt.id != work.attempt_id][-1]
    if last.status is not AttemptStatus.FAILED or last.failure not in _WORTH_IT:
        return None
    judge = work.settings.roles.judge or work.agent
    attempt = section(await earlier_attempt(stage, task))
    question = _QUESTION.format(prompt=task.prompt[:_LONGEST_PROMPT], attempt=attempt)
    answer = await consult(stage, work, RUN, judge, question)
    if answer.text is None:
        await stage.db.write(_not_diagnosed, work, judge, answer.problem)
        return None
    await stage.db.write(_diagnosed, work, judge, answer.text[:_LONGEST_DIAGNOSIS])
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
