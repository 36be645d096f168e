"""Why a run stops where it is, for now or for good."""

from collections.abc import Set
from typing import Any


class Interrupted(BaseException):
    """The run stops here for now; not an Exception, so that no pattern catches it by mistake.

    A built-in pattern leaves what it has so far in result, for a run that is cancelled, and in
    restore the commit that the run's branch goes back to then.
    """

    result: Any = None
    restore: str | None = None


class Paused(Interrupted):
    """A person wants the run to pause."""


class Suspended(Interrupted):
    """The run waits for a person's answer, at these places."""

    def __init__(self, asked: Set[str]) -> None:
        super().__init__()
        self.asked = asked


class Cancelled(Interrupted):
    """A person wants the run to end."""
