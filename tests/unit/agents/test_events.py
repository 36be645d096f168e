"""Kapelle's own event lines: how they are read, folded and judged."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kapelle.agents.adapters.rehearsal import RehearsalAgent
from kapelle.agents.base import AgentVerdict, Summary
from kapelle.agents.events import AgentEvent, parse_event
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.failures import FailureClass
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

AGENT = RehearsalAgent("rehearsal", AgentSettings())
OK = Exit(kind="exited", code=0)


def line(kind: str, text: str = "", name: str = "", **data: Any) -> str:
    return json.dumps({"kind": kind, "text": text, "name": name, "data": data})


def fold(*lines: str) -> Summary:
    return summarise(AGENT, lines)


def judge(*lines: str, code: int = 0) -> AgentVerdict:
    return AGENT.judge(fold(*lines), Exit(kind="exited", code=code), "\n".join(lines))


def test_an_event_survives_the_way_to_json_and_back() -> None:
    event = AgentEvent("tool_call", name="Read", data={"path": "a", "lines": [1, 2]})
    assert parse_event(json.dumps(event.to_json())) == [event]


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "{",
        '{"kind": "unknown"}',
        '{"kind": ["text"]}',
        "[1]",
        "{" * 100_000,
        '{"a":' * 100_000,
        '{"kind": "usage", "data": {"n": ' + "9" * 5000 + "}}",
    ],
)
def test_what_is_no_event_is_text(text: str) -> None:
    assert parse_event(text + "\r\n") == [AgentEvent("text", text=text)]


def test_fields_of_a_wrong_type_are_dropped() -> None:
    said = '{"kind": "text", "text": 3, "name": [], "data": "x"}'
    assert parse_event(said) == [AgentEvent("text")]


def test_half_a_surrogate_pair_becomes_encodable() -> None:
    (event,) = parse_event(
        '{"kind": "text", "text": "a\\ud800", "data": {"\\udc00": "\\ud83c\\udfbb"}}'
    )
    assert (event.text, event.data) == ("a?", {"?": "🎻"})


def test_usage_adds_up_unless_it_is_a_total() -> None:
    first = line("usage", input_tokens=10, output_tokens=1, cost_usd=0.5)
    second = line("usage", input_tokens=5, cached_tokens=3, turns=1)
    assert fold(first, second).usage == Usage(
        input_tokens=15, output_tokens=1, cached_tokens=3, turns=1, cost_usd=0.5
    )
    total = line("usage", input_tokens=7, total=True)
    assert fold(first, total).usage == Usage(input_tokens=7, output_tokens=1, cost_usd=0.5)
    once = line("usage", input_tokens=10, id="m1")
    assert fold(once, once, first).usage == Usage(input_tokens=20, output_tokens=1, cost_usd=0.5)
    session = fold(line("usage", input_tokens=9, total=True, of_session=["input_tokens", "x"]))
    assert session.of_session == {"input_tokens"}
    assert fold(line("usage", input_tokens="many", output_tokens=-1, cost_usd=1e300)).usage is None
    assert fold().usage is None


def test_the_summary_keeps_the_last_word() -> None:
    summary = fold(
        line("session", "s1"),
        line("text", "hello"),
        "raw",
        line("error", "slow down", "rate_limit"),
        line("result", "done"),
    )
    assert (summary.result, summary.session_id, summary.tail) == ("done", "s1", "hello\nraw")
    assert summary.error == AgentEvent("error", "slow down", "rate_limit")
    assert fold(line("result", "done"), line("question", "why?")).result is None
    assert fold(line("question", "why?"), line("result", "done")).question is None


def test_a_result_is_success() -> None:
    verdict = judge(line("result", "done"))
    assert verdict == AgentVerdict(True, result="done", claimed="success")


def test_silence_is_not_success() -> None:
    verdict = judge(line("text", "working"))
    assert (verdict.success, verdict.claimed) == (False, None)
    assert "without reporting a result" in (verdict.reason or "")


def test_an_error_result_is_failure_even_with_code_0() -> None:
    verdict = judge(line("error", "no luck"), line("result", "no luck", is_error=True))
    assert (verdict.success, verdict.claimed, verdict.reason) == (False, "failure", "no luck")


def test_success_after_a_rate_limit_is_success() -> None:
    limited = line("error", "slow", "rate_limit")
    assert judge(limited, line("result", "done")).success
    late = judge(limited, line("result", "done"), code=1)
    assert (late.success, late.question) == (False, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-01-02T03:04:05+00:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("soon", None),
        (17, None),
    ],
)
def test_a_rate_limit_is_waited_for(given: object, expected: datetime | None) -> None:
    limited = line("error", "slow down", "rate_limit", retry_at=given)
    assert not judge(limited, code=1).success
    failure = classify(fold(limited), Exit(kind="exited", code=1), limited)
    assert (failure.kind, failure.retry_at) == (FailureClass.RATE_LIMIT, expected)


def test_a_question_is_waited_for() -> None:
    verdict = judge(line("question", "which one?"))
    assert (verdict.success, verdict.question) == (False, "which one?")
    assert "which one?" in (verdict.reason or "")
