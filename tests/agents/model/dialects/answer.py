"""What every dialect is asked for: the words, the tokens, and the forms they are sent in."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.agents.model.tools import Call, Tools

Json = dict[str, Any]
Event = tuple[str | None, Json | str]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an answer cost; the cached tokens are part of the input."""

    input: int = 100
    output: int = 20
    cached: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class Said:
    """What the model answers: text, a call of a tool, or both."""

    model: str
    text: str
    call: Call | None
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """The same answer as events of a stream and as one body."""

    events: list[Event]
    whole: Json


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the provider sends it; events are for those that report it within a stream."""

    status: int
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)
    events: list[Event] | None = None


class Dialect(Protocol):
    """One provider's way to say it."""

    @property
    def name(self) -> str: ...

    def declared(self, body: Json) -> Tools:
        """The tools a request offers."""

    def answer(self, said: Said) -> Answer: ...

    def failure(self, status: int, message: str) -> Failure: ...

    def limit_headers(self, reset_in_s: float) -> dict[str, str]:
        """The headers that tell when a rate limit ends."""

    def overflow(self) -> Failure:
        """The conversation no longer fits."""

    def billing(self) -> Failure:
        """Nothing is left to pay with."""


def fresh_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:24]
