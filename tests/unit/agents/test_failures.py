"""Why an attempt failed: fields before the exit, the exit before words, and words with care."""

import time
from typing import Any

import pytest

from kapelle.agents.base import Summary
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify, classify_event
from kapelle.domain.failures import FailureClass
from kapelle.domain.task import Exit

FAILED = Exit(kind="exited", code=1)


def error(text: str = "", name: str = "", **data: Any) -> Summary:
    return Summary(error=AgentEvent("error", text, name, data))


def kind(summary: Summary, exit: Exit = FAILED, tail: str = "", *own: str) -> FailureClass:
    failure = classify(summary, exit, tail, own)
    assert failure.evidence
    return failure.kind


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"status": 401}, "authentication"),
        ({"status": 402}, "billing"),
        ({"status": 403}, "authentication"),
        ({"status": 429}, "rate_limit"),
        ({"status": 429, "type": "insufficient_quota"}, "billing"),
        ({"status": 500}, "overloaded"),
        ({"status": 529}, "overloaded"),
        ({"type": "overloaded_error"}, "overloaded"),
        ({"type": "RESOURCE_EXHAUSTED"}, "rate_limit"),
        ({"type": "context_length_exceeded"}, "context_overflow"),
        ({"status": "429", "type": 7}, "task"),
    ],
)
def test_structured_fields_tell(data: dict[str, Any], expected: str) -> None:
    assert kind(error("it is so", **data)) == expected


def test_what_the_agent_names_comes_first() -> None:
    assert kind(error("rate limit", "billing", status=500)) is FailureClass.BILLING


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Your credit balance is too low to access the API", "billing"),
        ("prompt is too long: 210000 tokens > 200000 maximum", "context_overflow"),
        ("The input token count (1196265) exceeds the maximum", "context_overflow"),
        ("The model `m9` does not exist", "capability"),
    ],
)
def test_the_words_of_a_refusal_say_more_than_its_status(text: str, expected: str) -> None:
    assert kind(error(text, status=400)) == expected


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (Exit(kind="lost"), "lost"),
        (Exit(kind="signaled", signal=11), "crash"),
        (Exit(kind="signaled", signal=9), "out_of_memory"),
        (Exit(kind="not_started"), "environment"),
        (Exit(kind="exited", code=127), "environment"),
        (Exit(kind="exited", code=1), "crash"),
        (Exit(kind="exited", code=0), "unknown"),
    ],
)
def test_the_exit_tells_where_nothing_was_said(exit: Exit, expected: str) -> None:
    assert kind(Summary(), exit) == expected


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("cp: error writing 'x': No space left on device", "disk_full"),
        ("FATAL ERROR: Reached heap limit - JavaScript heap out of memory", "out_of_memory"),
        ("connect ECONNREFUSED 127.0.0.1:5432", "environment"),
        ("claude codex gemini overloaded 429 401 rate limit", "crash"),
    ],
)
def test_the_last_words_tell_last_and_no_product_name_does(tail: str, expected: str) -> None:
    assert kind(Summary(), tail=tail) == expected


@pytest.mark.parametrize(
    "prose",
    [
        "I could not finish the rate limiter: two tests still fail.",
        "The overloaded operator does not compile.",
        "Connection refused is what the test expects; it got 200.",
        "errno.ENOSPC is not handled by the writer.",
    ],
)
def test_what_an_agent_says_of_its_work_is_not_taken_for_a_providers_refusal(prose: str) -> None:
    assert kind(Summary(result=prose, is_error=True), tail=prose) is FailureClass.TASK


def test_an_absurd_wait_is_no_accident() -> None:
    text = "HTTP error 429: try again in 99999999999 hours"
    assert kind(error(text, status=429)) is FailureClass.RATE_LIMIT


def test_a_limit_says_when_it_ends() -> None:
    stated = classify(error("x", status=429, retry_at="2026-01-02T03:04:05Z"), FAILED, "")
    assert stated.retry_at is not None
    assert stated.retry_at.isoformat() == "2026-01-02T03:04:05+00:00"
    said = classify(error("Too many requests, try again in 20s", status=429), FAILED, "")
    assert said.retry_at is not None


def test_texts_of_ones_own_make_a_failure_the_environments() -> None:
    tail = "step 1\nThe service db is Not Running any more\n"
    assert kind(Summary(), FAILED, tail, "service*not running") is FailureClass.ENVIRONMENT
    assert kind(Summary(), FAILED, tail, "running*service") is FailureClass.CRASH
    began = time.process_time()
    kind(Summary(), FAILED, "x" * 100_000, "*x" * 50 + "y")
    assert time.process_time() - began < 2


def test_a_notice_is_read_alike() -> None:
    found = classify_event(AgentEvent("notice", "Rate limit reached for requests"))
    assert found is not None
    assert found.kind is FailureClass.RATE_LIMIT
    assert classify_event(AgentEvent("notice", "hook trust bypassed")) is None


@pytest.mark.parametrize(
    ("text", "kind", "of_model"),
    [
        ("This request would exceed your account's rate limit. Please try again later.",
         "rate_limit", False),
        ("Resource has been exhausted (e.g. check quota).", "rate_limit", False),
        ("Service tier capacity exceeded for this model.", "rate_limit", True),
        ("Rate limit reached for gpt-4.1 in organization org-1 on tokens per min", "rate_limit",
         True),
        ("You have hit your Opus limit, resets 5pm", "rate_limit", True),
        ("Provider returned error", "overloaded", False),
        ("Bad Gateway", "overloaded", False),
    ],
)  # fmt: skip
def test_providers_words_for_limits(text: str, kind: str, of_model: bool) -> None:
    found = classify_event(AgentEvent("notice", text))
    assert found is not None
    assert (found.kind, found.of_model) == (kind, of_model)
