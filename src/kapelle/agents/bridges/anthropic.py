"""Asks a Claude model one question by Anthropic's Messages API and prints event lines.

The prompt comes by stdin, ANTHROPIC_BASE_URL and a key by the environment: ANTHROPIC_API_KEY or
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
# Every current model takes this many, and thoughts count as well.
_MAX_TOKENS = 32_000


class AnthropicChat(Chat):
    refusals: ClassVar = {"refusal": "The model refused to answer."}
    cut_off: ClassVar = {
        "max_tokens": "The answer was cut off at the limit of its length (--max-tokens).",
        "model_context_window_exceeded": "The answer was cut off where the context window ended.",
    }

    optional = ""
    _id = ""

    def target(self) -> tuple[str, dict[str, str]]:
        url = address("ANTHROPIC_BASE_URL", _HOME, "/v1/messages")
        if key := key_in("ANTHROPIC_API_KEY"):
            return url, {"X-Api-Key": key, **_VERSION}
        if token := key_in("ANTHROPIC_AUTH_TOKEN"):
            return url, {"Authorization": f"Bearer {token}", **_VERSION}
        # A server of one's own wants no key.
        if not os.environ.get("ANTHROPIC_BASE_URL"):
            raise BridgeFailed("There is no key: ANTHROPIC_API_KEY is not set.", "authentication")
        return url, _VERSION

    def body(self, prompt: str, system: str) -> dict[str, Any]:
        asked = {"model": self.arguments.model, "max_tokens": self.arguments.max_tokens}
        messages = [{"role": "user", "content": prompt}]
        return {**asked, **({"system": system} if system else {}), "messages": messages,
                "stream": True}  # fmt: skip

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
        """It has told all there is."""

    def _count(self, usage: JsonObject) -> None:
        """Print the usage so far: the counters grow, and one that is left out stays."""
        self.usage |= {name: number for name, number in usage.items() if number is not None}
        count = self.usage.count
        cached = count("cache_read_input_tokens")
        sent = count("input_tokens") + count("cache_creation_input_tokens") + cached
        tokens = {"input_tokens": sent, "output_tokens": count("output_tokens")}
        emit("usage", data={**tokens, "cached_tokens": cached, "turns": 1, "id": self._id})


if __name__ == "__main__":
    parser = Arguments()
    parser.add_argument("--max-tokens", type=int, default=_MAX_TOKENS)
    sys.exit(AnthropicChat.main(parser))
