"""Use cases of questions: asked by agents, seen and answered by people."""

from typing import Annotated

from pydantic import BaseModel, Field

from kapelle.domain.errors import Forbidden
from kapelle.domain.question import Question, QuestionSpec
from kapelle.domain.specs import MAX_PROMPT_BYTES, RepositoryPath, Spec, Text, WaitSeconds
from kapelle.engine.children import is_own, not_own
from kapelle.engine.parts import Parts
from kapelle.engine.questions import answer, ask, with_patience
from kapelle.service.caller import Caller
from kapelle.service.work import until
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
        """Ask a person something, as the agent of a task, which waits meanwhile. With its answer;
        after timeout_s it may be open: then wait for it by its token."""
        own = caller.require_attempt()
        told = await self._parts.without_secrets(*own, spec.model_dump())
        patient = with_patience(self._parts, QuestionSpec.model_validate(told))
        question = await self._db.write(ask, own[1], patient)
        return await self.wait(question.token, caller, timeout_s)

    async def wait(self, token: str, caller: Caller, timeout_s: WaitSeconds = 25) -> Question:
        """A question once it is answered, or expired; after timeout_s as it is: then call again."""
        question = await self._db.read(_of, token, caller.attempt_id)
        await until(
            self._db, [question.work_id], timeout_s,
            lambda connection: questions.get(connection, token).status != "open",
        )  # fmt: skip
        if caller.attempt_id is None:
            return await self._db.read(questions.get, token)
        return await self._db.write(_told, token)

    async def unanswered(self, repository: RepositoryPath | None = None) -> QuestionList:
        """All that tasks and runs ask of people, the oldest first; in all repositories, or in the
        one of a name or directory."""
        if repository is not None and repository.startswith("/"):
            repository = repository_of(repository)
        found = await self._db.read(questions.list_open, None, repository)
        return QuestionList(questions=found)

    async def answer(self, token: str, body: GivenAnswer, caller: Caller) -> Question:
        """Answer a question by its token, or the only one of a task or run by its id; who asked
        goes on. A number chooses one of its choices. An attempt answers what agents below it ask
        while they work, and never what needs a person's consent."""
        whose = token.partition(":")[0]
        task_id = caller.task_id
        if task_id is not None and not await self._db.read(is_own, task_id, whose, itself=False):
            raise not_own(whose)
        return await self._db.write(answer, token, body.answer, is_agent=task_id is not None)


def _of(connection: Connection, token: str, attempt_id: str | None) -> Question:
    if attempt_id is not None and not (
        questions.is_asked_by(connection, token, attempt_id)
        and attempts.load_row(connection, attempt_id)["ended_at"] is None
    ):
        raise Forbidden("An attempt's token allows only to wait for answers to what it asked.")
    return questions.get(connection, token)


def _told(connection: Connection, token: str) -> Question:
    question = questions.get(connection, token)
    if question.status != "open":
        questions.mark_sent(connection, [token])
    return question
