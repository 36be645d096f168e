"""Use cases of questions: asked by agents, seen and answered by people."""

from kapelle.domain.errors import Forbidden
from kapelle.domain.question import Question, QuestionSpec
from kapelle.engine.parts import Parts
from kapelle.engine.questions import answer, ask, with_patience
from kapelle.service.work import wait
from kapelle.store import attempts, questions
from kapelle.store.database import Connection


class Questions:
    def __init__(self, parts: Parts) -> None:
        self._parts, self._db = parts, parts.db

    async def ask(
        self, task_id: str, attempt_id: str, spec: QuestionSpec, timeout_s: float
    ) -> Question:
        """What an agent asks while it works, once it has an answer, or when time is up."""
        told = await self._parts.without_secrets(task_id, attempt_id, spec.model_dump())
        patient = with_patience(self._parts, QuestionSpec.model_validate(told))
        question = await self._db.write(ask, attempt_id, patient)
        return await self.wait(question.token, timeout_s, attempt_id)

    async def wait(self, token: str, timeout_s: float, attempt_id: str | None = None) -> Question:
        """A question once it is not open any more, or when time is up; an attempt sees its own."""
        question = await self._db.read(_of, token, attempt_id)
        await wait(self._db, question.work_id, timeout_s, lambda c, _: not _is_open(c, token))
        if attempt_id is None:
            return await self._db.read(questions.get, token)
        return await self._db.write(_told, token)

    async def unanswered(self) -> list[Question]:
        """All that tasks and runs ask of people, the oldest first."""
        return await self._db.read(questions.unanswered)

    async def answer(self, whose: str, text: str, *, is_agent: bool = False) -> Question:
        """Answer the question of a token, or the only one of a task or run, which then goes on."""
        return await self._db.write(answer, whose, text, is_agent=is_agent)


def _is_open(connection: Connection, token: str) -> bool:
    return questions.get(connection, token).status == "open"


def _of(connection: Connection, token: str, attempt_id: str | None) -> Question:
    if attempt_id is not None and not (
        questions.is_of(connection, token, attempt_id)
        and attempts.row(connection, attempt_id)["ended_at"] is None
    ):
        raise Forbidden("An attempt's token allows only to wait for answers to what it asked.")
    return questions.get(connection, token)


def _told(connection: Connection, token: str) -> Question:
    question = questions.get(connection, token)
    if question.status != "open":
        questions.tell(connection, [token])
    return question
