"""The fold: what an agent's events come to."""

from kapelle.agents.base import Summary
from kapelle.agents.events import AgentEvent
from kapelle.agents.summary import OutputFold


def fold(*events: AgentEvent) -> Summary:
    folded = OutputFold()
    for event in events:
        folded.add(event)
    return folded.summary()


def test_a_result_without_text_is_what_was_said_last() -> None:
    said = [AgentEvent("text", "I look."), AgentEvent("text", "All done."), AgentEvent("text", "")]
    assert fold(*said, AgentEvent("result")).result == "All done."
    assert fold(*said, AgentEvent("result", "Finished.")).result == "Finished."


def test_what_was_said_is_no_result_by_itself() -> None:
    assert fold(AgentEvent("text", "All done.")).result is None
    assert fold(AgentEvent("result")).result == ""


def test_what_stderr_said_is_no_answer() -> None:
    summary = fold(AgentEvent("stderr", "warning"), AgentEvent("result"))
    assert (summary.result, summary.tail) == ("", "warning")


def test_the_last_text_is_kept_in_bounded_memory() -> None:
    result = fold(AgentEvent("text", "x" * 1_000_000), AgentEvent("result")).result
    assert result is not None
    assert len(result) == 100_000
