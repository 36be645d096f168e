"""An agent that keeps asking a provider that refuses."""

import time
from dataclasses import replace

from kapelle.agents.base import AgentEvent
from kapelle.agents.failures import failure_of
from kapelle.domain.failures import Failure, FailureClass

_PASSING = frozenset({FailureClass.RATE_LIMIT, FailureClass.OVERLOADED})
_PROGRESS = frozenset({"text", "tool_call", "tool_result", "plan", "usage", "result"})


class Refusal:
    """Notes since when nothing but refusals has come; any progress is the end of it."""

    def __init__(self) -> None:
        self._failure: Failure | None = None
        self._since = 0.0

    def add(self, event: AgentEvent) -> None:
        if event.kind in _PROGRESS:
            self._failure = None
        elif event.kind == "notice":
            found = failure_of(event)
            if found is not None and found.kind in _PASSING:
                self._since = self._since if self._failure else time.monotonic()
                self._failure = found

    def outlasts(self, patience_s: float) -> Failure | None:
        """The refusal, once it has lasted longer than the agent's own retries should."""
        if self._failure is None or time.monotonic() - self._since < patience_s:
            return None
        evidence = f"{self._failure.evidence}, for {patience_s:g} s and longer"
        return replace(self._failure, evidence=evidence)
