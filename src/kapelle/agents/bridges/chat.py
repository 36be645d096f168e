"""Ask a model without tools one question at an OpenAI-compatible endpoint, and print event lines.

The prompt comes on stdin, OPENAI_BASE_URL and OPENAI_API_KEY from the environment. Answers are read
field by field, because servers differ in the fields that they send. Another protocol is a subclass
of Chat.
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
    """The arguments of a bridge to a model; a wrong argument is an error event."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False)
        self.add_argument("--model", required=True)
        self.add_argument("--system-file", type=Path)
        self.add_argument("--timeout", type=float, default=600.0)

    def error(self, message: str) -> NoReturn:
        text = f"The arguments of the bridge, including extra_args, are wrong: {message}"
        emit("error", text, "environment")
        sys.exit(2)


def address(variable: str, home: str, path: str) -> str:
    """Return the URL for requests: a path below the base URL that a variable holds."""
    base = os.environ.get(variable, "").strip() or home
    if not is_address(base):
        raise BridgeFailed(f"{variable} is not an http:// or https:// URL.", "environment")
    parts = urlsplit(base)
    return parts._replace(path=parts.path.rstrip("/") + path).geturl()


def key_in(variable: str) -> str:
    """Return the key that a variable holds; empty if there is none."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BridgeFailed(f"{variable} holds characters that no key has.", "authentication")
    return key


def _client(url: str, timeout_s: float) -> httpx2.Client:
    """Return a client that uses the environment's proxy, except for addresses of this machine."""
    host = urlsplit(url).hostname or ""
    is_loopback = host in {"localhost", "::1"} or host.startswith("127.")
    timeout = httpx2.Timeout(timeout_s, connect=min(_CONNECTING_S, timeout_s))
    try:
        return httpx2.Client(timeout=timeout, trust_env=not is_loopback)
    except (ValueError, ImportError) as error:
        text = f"The proxy in the environment cannot be used: {error}"
        raise BridgeFailed(text, "environment") from error


def _lines(response: httpx2.Response) -> Iterator[str]:
    """Yield the lines of a response.

    Only a newline ends a line, because the texts in it may hold other line separators.
    """
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace").strip() for line in whole)
    yield rest.decode("utf-8", "replace").strip()


def piece_of(data: str) -> JsonObject:
    """Return one event of a stream, or a whole answer; raise BridgeFailed if it is an error."""
    try:
        piece = json.loads(data)
    except (ValueError, RecursionError):
        piece = None
    if not isinstance(piece, dict):
        quote = " ".join(data.split())[:_QUOTE]
        raise BridgeFailed(f"The server sent something that is no answer: {quote}", "environment")
    if piece.get("error") or piece.get("object") == "error":
        raise refusal(piece)
    return JsonObject(piece)


def refusal(
    answer: object, status: int | None = None, headers: Mapping[str, str] | None = None
) -> BridgeFailed:
    """Return the error in the body of an answer, in any of the forms that servers use."""
    if isinstance(answer, list) and answer:
        answer = answer[0]
    body = mapping_of(answer)
    fields = body.mapping("error") or body
    message = body.text("error") or fields.text("message") or fields.text("detail")
    code = fields.get("code")
    if status is None and isinstance(code, int) and 400 <= code < 600:
        status = code
    kind = fields.text("code") or fields.text("type") or fields.text("status")
    name = ""
    if status == 404:
        # Anthropic reports an unknown model by this type only.
        is_about_model = kind == "not_found_error" or "model" in f"{kind} {message}".lower()
        name = "capability" if is_about_model else "environment"
    text = message or json.dumps(answer)[:_QUOTE]
    if status:
        text = f"HTTP {status}: {text}"
    at = read_retry_headers(headers or {}, status or 0)
    return BridgeFailed(text, name, status=status, type=kind or None, retry_at=at)


