"""A question to a person: what an agent or a run asks, and what came of it."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.specs import Seconds, Spec, Text

QuestionStatus = Literal["open", "answered", "expired", "withdrawn"]


class QuestionSpec(Spec):
    """What somebody asks of a person, and what holds if nobody answers."""

    text: Text = Field(
        min_length=1,
        max_length=20_000,
        pattern=r"\S",
        description="what is asked, with all that a person needs to answer it",
    )
    choices: list[Annotated[Text, Field(min_length=1, max_length=1000)]] = Field(
        default=[], max_length=20, description="answers to choose from; another one may come"
    )
    default: Text | None = Field(
        default=None, max_length=20_000, description="the answer if nobody gives one"
    )
    patience_s: Seconds | None = Field(
        default=None, description="how long an answer is waited for; by default for ever"
    )


class Question(BaseModel):
    """A question; its token is the id of the task or run that asks, and its place there.

    One that expired has its default for an answer, or none; one that is withdrawn needs none.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    task_id: str | None = None
    run_id: str | None = None
    title: str = ""  # of what asks
    repository: str | None = None  # the top of the repository that it works in
    text: str
    choices: list[str] = []
    default: str | None
    status: QuestionStatus = "open"
    answer: str | None = None
    asked_at: datetime
    expires_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def work_id(self) -> str:
        return self.token.partition(":")[0]
