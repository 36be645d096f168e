"""The scripted model answers as a provider would, in every dialect."""

import time
from datetime import UTC, datetime
from http.client import RemoteDisconnected
from typing import Any

import pytest

from tests.agents.dialogue import PATHS, ask, called, post, said
from tests.agents.model import SABOTAGE, ModelServer

FOUND = {"id": '"id": "(s.an)"', "no": "(z{9})"}
each_dialect = pytest.mark.parametrize("dialect", list(PATHS))


@each_dialect
def test_a_script_is_played_step_by_step(model: ModelServer, dialect: str) -> None:
    model.scripts.put(
        "a",
        [
            {"write": {"path": "/w/x.txt", "content": "hello\n"}, "say": "First."},
            {"bash": "make"},
            {"tool": "ping", "args": {"n": 1}},
            {"text": "All is well."},
        ],
    )
    answers = [ask(model, dialect, "a").body for _ in range(5)]
    written = {"path": "/w/x.txt", "content": "hello\n"}
    assert said(dialect, answers[0]) == "First."
    assert called(dialect, answers[0]) == ("write_file", written)
    assert called(dialect, answers[1]) == ("bash", {"command": "make"})
    assert called(dialect, answers[2]) == ("mcp__box__ping", {"n": 1})
    assert [said(dialect, answer) for answer in answers[3:]] == ["All is well.", "done"]


@each_dialect
def test_a_step_takes_up_what_was_said_before(model: ModelServer, dialect: str) -> None:
    model.scripts.put(
        "a",
        [{"tool": "ping", "args": {"ids": ["$id", "$no"]}, "find": FOUND}],
    )
    answer = ask(model, dialect, "a", prompt='It said {"id": "swan"}, then {"id": "sean"}.').body
    assert called(dialect, answer) == ("mcp__box__ping", {"ids": ["swan", "no no"]})


@each_dialect
def test_a_stream_says_the_same(model: ModelServer, dialect: str) -> None:
    model.scripts.put("a", [{"text": "All is well."}, {"bash": "make"}])
    text = ask(model, dialect, "a", stream=True)
    assert text.headers["content-type"] == "text/event-stream"
    assert "All is well." in text.text
    call = ask(model, dialect, "a", stream=True)
    assert "bash" in call.text
    assert "make" in call.text


@each_dialect
def test_the_whole_request_can_be_read_afterwards(model: ModelServer, dialect: str) -> None:
    ask(model, dialect, "a", prompt="Remember the swan.")
    (request,) = model.scripts.await_requests("a", 1)
    assert "Remember the swan." in request.text
    assert "swan" in str(request.turns)
    assert request.body["tools"]
    assert request.headers["x-asked-by"] == "test"
    assert request.dialect == dialect
    assert not model.scripts.requests("b")


def _cached(dialect: str, body: Any) -> tuple[int, int]:
    """The whole input and its cached part, from the dialect's own fields."""
    usage = body.get("usage") or body["usageMetadata"]
    if dialect == "anthropic":
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached
    if dialect == "responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    if dialect == "chat":
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    return usage["promptTokenCount"], usage["cachedContentTokenCount"]


@each_dialect
def test_cached_tokens_are_part_of_the_input(model: ModelServer, dialect: str) -> None:
    model.scripts.put("a", [{"text": "x", "usage": [1000, 7], "cached": 800}])
    assert _cached(dialect, ask(model, dialect, "a").body) == (1000, 800)


@each_dialect
def test_an_error_carries_the_headers_that_the_script_gives(
    model: ModelServer, dialect: str
) -> None:
    error = {"error": 429, "retry_after": 3, "message": "Slow down.", "headers": {"x-odd": "1"}}
    model.scripts.put("a", [error | {"times": 2}])
    for _ in range(2):
        reply = ask(model, dialect, "a", stream=True)
        assert reply.status == 429
        assert reply.body["error"]["message"] == "Slow down."
        assert (reply.headers["retry-after"], reply.headers["x-odd"]) == ("3", "1")
    assert ask(model, dialect, "a").status == 200


def test_a_limit_tells_when_it_ends_as_each_provider_does(model: ModelServer) -> None:
    model.scripts.put("a", [{"error": 429, "reset_in": 600, "times": -1}])
    headers = ask(model, "anthropic", "a").headers
    assert 590 < int(headers["anthropic-ratelimit-unified-reset"]) - time.time() <= 600
    reset_at = datetime.fromisoformat(headers["anthropic-ratelimit-requests-reset"])
    assert 590 < (reset_at - datetime.now(UTC)).total_seconds() <= 600
    assert ask(model, "chat", "a").headers["x-ratelimit-reset-requests"] == "600s"


@pytest.mark.parametrize(
    ("dialect", "status", "words"),
    [
        ("anthropic", 400, "prompt is too long: 214361 tokens > 200000 maximum"),
        ("responses", 400, "context_length_exceeded"),
        ("chat", 400, "context_length_exceeded"),
        ("gemini", 400, "exceeds the maximum number of tokens allowed"),
    ],
)
def test_an_overflow_is_worded_as_by_the_provider(
    model: ModelServer, dialect: str, status: int, words: str
) -> None:
    model.scripts.put("a", [{"overflow": True}])
    reply = ask(model, dialect, "a")
    assert reply.status == status
    assert words in reply.text


