"""The bridges to plain models as real processes, against a real server on loopback."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.integration.plain_server import (
    KEY,
    ODD,
    USAGE,
    Asked,
    Asking,
    Server,
    halves,
    message,
    pieces,
    play,
)

from kapelle.agents.adapters.anthropic import AnthropicAgent
from kapelle.agents.adapters.openai import OpenaiAgent
from kapelle.agents.base import AgentVerdict
from kapelle.agents.failures import classify
from kapelle.domain.task import Usage
from kapelle.settings import AgentSettings


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.free.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


@pytest.fixture
def openai(server: Server, workspace: Path) -> Asking:
    settings = AgentSettings(model="small", base_url=f"{server.url}/v1/")
    return Asking(OpenaiAgent("judge", settings), workspace, "OPENAI_API_KEY")


@pytest.fixture
def anthropic(server: Server, workspace: Path) -> Asking:
    settings = AgentSettings(model="claude-x", base_url=server.url)
    return Asking(AnthropicAgent("judge", settings), workspace, "ANTHROPIC_API_KEY")


@pytest.fixture(params=["openai", "anthropic"])
def either(request: pytest.FixtureRequest) -> Asking:
    asking: Asking = request.getfixturevalue(request.param)
    return asking


class TestAnAnswer:
    def test_comes_to_what_was_asked_with_model_and_usage(
        self, either: Asking, server: Server
    ) -> None:
        server.part = play(either, "Yes, ", "it is.\nBe", "cause.")
        told = either.ask(ODD, system_prompt="Be brief. Überall.")
        assert told.verdict == AgentVerdict(
            True, result="Yes, it is.\nBecause.", claimed="success"
        ), told.stderr
        assert told.texts() == ["Yes, it is.", "Because."]
        assert told.summary.model in {"small-2026", "claude-x-2026"}
        assert told.summary.usage == Usage(
            input_tokens=100, output_tokens=20, cached_tokens=60, turns=1
        )
        assert told.stderr == ""
        (asked,) = server.seen
        said = [asked.body.get("system"), *[m["content"] for m in asked.body["messages"]]]
        assert [text for text in said if text] == ["Be brief. Überall.", ODD]
        assert asked.body["model"] == either.agent.settings.model
        assert asked.path in {"/v1/chat/completions", "/v1/messages"}
        assert KEY in f"{asked.headers['Authorization']} {asked.headers['X-Api-Key']}"

    def test_may_be_to_a_prompt_of_a_megabyte(self, openai: Asking, server: Server) -> None:
        server.part = play(openai, "Long")
        assert openai.ask("x" * 1_000_000).verdict.success
        assert len(server.seen[0].body["messages"][-1]["content"]) == 1_000_000

    def test_is_passed_on_while_it_streams(self, either: Asking, server: Server) -> None:
        def part(asked: Asked) -> None:
            before, after = halves(either, "One\n", "two")
            asked.stream(*before)
            server.free.wait(30)
            for event in after:
                asked.event(event)

        server.part = part
        with either.start(either.command("Count")) as process:
            assert process.stdout
            early = ""
            while "One" not in early:
                line = process.stdout.readline().decode()
                assert line, process.stderr and process.stderr.read()
                early += line
            server.free.set()
            assert either.end(process).verdict.result == "One\ntwo"

    def test_is_not_confused_by_modules_in_the_workspace(
        self, either: Asking, server: Server
    ) -> None:
        for name in ("json.py", "anthropic.py", "kapelle.py", "http.py"):
            (either.workspace / name).write_text("raise SystemExit(9)", encoding="utf-8")
        server.part = play(either, "Yes")
        assert either.ask().verdict.success

    def test_needs_no_key_from_a_server_of_ones_own(self, either: Asking, server: Server) -> None:
        server.part = play(either, "Yes")
        either.env = {}
        assert either.ask().verdict.success


class TestNoAnswer:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [(400, "task"), (401, "authentication"), (402, "billing"), (403, "authentication"),
         (404, "environment"), (413, "context_overflow"), (429, "rate_limit"),
         (500, "overloaded"), (502, "overloaded"), (529, "overloaded")],
    )  # fmt: skip
    @pytest.mark.parametrize("body", [{"error": {"message": f"It is {KEY}"}}, b"<html>"])
    def test_a_bad_status_is_a_failure_of_its_class(
        self, openai: Asking, server: Server, status: int, kind: str, body: object
    ) -> None:
        server.part = lambda asked: asked.reply(body, status)
        told = openai.ask()
        assert told.failure == kind
        assert told.exit.code == 1
        assert len(server.seen) == 1

    @pytest.mark.parametrize(
        ("status", "type_", "kind"),
        [(401, "authentication_error", "authentication"), (404, "not_found_error", "capability"),
         (529, "overloaded_error", "overloaded")],
    )  # fmt: skip
    def test_an_error_of_anthropic_is_one_of_its_class(
        self, anthropic: Asking, server: Server, status: int, type_: str, kind: str
    ) -> None:
        body = {"type": "error", "error": {"type": type_, "message": "No."}}
        server.part = lambda asked: asked.reply(body, status)
        told = anthropic.ask()
        assert told.failure == kind
        assert told.verdict.reason == f"HTTP {status}: No."
        assert len(server.seen) == 1

    def test_a_limit_says_when_it_ends(self, either: Asking, server: Server) -> None:
        error = {"error": {"type": "rate_limit_error", "message": "Slow down."}}
        server.part = lambda asked: asked.reply(error, 429, Retry_After="120")
        told = either.ask()
        failure = classify(told.summary, told.exit, "")
        assert failure.retry_at
        assert 60 < (failure.retry_at - datetime.now(UTC)).total_seconds() < 121

    def test_an_error_in_mid_answer_is_told(self, either: Asking, server: Server) -> None:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}}
        before, _ = halves(either, "One\ntw")
        server.part = lambda asked: asked.stream(*before, error)
        told = either.ask()
        assert told.failure == "overloaded"
        assert told.texts() == ["One", "tw"]
        assert told.summary.result is None

    def test_a_connection_that_drops_in_mid_answer(self, either: Asking, server: Server) -> None:
        before, _ = halves(either, "One\ntwo")
        server.part = lambda asked: asked.stream(*before)
        told = either.ask()
        assert told.failure == "environment"
        assert told.texts() == ["One", "two"]
        # Anthropic tells of the input before the answer.
        if isinstance(either.agent, AnthropicAgent):
            assert told.summary.usage == Usage(
                input_tokens=100, output_tokens=1, cached_tokens=60, turns=1
            )

    def test_a_connection_that_is_reset(self, openai: Asking, server: Server) -> None:
        def part(asked: Asked) -> None:
            asked.stream(*halves(openai, "One")[0])
            no_wait = b"\1\0\0\0\0\0\0\0"
            asked.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_wait)
            asked.connection.close()

        server.part = part
        assert openai.ask().failure == "environment"

    def test_a_chunk_that_is_cut_off(self, either: Asking, server: Server) -> None:
        def part(asked: Asked) -> None:
            head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            asked.wfile.write(f"{head}Transfer-Encoding: chunked\r\n\r\nff\r\ndata: ".encode())

        server.part = part
        assert either.ask().failure == "environment"

    def test_nobody_listens(self, either: Asking) -> None:
        with socket.socket() as unheard:
            unheard.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{unheard.getsockname()[1]}"
            settings = either.agent.settings.model_copy(update={"base_url": address})
            either.agent = type(either.agent)("judge", settings)
            told = either.ask()
        assert told.failure == "environment"
        assert "refused" in str(told.verdict.reason)

    def test_the_server_falls_silent(self, either: Asking, server: Server) -> None:
        server.part = server.silence
        told = either.ask(extra=["--timeout", "0.5"])
        assert told.failure == "timeout"
        assert told.verdict.reason == "The server sent nothing for 0.5 s."

    def test_the_server_falls_silent_in_mid_answer(self, either: Asking, server: Server) -> None:
        def part(asked: Asked) -> None:
            asked.stream(*halves(either, "One")[0])
            server.free.wait(30)

        server.part = part
        assert either.ask(extra=["--timeout", "0.5"]).failure == "timeout"

    @pytest.mark.parametrize("said", ["{not JSON", "[1]"])
    def test_what_is_said_is_no_json(self, either: Asking, server: Server, said: str) -> None:
        before, after = halves(either, "One")
        # A kind for Anthropic's stream, where what has none is passed over.
        broken = f"{said}\n\nevent: content_block_delta\ndata: {said}"
        server.part = lambda asked: asked.stream(*before, broken, *after)
        told = either.ask()
        assert told.failure == "environment"
        assert "Traceback" not in told.stderr

    def test_another_kind_of_server_answers(self, either: Asking, server: Server) -> None:
        server.part = lambda asked: asked.reply(b"<html>Log in</html>", Content_Type="text/html")
        assert either.ask().failure == "environment"

    def test_a_redirect_is_not_followed(self, either: Asking, server: Server) -> None:
        server.part = lambda asked: asked.reply(b"", 307, Location=f"{server.url}/elsewhere")
        told = either.ask()
        assert told.failure == "environment"
        assert "/elsewhere" in str(told.verdict.reason)
        assert len(server.seen) == 1

    def test_an_empty_answer_is_none(self, openai: Asking, server: Server) -> None:
        server.part = play(openai, " ", "\n")
        told = openai.ask()
        assert told.failure == "task"
        assert told.verdict.reason == "The model gave an empty answer."
        assert told.summary.usage
        assert told.summary.usage.output_tokens == 20

    def test_a_wrong_argument_is_told(self, openai: Asking) -> None:
        told = openai.ask(extra=["--no-such"])
        assert "--no-such" in str(told.verdict.reason)
        assert told.failure == "environment"

    def test_it_ends_at_once_when_asked_to(self, either: Asking, server: Server) -> None:
        server.part = server.silence
        with either.start(either.command("Wait")) as process:
            while not server.seen:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            told = either.end(process)
        assert told.exit.signal == signal.SIGTERM
        assert not told.verdict.success


class TestOpenai:
    def test_a_server_that_does_not_stream_is_understood(
        self, openai: Asking, server: Server
    ) -> None:
        choice = {"message": {"content": "Yes\nNo"}, "finish_reason": "stop"}
        body = {"model": "small-2026", "choices": [choice], "usage": USAGE}
        padded = b"\n \n" + json.dumps(body, indent=1).encode()
        server.part = lambda asked: asked.reply(padded)
        told = openai.ask()
        assert told.verdict.result == "Yes\nNo"
        assert told.summary.usage
        assert told.summary.usage.input_tokens == 100

    @pytest.mark.parametrize("end", [pieces(), ["[DONE]"]], ids=["reason", "done"])
    def test_either_end_of_a_stream_will_do(
        self, openai: Asking, server: Server, end: list[object]
    ) -> None:
        server.part = lambda asked: asked.stream(*pieces("Yes", reason=None), *end)
        told = openai.ask()
        assert told.verdict.result == "Yes"
        assert told.summary.usage == Usage(turns=1)

    def test_comments_and_thoughts_are_no_answer(self, openai: Asking, server: Server) -> None:
        parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Yes"}]
        thought = {"choices": [{"delta": {"content": None, "reasoning_content": "Hm"}}]}
        said = {"choices": [{"delta": {"content": parts}}]}
        comment = f"{json.dumps(thought)}\n\n: PROCESSING\nid: 1\nretry: 5"
        server.part = lambda asked: asked.stream(comment, said, *pieces())
        assert openai.ask().verdict.result == "Yes"

    def test_an_emoji_may_come_in_two_halves(self, openai: Asking, server: Server) -> None:
        server.part = lambda asked: asked.stream(*pieces("\ud83c", "\udfbb"))
        assert openai.ask().verdict.result == "🎻"

    def test_a_server_that_knows_no_stream_options_is_asked_without(
        self, openai: Asking, server: Server
    ) -> None:
        def part(asked: Asked) -> None:
            if "stream_options" in asked.body:
                asked.reply({"detail": [{"loc": ["body", "stream_options"]}]}, 422)
            else:
                asked.stream(*pieces("Yes"))

        server.part = part
        assert openai.ask().verdict.result == "Yes"

    def test_an_answer_that_was_cut_off_has_a_notice(self, openai: Asking, server: Server) -> None:
        server.part = lambda asked: asked.stream(*pieces("Ye", reason="length"))
        told = openai.ask()
        assert told.verdict.result == "Ye"
        assert told.texts("notice") == ["The answer was cut off at the limit of its length."]

    def test_a_filtered_answer_is_none(self, openai: Asking, server: Server) -> None:
        server.part = lambda asked: asked.stream(*pieces("Ye", reason="content_filter"))
        assert openai.ask().failure == "task"

    def test_a_key_that_cannot_be_one_is_not_sent(self, openai: Asking, server: Server) -> None:
        openai.env = {"OPENAI_API_KEY": f"{KEY}\nX-Evil: 1"}
        assert openai.ask().failure == "authentication"
        assert not server.seen

    def test_a_proxy_of_the_environment_is_used(self, openai: Asking, server: Server) -> None:
        settings = AgentSettings(model="small", base_url="http://model.invalid/v1")
        openai.agent = OpenaiAgent("judge", settings)
        openai.env["http_proxy"] = server.url.replace("//", "//user:p%40ss@")
        server.part = play(openai, "Yes")
        assert openai.ask().verdict.success
        (asked,) = server.seen
        assert asked.path == "http://model.invalid/v1/chat/completions"
        assert asked.headers["Host"] == "model.invalid"
        assert asked.headers["Proxy-Authorization"] == "Basic dXNlcjpwQHNz"

    def test_no_proxy_stands_for_this_machine(self, openai: Asking, server: Server) -> None:
        openai.env["http_proxy"] = "http://127.0.0.1:1"
        server.part = play(openai, "Yes")
        assert openai.ask().verdict.success


class TestAnthropic:
    def test_an_answer_that_was_cut_off_has_a_notice(
        self, anthropic: Asking, server: Server
    ) -> None:
        server.part = lambda asked: asked.stream(*message("Ye", reason="max_tokens"))
        told = anthropic.ask(extra=["--max-tokens", "7"])
        assert server.seen[0].body["max_tokens"] == 7
        assert told.verdict.result == "Ye"
        assert len(told.texts("notice")) == 1

    def test_a_refusal_is_no_answer(self, anthropic: Asking, server: Server) -> None:
        server.part = lambda asked: asked.stream(*message("I", reason="refusal"))
        assert anthropic.ask().failure == "task"

    def test_without_a_key_nothing_is_sent(self, anthropic: Asking, server: Server) -> None:
        anthropic.agent = AnthropicAgent("judge", AgentSettings(model="claude-x"))
        anthropic.env = {}
        told = anthropic.ask()
        assert told.failure == "authentication"
        assert "ANTHROPIC_API_KEY" in str(told.verdict.reason)
