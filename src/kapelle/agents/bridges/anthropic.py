"""Ask a Claude model one question by Anthropic's Messages API and print event lines.

The prompt comes on stdin, ANTHROPIC_BASE_URL and a key from the environment: ANTHROPIC_API_KEY or
ANTHROPIC_AUTH_TOKEN.
"""

import os
import sys
from typing import Any, ClassVar

from kapelle.agents.bridges.base import BridgeFailed, emit
from kapelle.agents.bridges.chat import Arguments, Chat, address, key_in
from kapelle.agents.events import JsonObject

_HOME = "https://api.anthropic.com"
_VERSION = {"anthropic-version": "2023-06-01"}
# Every current model accepts this limit, which includes thinking.
_MAX_TOKENS = 32_000


class AnthropicChat(Chat):
    """A chat in the protocol of Anthropic's Messages API."""

    refusals: ClassVar = {"refusal": "The model refused to answer."}
    cut_off: ClassVar = {
        "max_tokens": "The answer was cut off at the limit of its length (--max-tokens).",
        "model_context_window_exceeded": "The answer was cut off where the context window ended.",
    }

    optional = ""
    _id = ""

    def target(self) -> tuple[str, dict[str, str]]:
        url = address("ANTHROPIC_BASE_URL", _HOME, "/v1/messages")
        key = key_in("ANTHROPIC_API_KEY")
        if key:
            return url, {"X-Api-Key": key, **_VERSION}
        token = key_in("ANTHROPIC_AUTH_TOKEN")
        if token:
            return url, {"Authorization": f"Bearer {token}", **_VERSION}
        # A server of the user's own may need no key.
        if not os.environ.get("ANTHROPIC_BASE_URL"):
            raise BridgeFailed("There is no key: ANTHROPIC_API_KEY is not set.", "authentication")
        return url, _VERSION

    def body(self, prompt: str, system: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.arguments.model,
            "max_tokens": self.arguments.max_tokens,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
        }
        if system:
            body["system"] = system
        return body

    def take(self, piece: JsonObject) -> None:
        match piece.get("type"):
            case "message_start":
                self._id = piece.text("message", "id")
                emit("model", piece.text("message", "model"))
                self._count(piece.mapping("message", "usage"))
            case "content_block_delta" if piece.text("delta", "type") == "text_delta":
                self.add(piece.text("delta", "text"))
            case "message_delta":
                self.reason = piece.text("delta", "stop_reason") or self.reason
                self._count(piece.mapping("usage"))
            case "message_stop":
                self.complete = True

    def end(self) -> None:
        """Print nothing: the events before held all counts."""

    def _count(self, usage: JsonObject) -> None:
        """Print the usage so far; a counter that an event leaves out keeps its value."""
        self.usage |= {name: number for name, number in usage.items() if number is not None}
        count = self.usage.count
        cached_tokens = count("cache_read_input_tokens")
        stored_tokens = count("cache_creation_input_tokens")
        data = {
            "input_tokens": count("input_tokens") + stored_tokens + cached_tokens,
            "output_tokens": count("output_tokens"),
            "cached_tokens": cached_tokens,
            "turns": 1,
            "id": self._id,
        }
        emit("usage", data=data)


if __name__ == "__main__":
    parser = Arguments()
    parser.add_argument("--max-tokens", type=int, default=_MAX_TOKENS)
    sys.exit(AnthropicChat.main(parser))
