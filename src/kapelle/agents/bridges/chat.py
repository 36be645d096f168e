"""Asks a model without tools one question and prints event lines: any OpenAI-compatible endpoint.

The prompt comes by stdin, OPENAI_BASE_URL and OPENAI_API_KEY by the environment. Answers are read
field by field, so that any server that speaks the protocol serves. What another protocol says
differently is up to the class that extends Chat.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn
from urllib.parse import urlsplit

import httpx2

from kapelle.agents.bridges.base import BridgeFailed, LinePrinter, emit, is_address
from kapelle.agents.events import JsonObject, mapping_of, text_of
from kapelle.agents.resets import read_retry_headers

_CONNECTING_S = 30.0
_HOME = "https://api.openai.com/v1"
_QUOTE = 300


class Arguments(argparse.ArgumentParser):
    """What a bridge to a model is called with; a wrong argument is an error event."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False)
        self.add_argument("--model", required=True)
        self.add_argument("--system-file", type=Path)
        self.add_argument("--timeout", type=float, default=600.0)

    def error(self, message: str) -> NoReturn:
        text = f"The arguments, extra_args among them, do not fit: {message}"
        emit("error", text, "environment")
        sys.exit(2)


def address(variable: str, home: str, path: str) -> str:
    """Where requests go: a path below the address that a variable holds."""
    base = os.environ.get(variable, "").strip() or home
    if not is_address(base):
        raise BridgeFailed(f"{variable} is no http:// or https:// address.", "environment")
    parts = urlsplit(base)
    return parts._replace(path=parts.path.rstrip("/") + path).geturl()


def key_in(variable: str) -> str:
    """The key that a variable holds; empty if there is none."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BridgeFailed(f"{variable} holds characters that no key has.", "authentication")
    return key


def _client(url: str, timeout_s: float) -> httpx2.Client:
    """A client that goes by the proxy of the environment, which cannot stand for this machine."""
    host = urlsplit(url).hostname or ""
    is_here = host in {"localhost", "::1"} or host.startswith("127.")
    timeout = httpx2.Timeout(timeout_s, connect=min(_CONNECTING_S, timeout_s))
    try:
        return httpx2.Client(timeout=timeout, trust_env=not is_here)
    except (ValueError, ImportError) as error:
        text = f"The proxy in the environment cannot be used: {error}"
        raise BridgeFailed(text, "environment") from error


def _lines(response: httpx2.Response) -> Iterator[str]:
    """Lines that end with a newline alone: a text within one may hold other marks for that."""
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace").strip() for line in whole)
    yield rest.decode("utf-8", "replace").strip()


def piece_of(data: str) -> JsonObject:
    """One event of a stream, or a whole answer; raises what a server tells as an error."""
    try:
        piece = json.loads(data)
    except (ValueError, RecursionError):
        piece = None
    if not isinstance(piece, dict):
        said = " ".join(data.split())[:_QUOTE]
        raise BridgeFailed(f"The server sent something that is no answer: {said}", "environment")
    if piece.get("error") or piece.get("object") == "error":
        raise refusal(piece)
    return JsonObject(piece)


def refusal(
    answer: object, status: int | None = None, headers: Mapping[str, str] | None = None
) -> BridgeFailed:
    """The error that a body tells of, in any of the shapes that servers give it."""
    body = mapping_of(answer[0] if isinstance(answer, list) and answer else answer)
    fields = body.mapping("error") or body
    message = body.text("error") or fields.text("message") or fields.text("detail")
    code = fields.get("code")
    if status is None and isinstance(code, int) and 400 <= code < 600:
        status = code
    kind = fields.text("code") or fields.text("type") or fields.text("status")
    # Anthropic says only this of a model that it does not know.
    of_model = kind == "not_found_error" or "model" in f"{kind} {message}".lower()
    if status == 404:
        if of_model:
            name = "capability"
        else:
            name = "environment"
    else:
        name = ""
    text = (f"HTTP {status}: " if status else "") + (message or json.dumps(answer)[:_QUOTE])
    at = read_retry_headers(headers or {}, status or 0)
    return BridgeFailed(text, name, status=status, type=kind or None, retry_at=at)


def refusal_of(body: bytes, status: int, headers: Mapping[str, str]) -> BridgeFailed:
    """The error of an answer with a bad status, whatever its body is."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {"message": " ".join(text.split())[:_QUOTE] or "no explanation"}
    return refusal(value, status, headers)


