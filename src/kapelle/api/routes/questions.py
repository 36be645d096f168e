"""Questions to people: asked by agents, seen and answered by whoever the daemon belongs to."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from kapelle.api.routes import WaitSeconds
from kapelle.api.security import AskingAttempt, Parent, UseCases, owner_only
from kapelle.domain.errors import Forbidden
from kapelle.domain.question import Question, QuestionSpec
from kapelle.domain.specs import MAX_PROMPT_BYTES, Spec, Text

router = APIRouter(prefix="/questions", tags=["questions"])
_owner = [Depends(owner_only)]


class QuestionList(BaseModel):
    questions: list[Question]


class GivenAnswer(Spec):
    answer: Annotated[Text, Field(max_length=MAX_PROMPT_BYTES)]


@router.post("", status_code=201)
async def ask(
    spec: QuestionSpec,
    service: UseCases,
    task_id: Parent,
    attempt: AskingAttempt,
    timeout_s: WaitSeconds = 25,
) -> Question:
    """Ask a person something, as the agent of a task, which waits meanwhile. With its answer; after
    timeout_s it may be open: then wait for it by its token."""
    if task_id is None or attempt is None:
        raise Forbidden("Only an agent at work on a task can ask, with the token of its attempt.")
    return await service.questions.ask(task_id, attempt, spec, timeout_s)


@router.get("", dependencies=_owner)
async def unanswered(service: UseCases) -> QuestionList:
    """All that tasks and runs ask of people, the oldest first."""
    return QuestionList(questions=await service.questions.unanswered())


@router.get("/{token}")
async def wait(
    token: str, service: UseCases, attempt: AskingAttempt, timeout_s: WaitSeconds = 25
) -> Question:
    """A question once it is answered, or expired; after timeout_s as it is: then call again."""
    return await service.questions.wait(token, timeout_s, attempt)


@router.post("/{token}/answer")
async def answer(token: str, body: GivenAnswer, service: UseCases, parent: Parent) -> Question:
    """Answer a question by its token, or the only one of a task or run by its id; who asked goes
    on. A number chooses one of its choices. An attempt answers what agents below it ask while
    they work, and never what needs a person's consent."""
    await service.work.require_own(parent, token.partition(":")[0], itself=False)
    return await service.questions.answer(token, body.answer, is_agent=parent is not None)
