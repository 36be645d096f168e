"""Questions of agents and runs to a person, and their answers."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.specs import Seconds, Spec, Text

QuestionStatus = Literal["open", "answered", "expired", "withdrawn"]


class QuestionSpec(Spec):
    """A question to a person, with a default answer and a time limit."""

    text: Text = Field(
        min_length=1,
        max_length=20_000,
        pattern=r"\S",
        description="Question, with everything that a person needs to answer it.",
    )
    choices: list[Annotated[Text, Field(min_length=1, max_length=1000)]] = Field(
        default=[], max_length=20, description="Proposed answers; a person may give another one."
    )
    default: Text | None = Field(
        default=None, max_length=20_000, description="Answer after the time limit."
    )
    patience_s: Seconds | None = Field(
        default=None, description="Time limit for an answer; default: none."
    )


class Question(BaseModel):
    """A stored question; its token is the id of the asking task or run, and its place there.

    An expired question has its default as the answer, if there is one. A withdrawn question needs
    no answer any more.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    task_id: str | None = None
    run_id: str | None = None
    title: str = ""  # the title of the asking task or run
    repository: str | None = None  # the top of the repository of the work
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
