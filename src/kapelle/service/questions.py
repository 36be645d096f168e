"""Use cases of questions: agents ask them and wait for the answer, people list and answer them."""

from typing import Annotated

from pydantic import BaseModel, Field

from kapelle.domain.errors import Forbidden
from kapelle.domain.question import Question, QuestionSpec
from kapelle.domain.specs import MAX_PROMPT_BYTES, RepositoryPath, Spec, Text, WaitSeconds
from kapelle.engine.children import is_own, not_own
from kapelle.engine.parts import Parts
from kapelle.engine.questions import answer, ask, with_patience
from kapelle.service.caller import Caller
from kapelle.service.wait import wait_until
from kapelle.store import attempts, questions
from kapelle.store.database import Connection
from kapelle.workspaces import repository_of


class QuestionList(BaseModel):
    questions: list[Question]


class GivenAnswer(Spec):
    answer: Annotated[Text, Field(max_length=MAX_PROMPT_BYTES)]


class QuestionService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._db = parts.db

    async def ask(
        self,
        spec: QuestionSpec,
        caller: Caller,
        timeout_s: WaitSeconds = 25,
    ) -> Question:
        """Ask a person a question, as the agent of a task, and wait for the answer.

        If the question is still open after timeout_s, wait for the answer by its token.
        """
        task_id, attempt_id = caller.require_attempt()
        fields = await self._parts.without_secrets(task_id, attempt_id, spec.model_dump())
        spec = with_patience(self._parts, QuestionSpec.model_validate(fields))
        question = await self._db.write(ask, attempt_id, spec)
        return await self.wait(question.token, caller, timeout_s)

    async def wait(self, token: str, caller: Caller, timeout_s: WaitSeconds = 25) -> Question:
        """Wait until a question is answered or expired; while it is open, call again."""
        question = await self._db.read(_load_question, token, caller.attempt_id)

        def is_closed(connection: Connection) -> bool:
            return questions.get(connection, token).status != "open"

        await wait_until(self._db, [question.work_id], timeout_s, is_closed)
        if caller.attempt_id is None:
            return await self._db.read(questions.get, token)
        return await self._db.write(_deliver_answer, token)

    async def list_unanswered(self, repository: RepositoryPath | None = None) -> QuestionList:
        """List the open questions of tasks and runs, oldest first.

        A repository, given by its name or a directory in it, limits the list.
        """
        if repository is not None and repository.startswith("/"):
            repository = repository_of(repository)
        open_questions = await self._db.read(questions.list_open, None, repository)
        return QuestionList(questions=open_questions)

    async def answer(self, token: str, body: GivenAnswer, caller: Caller) -> Question:
        """Answer a question by its token, or the only question of a task or run by its id.

        A number selects one of the choices. An agent may answer questions of the running agents
        that it started, but none that needs the consent of a person.
        """
        work_id = token.partition(":")[0]
        task_id = caller.task_id
        if task_id is not None and not await self._db.read(is_own, task_id, work_id, itself=False):
            raise not_own(work_id)
        return await self._db.write(answer, token, body.answer, is_agent=task_id is not None)


def _load_question(connection: Connection, token: str, attempt_id: str | None) -> Question:
    """Return a question; raises Forbidden for an attempt that has ended or did not ask it."""
    if attempt_id is not None:
        is_running = attempts.load_row(connection, attempt_id)["ended_at"] is None
        if not is_running or not questions.is_asked_by(connection, token, attempt_id):
            raise Forbidden("An attempt may wait only for answers to its own questions.")
    return questions.get(connection, token)


def _deliver_answer(connection: Connection, token: str) -> Question:
    """Return a question; if it has an answer, record that its agent got the answer."""
    question = questions.get(connection, token)
    if question.status != "open":
        questions.mark_sent(connection, [token])
    return question
