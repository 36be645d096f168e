"""What an OpenAI-compatible chat endpoint answers: whole, in pieces, or with a refusal."""

import json
from collections.abc import Mapping
from typing import Any

from kapelle.agents.bridges.limits import retry_at
from kapelle.agents.bridges.speech import Answer, Failed, say
from kapelle.agents.reading import list_of, mapping_of, text_of

# What llama.cpp calls a prompt that is too long; others say it in words.
_NAMES = {"exceed_context_size_error": "context_overflow"}
_QUOTE = 300


class Chat:
    """Follows one answer and says what it holds; pieces may repeat or leave out anything."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.complete = False
        self._reason = ""
        self._refused = ""
        self._model = ""
        self._usage: dict[str, Any] = {}

    def take(self, piece: Mapping[str, Any]) -> None:
        if piece.get("error") or piece.get("object") == "error":
            raise refusal(piece)
        model = text_of(piece.get("model"))
        if model and not self._model:
            self._model = model
            say("model", model)
        self._usage = mapping_of(piece.get("usage")) or self._usage
        for choice in map(mapping_of, list_of(piece.get("choices"))[:1]):
            message = mapping_of(choice.get("delta")) or mapping_of(choice.get("message"))
            self.answer.add(_text_in(message.get("content")))
            self._refused += text_of(message.get("refusal"))
            self._reason = text_of(choice.get("finish_reason")) or self._reason
            self.complete = self.complete or bool(self._reason)

    def finish(self) -> None:
        """Say the result of an answer that has come to its end."""
        if not self.complete:
            raise Failed("The connection ended in the middle of the answer.", "environment")
        if self._reason == "content_filter":
            raise Failed("The provider's content filter stopped the answer.", "task")
        why_empty = f"The model refused: {self._refused}" if self._refused else ""
        if self._reason == "length":
            why_empty = "The answer was cut off at the limit of its length."
            say("notice", why_empty)
        self.answer.finish(why_empty)

    def say_usage(self) -> None:
        if not self._usage and not self.complete:
            return
        usage, details = self._usage, mapping_of(self._usage.get("prompt_tokens_details"))
        cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
        told = {
            "input_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
            "cached_tokens": cached,
        }
        say("usage", turns=1, **{key: number for key, number in told.items() if number})


def refusal(
    answer: object, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Failed:
    """The error that a body tells of, in any of the shapes that servers give it."""
    body = mapping_of(answer[0] if isinstance(answer, list) and answer else answer)
    error = body.get("error") or body
    fields = mapping_of(error)
    message = text_of(error) or text_of(fields.get("message")) or text_of(fields.get("detail"))
    code = fields.get("code")
    if status is None and isinstance(code, int) and 400 <= code < 600:
        status = code
    kind = text_of(code) or text_of(fields.get("type")) or text_of(fields.get("status"))
    return Failed(
        (f"HTTP {status}: " if status else "") + (message or json.dumps(answer)[:_QUOTE]),
        _name(kind, status, message),
        status=status,
        type=kind or None,
        retry_at=retry_at(headers or {}, status or 0),
    )


def refusal_of(body: bytes, status: int, headers: Mapping[str, str]) -> Failed:
    """The error of an answer with a bad status, whatever its body is."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {"message": " ".join(text.split())[:_QUOTE] or "no explanation"}
    return refusal(value, status, headers)


def piece_of(data: str) -> dict[str, Any]:
    try:
        piece = json.loads(data)
    except (ValueError, RecursionError):
        piece = None
    if not isinstance(piece, dict):
        said = " ".join(data.split())[:_QUOTE]
        raise Failed(f"The server sent something that is no answer: {said}", "environment")
    return piece


def _name(kind: str, status: int | None, message: str) -> str:
    """The class of failure, where status and type alone would lead astray."""
    if kind in _NAMES:
        return _NAMES[kind]
    if status == 404:
        return "capability" if "model" in f"{kind} {message}".lower() else "environment"
    return ""


def _text_in(content: object) -> str:
    """The text of a message, which may be a list of parts, some of them thoughts."""
    if isinstance(content, list):
        return "".join(text_of(mapping_of(part).get("text")) for part in content)
    return text_of(content)
