"""An agent that only ever meets refusals is told from one that gets on."""

from kapelle.agents.events import AgentEvent
from kapelle.domain.failures import FailureClass
from kapelle.engine.tasks.watch import Refusal

LIMITED = AgentEvent("notice", "Reconnecting... 1/2", data={"status": 429})


def test_refusals_alone_are_outlasted_and_progress_ends_them() -> None:
    refusal = Refusal()
    assert refusal.outlasts(0) is None
    refusal.add(LIMITED)
    refusal.add(AgentEvent("notice", "hook trust bypassed"))
    found = refusal.outlasts(0)
    assert found is not None
    assert found.kind is FailureClass.RATE_LIMIT
    assert refusal.outlasts(60) is None
    refusal.add(AgentEvent("tool_call", name="Read"))
    assert refusal.outlasts(0) is None


def test_the_same_error_again_and_again_is_a_circle() -> None:
    refusal = Refusal()
    full = AgentEvent("error", "too long", "context_overflow")
    for _ in range(9):
        refusal.add(full)
        refusal.add(AgentEvent("text", "compacted"))
    assert refusal.outlasts(60) is None
    refusal.add(full)
    found = refusal.outlasts(60)
    assert found is not None
    assert found.kind is FailureClass.CONTEXT_OVERFLOW
    refusal.add(AgentEvent("tool_result"))
    assert refusal.outlasts(60) is None
