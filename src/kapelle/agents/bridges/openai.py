"""Asks an OpenAI-compatible chat endpoint one question and prints event lines.

The prompt comes by stdin, OPENAI_BASE_URL and OPENAI_API_KEY by the environment. Answers are read
field by field, so that any server that speaks the protocol serves.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from kapelle.agents.bridges.base import Failed, emit
from kapelle.agents.bridges.chat import Answer, Arguments, exit_code, is_address
from kapelle.agents.events import Json, mapping_of, text_of
from kapelle.agents.resets import retry_at

_HOME = "https://api.openai.com/v1"
_FIELDS = ("event:", "id:", "retry:", ":")
_CONNECTING_S = 30.0
# What llama.cpp calls a prompt that is too long; others say it in words.
_NAMES = {"exceed_context_size_error": "context_overflow"}
_QUOTE = 300
_REFUSALS = {"content_filter": "The provider's content filter stopped the answer."}
_CUT_OFF = {"length": "The answer was cut off at the limit of its length."}


def main() -> int:
    return exit_code(_ask, Arguments())


def _ask(arguments: Namespace, prompt: str, system: str) -> None:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    body: dict[str, Any] = {"model": arguments.model, "messages": messages, "stream": True}
    body["stream_options"] = {"include_usage": True}
    chat, url = Chat(), _address()
    try:
        _post(url, body, arguments.timeout, chat)
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        text = f"{urlsplit(url).hostname} cannot be reached: {error or repr(error)}"
        raise Failed(text, "environment") from error
    except httpx2.TimeoutException as error:
        silence = f"The server said nothing for {arguments.timeout:g} s."
        raise Failed(silence, "timeout") from error
    except httpx2.HTTPError as error:
        text = f"The connection broke: {error or repr(error)}"
        raise Failed(text, "environment") from error
    finally:
        chat.answer.flush()
        chat.emit_usage()
    refused = f"The model refused: {chat.refused}" if chat.refused else ""
    chat.answer.finish(_REFUSALS, _CUT_OFF, refused)


def _post(url: str, body: dict[str, Any], timeout_s: float, chat: "Chat") -> None:
    """Have the answer read; some servers take the request only without stream_options."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise Failed("OPENAI_API_KEY holds characters that no key has.", "authentication")
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    with (
        _client(url, timeout_s) as client,
        client.stream("POST", url, content=json.dumps(body), headers=headers) as response,
    ):
        if response.is_success:
            chat.read(_lines(response))
            return
        said, status = response.read(), response.status_code
    if status in {400, 422} and b"stream_options" in said and "stream_options" in body:
        del body["stream_options"]
        _post(url, body, timeout_s, chat)
        return
    if 300 <= status < 400:
        where = response.headers.get("Location", "nowhere")
        raise Failed(f"{url} redirects to {where}: is base_url right?", "environment")
    # Nobody's log should hold the key, not even where a server quotes it.
    said = said.replace(key.encode() or b"\0", b"***")
    failed = refusal_of(said, status, response.headers)
    if failed.name == "environment":
        text = f"{failed} ({url} was asked: is base_url right?)"
        failed = Failed(text, failed.name, **failed.data)
    raise failed


def _client(url: str, timeout_s: float) -> httpx2.Client:
    """A client that goes by the proxy of the environment, which cannot stand for this machine;
    timeout_s is the longest silence, not the longest answer."""
    host = urlsplit(url).hostname or ""
    is_here = host in {"localhost", "::1"} or host.startswith("127.")
    timeout = httpx2.Timeout(timeout_s, connect=min(_CONNECTING_S, timeout_s))
    try:
        return httpx2.Client(timeout=timeout, trust_env=not is_here)
    except (ValueError, ImportError) as error:
        text = f"The proxy in the environment cannot be used: {error}"
        raise Failed(text, "environment") from error


def _lines(response: httpx2.Response) -> Iterator[str]:
    """Lines that end with a newline alone: a text within one may hold other marks for that."""
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    yield rest.decode("utf-8", "replace")


def _address() -> str:
    base = os.environ.get("OPENAI_BASE_URL", "").strip() or _HOME
    if not is_address(base):
        raise Failed("OPENAI_BASE_URL is no http:// or https:// address.", "environment")
    parts = urlsplit(base)
    return parts._replace(path=parts.path.rstrip("/") + "/chat/completions").geturl()


class Chat:
    """Follows one answer and prints what it holds; pieces may repeat or leave out anything."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.refused = ""
        self._model = ""
        self._usage = Json()

    def read(self, lines: Iterator[str]) -> None:
        """Read a stream of events, or the one object of a server that does not stream."""
        for line in map(str.strip, lines):
            data = line.removeprefix("data:").strip()
            if line.startswith("{"):
                self._take(piece_of("\n".join([line, *lines])))
                self.answer.complete = True
            elif data == "[DONE]":
                self.answer.complete = True
                return
            elif line and not line.startswith(_FIELDS):
                self._take(piece_of(data))

    def _take(self, piece: Json) -> None:
        if piece.get("error") or piece.get("object") == "error":
            raise refusal(piece)
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
            self.answer.add("".join(mapping_of(part).text("text") for part in parts))
            self.refused += message.text("refusal")
            self.answer.reason = choice.text("finish_reason") or self.answer.reason

    def emit_usage(self) -> None:
        usage = self._usage
        if not usage and not self.answer.complete and not self.answer.reason:
            return
        cached = usage.at("prompt_tokens_details", "cached_tokens")
        counts = {
            "input_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
            "cached_tokens": cached or usage.get("prompt_cache_hit_tokens"),
            "turns": 1,
        }
        emit("usage", data={key: number for key, number in counts.items() if number})


def refusal(
    answer: object, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Failed:
    """The error that a body tells of, in any of the shapes that servers give it."""
    body = mapping_of(answer[0] if isinstance(answer, list) and answer else answer)
    fields = body.mapping("error") or body
    message = body.text("error") or fields.text("message") or fields.text("detail")
    code = fields.get("code")
    if status is None and isinstance(code, int) and 400 <= code < 600:
        status = code
    kind = fields.text("code") or fields.text("type") or fields.text("status")
    name = _NAMES.get(kind, "")
    if status == 404 and not name:
        name = "capability" if "model" in f"{kind} {message}".lower() else "environment"
    text = (f"HTTP {status}: " if status else "") + (message or json.dumps(answer)[:_QUOTE])
    at = retry_at(headers or {}, status or 0)
    return Failed(text, name, status=status, type=kind or None, retry_at=at)


def refusal_of(body: bytes, status: int, headers: Mapping[str, str]) -> Failed:
    """The error of an answer with a bad status, whatever its body is."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {"message": " ".join(text.split())[:_QUOTE] or "no explanation"}
    return refusal(value, status, headers)


def piece_of(data: str) -> Json:
    try:
        piece = json.loads(data)
    except (ValueError, RecursionError):
        piece = None
    if not isinstance(piece, dict):
        said = " ".join(data.split())[:_QUOTE]
        raise Failed(f"The server sent something that is no answer: {said}", "environment")
    return Json(piece)


if __name__ == "__main__":
    sys.exit(main())
