"""Questions to people, of tasks and runs alike: asked, answered, and what follows."""

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
from kapelle.store.query import Row, resolve

# So much an agent may ask at a time.
_MOST = 5


def with_patience(parts: Parts, spec: QuestionSpec) -> QuestionSpec:
    """A question that has a default and no patience of its own has that of the settings."""
    if spec.default is not None and spec.patience_s is None:
        with suppress(InvalidInput):  # a broken configuration, which must not cost the question
            patience_s = parts.settings().health.answer_s
            return spec.model_copy(update={"patience_s": patience_s})
    return spec


def ask(connection: Connection, attempt_id: str, spec: QuestionSpec) -> Question:
    """What an agent asks while it works; its task waits. Asked again, it is the same question."""
    attempt = attempts.row(connection, attempt_id)
    task = tasks.row(connection, attempt["task_id"])
    if attempt["ended_at"] is not None or task["stop"] is not None:
        raise Forbidden("An attempt's token allows to ask only while it runs.")
    if (known := questions.repeated(connection, attempt_id, spec.text)) is not None:
        return known
    asked = questions.untold(connection, attempt_id)
    if sum(question.status == "open" for question in asked) >= _MOST:
        raise Conflict(f"{_MOST} questions are open already.", hint="Wait for an answer first.")
    run_id = task["run_id"]
    if run_id is not None and not runs.row(connection, run_id)["may_ask"]:
        raise Conflict("Nobody is there to answer.", hint="Decide yourself what is sensible.")
    question = questions.ask(connection, task["id"], spec, attempt_id=attempt_id)
    if task["status"] == TaskStatus.RUNNING:
        asks = {"waiting_for": "input", "question": spec.text}
        tasks.move(connection, task, TaskStatus.WAITING, f"It asks: {spec.text}", **asks)
    return question


def answer(
    connection: Connection,
    whose: str,
    text: str,
    status: QuestionStatus = "answered",
    *,
    is_agent: bool = False,
) -> Question:
    """Answer the question of a token, or the only one of a task or run, which then goes on; an
    agent answers only what another one asks while it works."""
    if not text.strip():
        raise InvalidInput("The answer is empty.", hint='Write `kapelle answer ID "…"`.')
    question = _named(connection, whose)
    if question.task_id:
        asking = attempts.live(connection, question.task_id)
    else:
        asking = None
    if is_agent and not (asking and questions.is_of(connection, question.token, asking["id"])):
        raise Forbidden("An attempt's token does not allow this: only a person may.")
    if question.status != "open":
        was = {"answered": "answered", "expired": "given up"}.get(question.status, "withdrawn")
        raise Conflict(f"This question of {question.work_id} was {was} already.")
    choices = dict(enumerate(question.choices, 1))
    said = text.strip()
    if choices and said.isdecimal() and said not in question.choices:
        if int(said) not in choices:
            known = ", ".join(f"{number} {choice}" for number, choice in choices.items())
            hint = "Give the number of a choice, or an answer in words."
            raise InvalidInput(f"There is no choice {said}: {known}.", hint=hint)
        text = choices[int(said)]
    end(connection, question, status, text)
    return questions.get(connection, question.token)


def end(
    connection: Connection, question: Question, status: QuestionStatus, text: str | None
) -> None:
    """Store how a question ended, and let the one who asked go on."""
    questions.end(connection, question.token, status, text)
    if question.run_id is not None:
        _let_run_go_on(connection, question.run_id, question.token, text)
    elif question.task_id is not None:
        _let_task_go_on(connection, question.task_id, text)


def _let_run_go_on(connection: Connection, run_id: str, token: str, text: str | None) -> None:
    run = runs.row(connection, run_id)
    steps.end(connection, run_id, token.partition(":")[2], text)
    events.append(connection, "run.answered", run_id, title=run["title"], answer=text)
    if run["status"] == RunStatus.WAITING:
        runs.change(connection, run_id, RunStatus.QUEUED, "answered")


def _let_task_go_on(connection: Connection, task_id: str, text: str | None) -> None:
    task = tasks.row(connection, task_id)
    attempt = attempts.latest(connection, task_id)
    facts = {"title": task["title"], "answer": text}
    events.append(connection, "task.answered", task_id, attempt["id"] if attempt else None, **facts)
    if left := questions.unanswered(connection, [task_id]):
        tasks.update(connection, task_id, question=left[0].text, reason=f"It asks: {left[0].text}")
    elif attempt is not None and attempt["ended_at"] is None:
        tasks.move(connection, task, TaskStatus.RUNNING)
    else:
        if attempt:
            told = tell(connection, attempt)
        else:
            told = None
        actions.resume(connection, task_id, told or text)


def tell(connection: Connection, attempt: Row) -> str | None:
    """What the next attempt is told of what this one asked and did not hear the answer to."""
    found = questions.untold(connection, attempt["id"])
    questions.tell(connection, [question.token for question in found])
    return told(found)


def told(found: Sequence[Question]) -> str | None:
    """Questions with their answers, as an agent reads them."""
    nobody = "nobody answered; decide yourself what is sensible, and say what you assumed"
    lines = [f"You asked: {one.text}\nThe answer: {one.answer or nobody}" for one in found]
    return "\n\n".join(lines) or None


def expire(connection: Connection) -> None:
    """End what has been asked for longer than its patience: with its default, or without any."""
    for question in questions.overdue(connection, datetime.now(UTC)):
        end(connection, question, "expired", question.default)


def _named(connection: Connection, whose: str) -> Question:
    typed, _, place = whose.strip().partition(":")
    work_id = resolve(connection, typed, "task", "run")
    if place:
        return questions.get(connection, f"{work_id}:{place}")
    found = questions.unanswered(connection, [work_id])
    if len(found) == 1:
        return found[0]
    if found:
        raise Conflict(
            f"{work_id} has several questions.",
            hint=f"Name one by its token, such as {found[0].token}.",
        )
    raise Conflict(f"{work_id} asks nothing.", hint="`kapelle questions` shows what is asked.")