def test_an_overflow_of_a_streamed_response_comes_within_the_stream(model: ModelServer) -> None:
    model.scripts.put("a", [{"overflow": True}])
    reply = ask(model, "responses", "a", stream=True)
    (event,) = reply.events
    assert (reply.status, event["type"]) == (200, "response.failed")
    assert event["response"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("dialect", "status", "words"),
    [
        ("anthropic", 400, "Your credit balance is too low"),
        ("responses", 429, "insufficient_quota"),
        ("chat", 429, "insufficient_quota"),
        ("gemini", 403, "BILLING_DISABLED"),
    ],
)
def test_spent_money_is_worded_as_by_the_provider(
    model: ModelServer, dialect: str, status: int, words: str
) -> None:
    model.scripts.put("a", [{"billing": True}])
    reply = ask(model, dialect, "a", stream=True)
    assert reply.status == status
    assert words in reply.text


@each_dialect
def test_a_sabotaged_model_only_claims(model: ModelServer, dialect: str) -> None:
    model.scripts.put("a", [{"bash": "make"}])
    model.scripts.sabotaged = True
    assert said(dialect, ask(model, dialect, "a").body) == SABOTAGE
    assert model.scripts.taken("a") == 0


@each_dialect
def test_a_request_without_tools_takes_a_step_only_on_a_plain_lane(
    model: ModelServer, dialect: str
) -> None:
    for lane in ("a", "plain-a"):
        model.scripts.put(lane, [{"text": "the step"}])
    assert said(dialect, ask(model, dialect, "a", tools=()).body) == "ok"
    assert said(dialect, ask(model, dialect, "plain-a", tools=()).body) == "the step"
    assert not model.scripts.requests("a")
    assert len(model.scripts.requests("a", side=True)) == 1


def test_a_side_request_gets_the_json_that_it_asks_for(model: ModelServer) -> None:
    schema = {"properties": {"kind": {"enum": ["small", "big"]}, "sure": {"type": "boolean"}}}
    body = {"generationConfig": {"responseJsonSchema": schema}, "contents": []}
    reply = post(model, f"/s/a{PATHS['gemini']}", body)
    assert said("gemini", reply.body) == '{"kind": "small", "sure": false}'


@pytest.mark.parametrize(
    ("form", "edit"),
    [
        ("*SEARCH/REPLACE* blocks", "<<<<<<< SEARCH\n=======\npass\n>>>>>>> REPLACE\n"),
        ("a *file listing*", "pass\n"),
    ],
)
def test_aider_gets_edits_in_the_form_it_asks_for(model: ModelServer, form: str, edit: str) -> None:
    model.scripts.put("a", [{"write": {"path": "x.py", "content": "pass"}}])
    text = said("chat", ask(model, "chat", "a", f"Answer with {form}.", tools=()).body)
    assert text == f"\nx.py\n```\n{edit}```\n"


def test_codex_gets_a_patch_and_the_namespace_of_its_tools(model: ModelServer) -> None:
    model.scripts.put("a", [{"write": {"path": "x", "content": "1\n"}}, {"tool": "ping"}])
    ping = {"type": "function", "name": "ping", "parameters": {}}
    tools = [
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "mcp__box", "tools": [ping]},
    ]
    body = {"model": "m", "input": [], "tools": tools}
    patch, call = (post(model, "/s/a/v1/responses", body).body["output"][-1] for _ in range(2))
    assert (patch["type"], patch["name"]) == ("custom_tool_call", "apply_patch")
    assert "*** Add File: x\n+1\n" in patch["input"]
    assert (call["name"], call["namespace"]) == ("ping", "mcp__box")


def test_a_mark_in_the_conversation_names_the_lane(model: ModelServer) -> None:
    model.scripts.put("b", [{"text": "from b"}])
    reply = ask(model, "chat", "a", prompt="Do it. [[lane:b]]")
    assert said("chat", reply.body) == "from b"


def test_a_hanging_model_drops_the_connection_in_the_end(model: ModelServer) -> None:
    model.scripts.put("a", [{"hang": 0.2}])
    began = time.monotonic()
    with pytest.raises(RemoteDisconnected):
        ask(model, "chat", "a")
    assert time.monotonic() - began >= 0.2


def test_a_dropped_stream_has_no_end(model: ModelServer) -> None:
    model.scripts.put("a", [{"drop": True}])
    events = ask(model, "anthropic", "a", stream=True).events
    assert [event["type"] for event in events] == ["message_start"]


def test_a_step_that_nobody_knows_is_refused(model: ModelServer) -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        model.scripts.put("a", [{"wriet": {}}])
    with pytest.raises(ValueError, match="More tokens are cached"):
        model.scripts.put("a", [{"text": "x", "cached": 500}])
