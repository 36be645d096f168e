"""What is needed to go on with a run that waits for answers, as one string."""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from kapelle.domain.errors import InvalidInput
from kapelle.library.ledger import Spent

_PREFIX = "kapelle1"
_SUM_LENGTH = 16
_MAX_BYTES = 16 << 20
_HINT = "Give exactly the token that the outcome with status needs_input had."


@dataclass(frozen=True)
class Interlude:
    """A run that was left off: its goal, what is asked, what is known, what it had used."""

    goal: str
    success_criteria: tuple[str, ...]
    questions: tuple[str, ...]
    answers: dict[str, str] = field(default_factory=dict)
    remembered: dict[str, str] = field(default_factory=dict)
    """What agents had answered, by a digest of what they were asked."""
    spent: Spent = field(default_factory=Spent)

    def answered(self, given: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
        """All answers by question; raises InvalidInput unless each question has one."""
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, Mapping):
            if len(given) != len(self.questions):
                raise InvalidInput(
                    f"There are {len(self.questions)} questions, and {len(given)} answers.",
                    hint="Give one answer for each, in their order: " + " · ".join(self.questions),
                )
            given = dict(zip(self.questions, given, strict=True))
        for question in self.questions:
            if question not in given:
                raise InvalidInput(f"This question has no answer: {question}")
        return {**self.answers, **{question: given[question] for question in self.questions}}


_SHAPE = TypeAdapter(Interlude)


def encode(interlude: Interlude) -> str:
    body = zlib.compress(_SHAPE.dump_json(interlude))
    return f"{_PREFIX}.{base64.urlsafe_b64encode(body).decode()}.{_sum(body)}"


def decode(token: str) -> Interlude:
    """The run that a token stands for; raises InvalidInput for anything else."""
    prefix, _, rest = token.strip().partition(".")
    text, _, given = rest.partition(".")
    if prefix != _PREFIX or not given:
        raise InvalidInput("This is not a token of a team that waits for answers.", hint=_HINT)
    try:
        body = base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        body = b""
    if _sum(body) != given:
        raise InvalidInput("The token was changed or cut off on its way.", hint=_HINT)
    try:
        unpacked = zlib.decompressobj().decompress(body, _MAX_BYTES)
        return _SHAPE.validate_python(json.loads(unpacked))
    except (ValueError, zlib.error, ValidationError):
        raise InvalidInput("The token is of another version of Kapelle.", hint=_HINT) from None


def _sum(body: bytes) -> str:
    """Against mistakes, not against forgers: a token lets nobody do more than run does."""
    return hashlib.sha256(_PREFIX.encode() + body).hexdigest()[:_SUM_LENGTH]
