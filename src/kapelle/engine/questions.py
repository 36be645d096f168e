"""Questions of tasks and runs to people: asking, answering, and what follows."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from kapelle.domain.errors import Conflict, Forbidden, InvalidInput
from kapelle.domain.question import Question, QuestionSpec, QuestionStatus
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.engine.parts import Parts
from kapelle.engine.tasks import actions
from kapelle.store import attempts, events, questions, runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.ids import resolve_id
from kapelle.store.query import Row

# Maximum number of open questions of one attempt.
_MOST = 5


def with_patience(parts: Parts, spec: QuestionSpec) -> QuestionSpec:
    """Give a question with a default, but without a patience, the patience of the settings."""
    if spec.default is not None and spec.patience_s is None:
        with suppress(InvalidInput):  # a broken configuration must not lose the question
            patience_s = parts.settings().health.answer_s
            return spec.model_copy(update={"patience_s": patience_s})
    return spec


def ask(connection: Connection, attempt_id: str, spec: QuestionSpec) -> Question:
    """Store a question of a running agent; its task waits.

    A repeated question returns the stored one. Raises Forbidden if the attempt does not run, and
    Conflict for too many questions or if nobody can answer.
    """
    attempt = attempts.load_row(connection, attempt_id)
    task = tasks.load_row(connection, attempt["task_id"])
    if attempt["ended_at"] is not None or task["stop"] is not None:
        raise Forbidden("An attempt can ask only while it runs.")
    if (repeated := questions.find_repeated(connection, attempt_id, spec.text)) is not None:
        return repeated
    earlier = questions.list_unsent(connection, attempt_id)
    if sum(question.status == "open" for question in earlier) >= _MOST:
        raise Conflict(f"{_MOST} questions are open already.", hint="Wait for an answer first.")
    run_id = task["run_id"]
    if run_id is not None and not runs.load_row(connection, run_id)["may_ask"]:
        raise Conflict("Nobody can answer.", hint="Decide yourself.")
    question = questions.ask(connection, task["id"], spec, attempt_id=attempt_id)
    if task["status"] == TaskStatus.RUNNING:
        asks = {"waiting_for": "input", "question": spec.text}
        tasks.move(connection, task, TaskStatus.WAITING, f"It asks: {spec.text}", **asks)
    return question


def answer(
    connection: Connection,
    subject: str,
    text: str,
    status: QuestionStatus = "answered",
    *,
    is_agent: bool = False,
) -> Question:
    """Answer a question by its token, or the only open question of a task or run, which then goes
    on.

    An agent may answer only a question that another agent asks while it works.
    """
    if not text.strip():
        raise InvalidInput("The answer is empty.", hint='Write `kapelle answer ID "…"`.')
    question = _find_question(connection, subject)
    if question.task_id:
        asking = attempts.find_open(connection, question.task_id)
    else:
        asking = None
    if is_agent and not (
        asking and questions.is_asked_by(connection, question.token, asking["id"])
    ):
        raise Forbidden("An attempt's token does not allow this: only a person may.")
    if question.status != "open":
        was = {"answered": "answered", "expired": "given up"}.get(question.status, "withdrawn")
        raise Conflict(f"This question of {question.work_id} was {was} already.")
    choices = dict(enumerate(question.choices, 1))
    choice = text.strip()
    # A number stands for a choice, unless a choice is literally that number.
    if choices and choice.isdecimal() and choice not in question.choices:
        if int(choice) not in choices:
            numbered = ", ".join(f"{number} {label}" for number, label in choices.items())
            hint = "Give the number of a choice, or an answer in words."
            raise InvalidInput(f"There is no choice {choice}: {numbered}.", hint=hint)
        text = choices[int(choice)]
    end(connection, question, status, text)
    return questions.get(connection, question.token)


def end(
    connection: Connection, question: Question, status: QuestionStatus, text: str | None
) -> None:
    """Store how a question ended, and let the asking task or run go on."""
    questions.end(connection, question.token, status, text)
    if question.run_id is not None:
        _let_run_go_on(connection, question.run_id, question.token, text)
    elif question.task_id is not None:
        _let_task_go_on(connection, question.task_id, text)


def _let_run_go_on(connection: Connection, run_id: str, token: str, text: str | None) -> None:
    run = runs.load_row(connection, run_id)
    steps.end(connection, run_id, token.partition(":")[2], text)
    events.append(connection, "run.answered", run_id, title=run["title"], answer=text)
    if run["status"] == RunStatus.WAITING:
        runs.change(connection, run_id, RunStatus.QUEUED, "answered")


def _let_task_go_on(connection: Connection, task_id: str, text: str | None) -> None:
    task = tasks.load_row(connection, task_id)
    attempt = attempts.find_latest(connection, task_id)
    facts = {"title": task["title"], "answer": text}
    events.append(connection, "task.answered", task_id, attempt["id"] if attempt else None, **facts)
    if left := questions.list_open(connection, [task_id]):
        tasks.update(connection, task_id, question=left[0].text, reason=f"It asks: {left[0].text}")
    # The agent waits for the answer itself, so its attempt continues.
    elif attempt is not None and attempt["ended_at"] is None:
        tasks.move(connection, task, TaskStatus.RUNNING)
    else:
        answers = None
        if attempt:
            answers = collect_answers(connection, attempt)
        actions.resume(connection, task_id, answers or text)


def collect_answers(connection: Connection, attempt: Row) -> str | None:
    """Return the answers that an attempt has not received, and mark them as delivered."""
    pending = questions.list_unsent(connection, attempt["id"])
    questions.mark_sent(connection, [question.token for question in pending])
    return format_answers(pending)


def format_answers(pending: Sequence[Question]) -> str | None:
    """Return questions with their answers as text for an agent."""
    nobody = "Nobody answered. Decide yourself, and state your assumption."
    lines = [
        f"You asked: {question.text}\nAnswer: {question.answer or nobody}" for question in pending
    ]
    return "\n\n".join(lines) or None


def expire(connection: Connection) -> None:
    """End the questions whose patience is over, with their default or without an answer."""
    for question in questions.list_overdue(connection, datetime.now(UTC)):
        end(connection, question, "expired", question.default)


def _find_question(connection: Connection, subject: str) -> Question:
    prefix, _, place = subject.strip().partition(":")
    work_id = resolve_id(connection, prefix, "task", "run")
    if place:
        return questions.get(connection, f"{work_id}:{place}")
    pending = questions.list_open(connection, [work_id])
    if len(pending) == 1:
        return pending[0]
    if pending:
        raise Conflict(
            f"{work_id} has several questions.",
            hint=f"Name one by its token, such as {pending[0].token}.",
        )
    raise Conflict(
        f"{work_id} has no open question.", hint="`kapelle questions` lists open questions."
    )
