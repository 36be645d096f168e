"""Asks a Claude model one question through Anthropic's SDK and prints event lines.

The prompt comes by stdin; the SDK itself reads keys and address from the environment.
"""

import json
import os
import sys
from argparse import Namespace
from typing import Any

import anthropic
from anthropic.types import RawMessageStreamEvent, Usage

from kapelle.agents.bridges.base import Failed, emit
from kapelle.agents.bridges.chat import Answer, Arguments, exit_code
from kapelle.agents.events import mapping_of
from kapelle.agents.resets import retry_at

# Every current model takes this many, and thoughts count as well.
_MAX_TOKENS = 32_000
_TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2"})
_REFUSALS = {"refusal": "The model refused to answer."}
_CUT_OFF = {
    "max_tokens": "The answer was cut off at the limit of its length (--max-tokens).",
    "model_context_window_exceeded": "The answer was cut off where the context window ended.",
}


def main() -> int:
    parser = Arguments()
    parser.add_argument("--max-tokens", type=int, default=_MAX_TOKENS)
    return exit_code(_ask, parser)


def _ask(arguments: Namespace, prompt: str, system: str) -> None:
    body: dict[str, Any] = {"model": arguments.model, "max_tokens": arguments.max_tokens}
    if system:
        body["system"] = system
    body["messages"] = [{"role": "user", "content": prompt}]
    client, message = _client(arguments.timeout), _Message()
    try:
        with client, client.messages.create(**body, stream=True) as stream:
            for event in stream:
                message.take(event)
    except anthropic.APIStatusError as error:
        raise _refusal(error) from error
    except anthropic.APITimeoutError as error:
        silence = f"The server said nothing for {arguments.timeout:g} s."
        raise Failed(silence, "timeout") from error
    except anthropic.APIConnectionError as error:
        cause = error.__cause__ or error
        raise Failed(f"The server cannot be reached: {cause}", "environment") from error
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        # The SDK makes its objects of whatever comes, unchecked.
        text = f"The server sent something that is no answer: {error}"
        raise Failed(text, "environment") from error
    except Exception as error:
        # The SDK lets errors of its transport through once the answer has begun.
        if type(error).__module__.partition(".")[0] not in _TRANSPORTS:
            raise
        name = "timeout" if "Timeout" in type(error).__name__ else "environment"
        raise Failed(f"The connection broke: {error or repr(error)}", name) from error
    finally:
        message.answer.flush()
    message.answer.finish(_REFUSALS, _CUT_OFF)


def _client(timeout_s: float) -> anthropic.Anthropic:
    """A client that follows no redirect, for it would take the key along."""
    http = anthropic.DefaultHttpxClient(follow_redirects=False, timeout=timeout_s)
    try:
        client = anthropic.Anthropic(max_retries=0, timeout=timeout_s, http_client=http)
    except anthropic.AnthropicError as error:
        raise Failed(f"No key could be read: {error}", "authentication") from error
    if client.api_key or client.auth_token or client.credentials:
        return client
    if not os.environ.get("ANTHROPIC_BASE_URL"):
        raise Failed("There is no key: ANTHROPIC_API_KEY is not set.", "authentication")
    # A server of one's own wants no key, but the SDK does not send a request without.
    return client.copy(api_key="none")


class _Message:
    """Follows one message and prints what it holds."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._id = ""
        self._usage: dict[str, int] = {}

    def take(self, event: RawMessageStreamEvent) -> None:
        match event.type:
            case "message_start":
                self._id = event.message.id
                emit("model", event.message.model)
                self._count(event.message.usage)
            case "content_block_delta":
                if event.delta.type == "text_delta":
                    self.answer.add(event.delta.text)
            case "message_delta":
                self.answer.reason = event.delta.stop_reason or self.answer.reason
                self._count(event.usage)
            case "message_stop":
                self.answer.complete = True

    def _count(self, usage: object) -> None:
        """Print the usage so far: the counters grow, and one that is left out stays."""
        for name in Usage.model_fields:
            number = getattr(usage, name, None)
            if isinstance(number, int):
                self._usage[name] = number
        count = self._usage.get
        cached = count("cache_read_input_tokens", 0)
        sent = count("input_tokens", 0) + count("cache_creation_input_tokens", 0) + cached
        tokens = {"input_tokens": sent, "output_tokens": count("output_tokens", 0)}
        emit("usage", data={**tokens, "cached_tokens": cached, "turns": 1, "id": self._id})


def _refusal(error: anthropic.APIStatusError) -> Failed:
    """The error of a bad status, or of one that came when the answer had begun."""
    status = error.status_code
    if 300 <= status < 400:
        where = error.response.headers.get("Location", "nowhere")
        return Failed(f"The server redirects to {where}: is base_url right?", "environment")
    body = mapping_of(error.body).mapping("error")
    message, kind = body.text("message") or error.message, body.text("type") or None
    if status < 400:
        return Failed(message, type=kind)
    name = "environment" if status == 404 and not body else ""
    at = retry_at(error.response.headers, status)
    return Failed(f"HTTP {status}: {message}", name, status=status, type=kind, retry_at=at)


if __name__ == "__main__":
    sys.exit(main())
