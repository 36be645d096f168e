"""Answers that only programs meet: a page of a list and a line of a transcript."""

import json
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import httpx2
from pydantic import AliasChoices, BaseModel, Field

from kapelle.domain.run import Step
from kapelle.domain.views import AgentView, PatternView

T = TypeVar("T")

# Inside a class with a method called list, the word means that.
Steps: TypeAlias = list[Step]
Agents: TypeAlias = list[AgentView]
Patterns: TypeAlias = list[PatternView]


class Page(BaseModel, Generic[T]):
    """Some of a list, whatever it is a list of, and what leads to the next ones."""

    items: list[T] = Field(validation_alias=AliasChoices("tasks", "runs", "schedules", "firings"))
    next_cursor: str | None


@dataclass(frozen=True)
class TranscriptLine:
    """One thing that an agent said or did; data is all that is told of it."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


def transcript_line(event: httpx2.ServerSentEvent) -> TranscriptLine:
    told = json.loads(event.data)
    return TranscriptLine(event.event, str(told.get("text") or ""), told)
