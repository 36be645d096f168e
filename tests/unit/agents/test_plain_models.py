"""The adapters for plain models: their commands, and what the bridges make of odd answers."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.adapters.anthropic import AnthropicAgent
from kapelle.agents.adapters.openai import OpenaiAgent, PlainModel
from kapelle.agents.base import AgentRequest, Summary
from kapelle.agents.bridges.base import BridgeFailed, is_address
from kapelle.agents.bridges.chat import refusal, refusal_of
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify
from kapelle.agents.resets import read_retry_headers
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import FailureClass
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
KINDS = [(OpenaiAgent, "OPENAI"), (AnthropicAgent, "ANTHROPIC")]
LOCAL = "http://localhost:11434/v1"


def request(settings: AgentSettings, **more: Any) -> AgentRequest:
    more.setdefault("prompt", "--help")
    return AgentRequest(
        workspace=Path("/w"), prompt_file=Path("/a/prompt"), settings=settings, **more
    )


@pytest.mark.parametrize(("kind", "prefix"), KINDS)
class TestCommand:
    def test_the_prompt_goes_by_stdin_and_the_system_prompt_by_file(
        self, kind: type[PlainModel], prefix: str
    ) -> None:
        settings = AgentSettings(model="m", extra_args=["--timeout", "5"])
        command = kind("a", settings).command(request(settings, system_prompt="Be brief." * 90_000))
        assert command.stdin == b"--help"
        assert command.files == {"system-prompt.txt": "Be brief." * 90_000}
        assert command.argv == [
            sys.executable, "-P", "-m", kind.bridge,
            "--model", "m", "--system-file", "/a/system-prompt.txt", "--timeout", "5",
        ]  # fmt: skip

    def test_key_and_address_go_by_the_environment(
        self, kind: type[PlainModel], prefix: str
    ) -> None:
        settings = AgentSettings(model="m", base_url=LOCAL, env={"A": "1"})
        command = kind("a", settings).command(request(settings, credential="sk-secret"))
        assert command.env == {
            f"{prefix}_API_KEY": "sk-secret",
            f"{prefix}_BASE_URL": LOCAL,
            "A": "1",
        }
        assert "sk-secret" not in " ".join(command.argv)

    def test_the_model_of_the_task_comes_before_that_of_the_settings(
        self, kind: type[PlainModel], prefix: str
    ) -> None:
        settings = AgentSettings(model="m")
        command = kind("a", settings).command(request(settings, model="n"))
        assert "n" in command.argv
        assert "m" not in command.argv[4:]

    def test_without_a_model_it_says_what_to_type(
        self, kind: type[PlainModel], prefix: str
    ) -> None:
        settings = AgentSettings()
        with pytest.raises(AgentMisconfigured, match="no model") as caught:
            kind("judge", settings).command(request(settings))
        assert caught.value.hint == "kapelle agents config set judge model NAME"

    @pytest.mark.parametrize("url", ["http://u:p@h/v1"])
    def test_refuses_an_address_that_is_none(
        self, kind: type[PlainModel], prefix: str, url: str
    ) -> None:
        settings = AgentSettings(model="m", base_url=url)
        with pytest.raises(AgentMisconfigured, match="base_url"):
            kind("judge", settings).command(request(settings))

    def test_needs_a_key_unless_the_server_is_ones_own(
        self, kind: type[PlainModel], prefix: str
    ) -> None:
        access = kind("a", AgentSettings()).access
        assert access.variables[0] == f"{prefix}_API_KEY"
        assert access.needed
        assert not kind("a", AgentSettings(base_url=LOCAL)).access.needed
        env = {f"{prefix}_BASE_URL": LOCAL}
        assert not kind("a", AgentSettings(env=env)).access.needed

    def test_an_event_line_is_read_as_one(self, kind: type[PlainModel], prefix: str) -> None:
        agent = kind("a", AgentSettings())
        assert agent.parse('{"kind": "result", "text": "Yes"}') == [AgentEvent("result", "Yes")]


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://api.openai.com/v1", True),
        ("http://[::1]:8000", True),
        ("https://x.azure.com/openai?api-version=1", True),
        ("http://host:99999999/v1", False),
        ("http://host:port/v1", False),
        ("http://ho st/v1", False),
        ("http://h\u00f6st/v1", False),
        ("http://[::1/v1", False),
        ("", False),
    ],
)
def test_what_an_address_is(url: str, fits: bool) -> None:
    assert is_address(url) is fits


class TestRetryAt:
    @pytest.mark.parametrize(
        ("headers", "at"),
        [
            ({"retry-after": "30"}, "2026-11-15T12:00:30+00:00"),
            ({"Retry-After": "Sun, 15 Nov 2026 12:05:00 GMT"}, "2026-11-15T12:05:00+00:00"),
            ({"retry-after-ms": "1500", "retry-after": "2"}, "2026-11-15T12:00:01.500000+00:00"),
            ({"retry-after": "-5"}, "2026-11-15T12:00:00+00:00"),
            ({"x-ratelimit-reset-requests": "6m0s"}, "2026-11-15T12:06:00+00:00"),
            ({"x-ratelimit-reset-tokens": "1h2m3.5s"}, "2026-11-15T13:02:03.500000+00:00"),
            ({"x-ratelimit-reset-tokens": "20ms"}, "2026-11-15T12:00:00.020000+00:00"),
            ({"X-RateLimit-Reset": "1794744000000"}, "2026-11-15T12:00:00+00:00"),
            (
                {"anthropic-ratelimit-tokens-reset": "2026-11-15T12:30:00Z"},
                "2026-11-15T12:30:00+00:00",
            ),
            ({"anthropic-ratelimit-unified-reset": "1794747600"}, "2026-11-15T13:00:00+00:00"),
        ],
    )
    def test_reads_what_providers_send(self, headers: dict[str, str], at: str) -> None:
        assert read_retry_headers(headers, 429, NOW) == at

    def test_the_limit_that_is_used_up_counts(self) -> None:
        headers = {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-tokens": "900",
            "x-ratelimit-reset-tokens": "10m0s",
        }
        assert read_retry_headers(headers, 429, NOW) == "2026-11-15T12:00:01+00:00"

    def test_a_limit_that_is_far_from_used_up_says_nothing_about_another_error(self) -> None:
        assert read_retry_headers({"x-ratelimit-reset-requests": "6m0s"}, 500, NOW) is None
        assert read_retry_headers({"retry-after": "7"}, 503, NOW) == "2026-11-15T12:00:07+00:00"

    @pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "1e300", "9" * 400, "0x1", "\0"])
    def test_nonsense_is_no_time(self, value: str) -> None:
        headers = {"retry-after": value, "retry-after-ms": value, "x-ratelimit-reset": value}
        assert read_retry_headers(headers, 429, NOW) is None


def failure_of(failed: BridgeFailed) -> FailureClass:
    error = AgentEvent("error", str(failed), failed.name, failed.data)
    return classify(Summary(error=error), Exit(kind="exited", code=1), "").kind


class TestRefusal:
    @pytest.mark.parametrize(
        ("status", "body", "kind"),
        [
            (
                401,
                {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}},
                "authentication",
            ),
            (
                402,
                {"error": {"message": "Insufficient Balance", "type": "unknown_error"}},
                "billing",
            ),
            (
                404,
                {"error": {"message": "The model `x` does not exist", "code": "model_not_found"}},
                "capability",
            ),
            # Ollama
            (
                404,
                {
                    "error": {
                        "message": 'model "x" not found, try pulling it first',
                        "type": "api_error",
                    }
                },
                "capability",
            ),
            (404, {"detail": "Not Found"}, "environment"),
            (
                429,
                {
                    "error": {
                        "message": "Rate limit reached",
                        "type": "tokens",
                        "code": "rate_limit_exceeded",
                    }
                },
                "rate_limit",
            ),
            (
                429,
                {
                    "error": {
                        "message": "You exceeded your current quota",
                        "type": "insufficient_quota",
                    }
                },
                "billing",
            ),
            # Google
            (
                429,
                [{"error": {"code": 429, "message": "Slow down", "status": "RESOURCE_EXHAUSTED"}}],
                "rate_limit",
            ),
            # vLLM
            (
                400,
                {
                    "object": "error",
                    "message": "This model's maximum context length is 4096 tokens.",
                    "code": 400,
                },
                "context_overflow",
            ),
            # llama.cpp
            (
                400,
                {"error": {"code": 400, "message": "too big", "type": "exceed_context_size_error"}},
                "context_overflow",
            ),
            (400, {"error": "no"}, "task"),
            (
                500,
                {"error": {"message": "The server had an error", "type": "server_error"}},
                "overloaded",
            ),
            (529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded"),
            (503, None, "overloaded"),
        ],
    )
    def test_is_classified_by_what_it_says(self, status: int, body: object, kind: str) -> None:
        assert failure_of(refusal(body, status, {})) == kind

    def test_one_inside_a_stream_has_its_status_in_the_body(self) -> None:
        failed = refusal({"error": {"code": 502, "message": "Provider returned error"}})
        assert failed.data["status"] == 502
        assert failure_of(failed) == "overloaded"

    @pytest.mark.parametrize("body", [b"", b"<html>Bad\n gateway</html>", b"\xff\xfe", b"[" * 9000])
    def test_any_body_is_told(self, body: bytes) -> None:
        failed = refusal_of(body, 502, {})
        assert str(failed).startswith("HTTP 502: ")
        assert len(str(failed)) < 400
        assert failure_of(failed) == "overloaded"