class Chat:
    """One question and its answer, which is passed on in whole lines, and as a result when it is
    complete. Pieces of an answer may repeat or leave out anything."""

    # For which reasons there is no answer, or less of it.
    refusals: ClassVar[Mapping[str, str]] = {
        "content_filter": "The provider's content filter stopped the answer."
    }
    cut_off: ClassVar[Mapping[str, str]] = {
        "length": "The answer was cut off at the limit of its length."
    }
    # A field of the question that some servers do not take.
    optional = "stream_options"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self._texts: list[str] = []
        self._lines = LinePrinter()
        self._model = ""
        self.usage = JsonObject()
        self.complete = False
        self.reason = ""  # why it ended, in the provider's own word
        self.refused = ""  # what the model says instead of an answer

    def target(self) -> tuple[str, dict[str, str]]:
        """Where it is asked, and the header with the key."""
        url = address("OPENAI_BASE_URL", _HOME, "/chat/completions")
        key = key_in("OPENAI_API_KEY")
        return url, {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, prompt: str, system: str) -> dict[str, Any]:
        """The question in the provider's words."""
        if system:
            messages = [{"role": "system", "content": system}]
        else:
            messages = []
        messages.append({"role": "user", "content": prompt})
        asked = {"model": self.arguments.model, "messages": messages, "stream": True}
        return {**asked, "stream_options": {"include_usage": True}}

    def take(self, piece: JsonObject) -> None:
        """Take one event of the stream."""
        model = piece.text("model")
        if model and not self._model:
            self._model = model
            emit("model", model)
        self.usage = piece.mapping("usage") or self.usage
        for choice in piece.mappings("choices")[:1]:
            message = choice.mapping("delta") or choice.mapping("message")
            content = message.get("content")
            # It may be a list of parts, some of them thoughts.
            if isinstance(content, list):
                parts = content
            else:
                parts = [{"text": text_of(content)}]
            self.add("".join(mapping_of(part).text("text") for part in parts))
            self.refused += message.text("refusal")
            self.reason = choice.text("finish_reason") or self.reason

    def end(self) -> None:
        """Tell what is only known at the end, be it good or bad."""
        used = self.usage
        if not used and not self.complete and not self.reason:
            return
        cached = used.at("prompt_tokens_details", "cached_tokens")
        counts = {
            "input_tokens": used.get("prompt_tokens"),
            "output_tokens": used.get("completion_tokens"),
            "cached_tokens": cached or used.get("prompt_cache_hit_tokens"),
            "turns": 1,
        }
        emit("usage", data={key: number for key, number in counts.items() if number})

    @classmethod
    def main(cls, parser: Arguments) -> int:
        """Ask with the prompt of standard input; 0 after a result, 1 after an error."""
        chat = cls(parser.parse_args())
        file: Path | None = chat.arguments.system_file
        if file:
            system = file.read_text(encoding="utf-8")
        else:
            system = ""
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
        try:
            chat._ask(chat.body(prompt, system))
        except BridgeFailed as failed:
            failed.emit()
            return 1
        return 0

    def _ask(self, body: dict[str, Any]) -> None:
        url, key = self.target()
        try:
            self._post(url, key, body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            text = f"{urlsplit(url).hostname} cannot be reached: {error or repr(error)}"
            raise BridgeFailed(text, "environment") from error
        except httpx2.TimeoutException as error:
            silence = f"The server said nothing for {self.arguments.timeout:g} s."
            raise BridgeFailed(silence, "timeout") from error
        except httpx2.HTTPError as error:
            text = f"The connection broke: {error or repr(error)}"
            raise BridgeFailed(text, "environment") from error
        finally:
            self._lines.flush()
            self.end()
        self._finish()

    def _post(self, url: str, key: Mapping[str, str], body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **key}
        with (
            _client(url, self.arguments.timeout) as client,
            client.stream("POST", url, content=json.dumps(body), headers=headers) as response,
        ):
            if response.is_success:
                self._read(_lines(response))
                return
            said = response.read()
            status = response.status_code
        if status in {400, 422} and self.optional in body and self.optional.encode() in said:
            del body[self.optional]
            self._post(url, key, body)
            return
        if 300 <= status < 400:
            where = response.headers.get("Location", "nowhere")
            raise BridgeFailed(f"{url} redirects to {where}: is base_url right?", "environment")
        # Nobody's log should hold the key, not even where a server quotes it.
        for name in key.keys() & {"X-Api-Key", "Authorization"}:
            said = said.replace(key[name].removeprefix("Bearer ").encode(), b"***")
        failed = refusal_of(said, status, response.headers)
        if failed.name == "environment":
            text = f"{failed} ({url} was asked: is base_url right?)"
            failed = BridgeFailed(text, failed.name, **failed.data)
        raise failed

    def _read(self, lines: Iterator[str]) -> None:
        """Read a stream of events, or the one object of a server that does not stream."""
        for line in lines:
            data = line.removeprefix("data:").strip()
            if line.startswith("{"):
                self.take(piece_of("\n".join([line, *lines])))
                self.complete = True
            elif data == "[DONE]":
                self.complete = True
                return
            elif line and not line.startswith(("event:", "id:", "retry:", ":")):
                self.take(piece_of(data))

    def add(self, text: str) -> None:
        """Take some more of the answer."""
        self._texts.append(text)
        self._lines.add(text)

    def _finish(self) -> None:
        """Print the result."""
        if not self.complete and not self.reason:
            raise BridgeFailed("The connection ended in the middle of the answer.", "environment")
        if self.reason in self.refusals:
            raise BridgeFailed(self.refusals[self.reason], "task")
        why_empty = self.cut_off.get(self.reason, "")
        if why_empty:
            emit("notice", why_empty)
        whole = "".join(self._texts)
        if not whole.strip():
            if self.refused:
                refused = f"The model refused: {self.refused}"
            else:
                refused = ""
            raise BridgeFailed(why_empty or refused or "The model gave an empty answer.", "task")
        emit("result", whole)


if __name__ == "__main__":
    sys.exit(Chat.main(Arguments()))
