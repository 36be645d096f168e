"""An agent that keeps asking a provider that refuses, or goes round in circles."""

import time
from dataclasses import replace

from kapelle.agents.base import AgentEvent
from kapelle.agents.failures import failure_of
from kapelle.domain.failures import Failure, FailureClass

_PASSING = frozenset({FailureClass.RATE_LIMIT, FailureClass.OVERLOADED})
_PROGRESS = frozenset({"text", "tool_call", "tool_result", "plan", "usage", "result"})
# Errors without any work between them after which nothing else will come.
_CIRCLES = 10
_LONGEST = 500


class Refusal:
    """Notes since when nothing but refusals has come; any progress is the end of it."""

    def __init__(self) -> None:
        self._failure: Failure | None = None
        self._since = 0.0
        self._errors = 0
        self._last_error: AgentEvent | None = None

    def add(self, event: AgentEvent) -> None:
        if event.kind == "error":
            self._errors, self._last_error = self._errors + 1, event
        elif event.kind in {"tool_call", "tool_result"}:
            self._errors = 0
        if event.kind in _PROGRESS:
            self._failure = None
        elif event.kind == "notice":
            found = failure_of(event)
            if found is not None and found.kind in _PASSING:
                self._since = self._since if self._failure else time.monotonic()
                self._failure = found

    def outlasts(self, patience_s: float) -> Failure | None:
        """The refusal, once it has lasted longer than the agent's own retries should."""
        if self._last_error is not None and self._errors >= _CIRCLES:
            said = f"{self._errors} errors without any work between them: {self._last_error.text}"
            found = failure_of(self._last_error) or Failure(FailureClass.TASK, "")
            return replace(found, evidence=said[:_LONGEST])
        if self._failure is None or time.monotonic() - self._since < patience_s:
            return None
        evidence = f"{self._failure.evidence}, for {patience_s:g} s and longer"
        return replace(self._failure, evidence=evidence)