def refusal_of(body: bytes, status: int, headers: Mapping[str, str]) -> BridgeFailed:
    """Return the error of an answer with a bad status, whatever its body holds."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {"message": " ".join(text.split())[:_QUOTE] or "no explanation"}
    return refusal(value, status, headers)


class Chat:
    """One question and its answer, printed in whole lines, and as a result when it is complete.

    Pieces of an answer may repeat or leave out any field.
    """

    # Sentences for the reasons with which a provider ends an answer: by a refusal, or too early.
    refusals: ClassVar[Mapping[str, str]] = {
        "content_filter": "The provider's content filter stopped the answer."
    }
    cut_off: ClassVar[Mapping[str, str]] = {
        "length": "The answer was cut off at the limit of its length."
    }
    # A field of the request that some servers refuse.
    optional = "stream_options"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self._texts: list[str] = []
        self._lines = LinePrinter()
        self._model = ""
        self.usage = JsonObject()
        self.complete = False
        self.reason = ""  # the provider's name of the reason for the end
        self._refusal = ""  # the model's refusal, in the place of an answer

    def target(self) -> tuple[str, dict[str, str]]:
        """Return the URL for the request, and the headers with the key."""
        url = address("OPENAI_BASE_URL", _HOME, "/chat/completions")
        key = key_in("OPENAI_API_KEY")
        return url, {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, prompt: str, system: str) -> dict[str, Any]:
        """Return the body of the request."""
        messages = []
        if system:
            messages.append({"role": "system", "content": system})
        messages.append({"role": "user", "content": prompt})
        return {
            "model": self.arguments.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

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
            if isinstance(content, list):
                # A list of parts, some of which are thoughts without a text.
                self.add("".join(mapping_of(part).text("text") for part in content))
            else:
                self.add(text_of(content))
            self._refusal += message.text("refusal")
            self.reason = choice.text("finish_reason") or self.reason

    def end(self) -> None:
        """Print the usage, which is complete only at the end, after an error, too."""
        usage = self.usage
        if not usage and not self.complete and not self.reason:
            return
        cached_tokens = usage.at("prompt_tokens_details", "cached_tokens")
        counts = {
            "input_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
            "cached_tokens": cached_tokens or usage.get("prompt_cache_hit_tokens"),
            "turns": 1,
        }
        emit("usage", data={key: number for key, number in counts.items() if number})

    @classmethod
    def main(cls, parser: Arguments) -> int:
        """Ask with the prompt on standard input; return 0 after a result, 1 after an error."""
        chat = cls(parser.parse_args())
        system = ""
        system_file: Path | None = chat.arguments.system_file
        if system_file:
            system = system_file.read_text(encoding="utf-8")
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
        try:
            chat._ask(chat.body(prompt, system))
        except BridgeFailed as failure:
            failure.emit()
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
            text = f"The server sent nothing for {self.arguments.timeout:g} s."
            raise BridgeFailed(text, "timeout") from error
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
            content = response.read()
            status = response.status_code
        if status in {400, 422} and self.optional in body and self.optional.encode() in content:
            del body[self.optional]
            self._post(url, key, body)
            return
        if 300 <= status < 400:
            where = response.headers.get("Location", "nowhere")
            raise BridgeFailed(f"{url} redirects to {where}: is base_url right?", "environment")
        # A server may quote the key in its answer; it must not get into a log.
        for name in key.keys() & {"X-Api-Key", "Authorization"}:
            content = content.replace(key[name].removeprefix("Bearer ").encode(), b"***")
        failure = refusal_of(content, status, response.headers)
        if failure.name == "environment":
            text = f"{failure} (the request went to {url}: is base_url right?)"
            failure = BridgeFailed(text, failure.name, **failure.data)
        raise failure

    def _read(self, lines: Iterator[str]) -> None:
        """Take a stream of events, or the one object of a server that does not stream."""
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
        """Add a piece of the answer."""
        self._texts.append(text)
        self._lines.add(text)

    def _finish(self) -> None:
        """Print the result; raise BridgeFailed if the answer is incomplete or empty."""
        if not self.complete and not self.reason:
            raise BridgeFailed("The connection ended in the middle of the answer.", "environment")
        if self.reason in self.refusals:
            raise BridgeFailed(self.refusals[self.reason], "task")
        cut_off = self.cut_off.get(self.reason, "")
        if cut_off:
            emit("notice", cut_off)
        answer = "".join(self._texts)
        if answer.strip():
            emit("result", answer)
        elif cut_off:
            raise BridgeFailed(cut_off, "task")
        elif self._refusal:
            raise BridgeFailed(f"The model refused: {self._refusal}", "task")
        else:
            raise BridgeFailed("The model gave an empty answer.", "task")


if __name__ == "__main__":
    sys.exit(Chat.main(Arguments()))
