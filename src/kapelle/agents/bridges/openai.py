"""Asks an OpenAI-compatible chat endpoint one question and prints event lines.

The prompt comes by stdin, OPENAI_BASE_URL and OPENAI_API_KEY by the environment.
"""

import sys
from argparse import Namespace
from typing import Any, ClassVar

from kapelle.agents.bridges.base import emit
from kapelle.agents.bridges.chat import Arguments, Chat, address, key_in
from kapelle.agents.events import Json, mapping_of, text_of

_HOME = "https://api.openai.com/v1"


class OpenaiChat(Chat):
    """Pieces of an answer may repeat or leave out anything."""

    refusals: ClassVar = {"content_filter": "The provider's content filter stopped the answer."}
    cut_off: ClassVar = {"length": "The answer was cut off at the limit of its length."}
    optional = "stream_options"

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self._model = ""
        self._usage = Json()

    def target(self) -> tuple[str, dict[str, str]]:
        url, key = address("OPENAI_BASE_URL", _HOME, "/chat/completions"), key_in("OPENAI_API_KEY")
        return url, {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, prompt: str, system: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        asked = {"model": self.arguments.model, "messages": messages, "stream": True}
        return {**asked, "stream_options": {"include_usage": True}}

    def take(self, piece: Json) -> None:
        model = piece.text("model")
        if model and not self._model:
            self._model = model
            emit("model", model)
        self._usage = piece.mapping("usage") or self._usage
        for choice in piece.mappings("choices")[:1]:
            message = choice.mapping("delta") or choice.mapping("message")
            content = message.get("content")
            # It may be a list of parts, some of them thoughts.
            parts = content if isinstance(content, list) else [{"text": text_of(content)}]
            self.add("".join(mapping_of(part).text("text") for part in parts))
            self.refused += message.text("refusal")
            self.reason = choice.text("finish_reason") or self.reason

    def end(self) -> None:
        usage = self._usage
        if not usage and not self.complete and not self.reason:
            return
        cached = usage.at("prompt_tokens_details", "cached_tokens")
        counts = {
            "input_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
            "cached_tokens": cached or usage.get("prompt_cache_hit_tokens"),
            "turns": 1,
        }
        emit("usage", data={key: number for key, number in counts.items() if number})


if __name__ == "__main__":
    sys.exit(OpenaiChat.main(Arguments()))
