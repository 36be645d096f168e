"""Asks an OpenAI-compatible chat endpoint one question and prints event lines.

The prompt comes by stdin, OPENAI_BASE_URL and OPENAI_API_KEY by the environment. Nothing but the
standard library is used, so that any server that speaks the protocol serves.
"""

import base64
import ipaddress
import json
import os
import sys
import urllib.request
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from kapelle.agents.bridges.base import Failed, emit
from kapelle.agents.bridges.chat import Answer, Arguments, exit_code
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
    chat = Chat()
    try:
        chat.read(_answer(body, arguments.timeout))
    except TimeoutError as error:
        silence = f"The server said nothing for {arguments.timeout:g} s."
        raise Failed(silence, "timeout") from error
    except (OSError, HTTPException) as error:
        text = f"The connection broke: {error or repr(error)}"
        raise Failed(text, "environment") from error
    finally:
        chat.answer.flush()
        chat.emit_usage()
    refused = f"The model refused: {chat.refused}" if chat.refused else ""
    chat.answer.finish(_REFUSALS, _CUT_OFF, refused)


def _answer(body: dict[str, Any], timeout_s: float) -> HTTPResponse:
    """The answer to read; some servers take the request only without stream_options."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise Failed("OPENAI_API_KEY holds characters that no key has.", "authentication")
    url, headers = _address(), {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    response = post(url, headers, json.dumps(body).encode(), timeout_s)
    if 200 <= response.status < 300:
        return response
    said = response.read()
    if response.status in {400, 422} and b"stream_options" in said and "stream_options" in body:
        del body["stream_options"]
        return _answer(body, timeout_s)
    if 300 <= response.status < 400:
        where = response.headers.get("Location", "nowhere")
        raise Failed(f"{url} redirects to {where}: is base_url right?", "environment")
    # Nobody's log should hold the key, not even where a server quotes it.
    said = said.replace(key.encode() or b"\0", b"***")
    failed = refusal_of(said, response.status, dict(response.headers.items()))
    if failed.name == "environment":
        failed = Failed(
            f"{failed} ({url} was asked: is base_url right?)", failed.name, **failed.data
        )
    raise failed


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

    def read(self, response: HTTPResponse) -> None:
        """Read a stream of events, or the one object of a server that does not stream."""
        for text in response:
            line = text.decode("utf-8", "replace").strip()
            if line.startswith("{"):
                self._take(piece_of(line + response.read().decode("utf-8", "replace")))
                self.answer.complete = True
                return
            if line.startswith("data:"):
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    self.answer.complete = True
                    return
                self._take(piece_of(data))
            elif line and not line.startswith(_FIELDS):
                piece_of(line)  # which says that it is none

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
            self.answer.add(_text_in(message.get("content")))
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
    return Failed(
        (f"HTTP {status}: " if status else "") + (message or json.dumps(answer)[:_QUOTE]),
        _failure_class(kind, status, message),
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


def piece_of(data: str) -> Json:
    try:
        piece = json.loads(data)
    except (ValueError, RecursionError):
        piece = None
    if not isinstance(piece, dict):
        said = " ".join(data.split())[:_QUOTE]
        raise Failed(f"The server sent something that is no answer: {said}", "environment")
    return Json(piece)


def _failure_class(kind: str, status: int | None, message: str) -> str:
    """The class of failure, where status and type alone would lead astray."""
    if kind in _NAMES:
        return _NAMES[kind]
    if status == 404:
        return "capability" if "model" in f"{kind} {message}".lower() else "environment"
    return ""


def _text_in(content: object) -> str:
    """The text of a message, which may be a list of parts, some of them thoughts."""
    if isinstance(content, list):
        return "".join(mapping_of(part).text("text") for part in content)
    return text_of(content)


def is_address(url: str) -> bool:
    """Whether requests can go to it; a password in it is refused, for logs show addresses."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return (
        bool(fits)
        and "@" not in parts.netloc
        and url.isascii()
        and url.isprintable()
        and " " not in url
    )


def post(url: str, headers: dict[str, str], body: bytes, timeout_s: float) -> HTTPResponse:
    """The answer to one request; timeout_s is the longest silence, not the longest answer."""
    parts = urlsplit(url)
    connection, target, more = _route(parts, min(_CONNECTING_S, timeout_s))
    try:
        connection.connect()
    except (OSError, HTTPException) as error:
        text = f"{parts.hostname} cannot be reached: {error or repr(error)}"
        raise Failed(text, "environment") from error
    connection.sock.settimeout(timeout_s)
    # A server that refuses a large body early closes the connection: its answer is still there.
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.request("POST", target, body, headers | more)
    return connection.getresponse()


def _route(parts: SplitResult, timeout_s: float) -> tuple[HTTPConnection, str, dict[str, str]]:
    """The connection, the target of the request line, and headers that only the proxy needs."""
    host, secure = parts.hostname or "", parts.scheme == "https"
    target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    kind = HTTPSConnection if secure else HTTPConnection
    proxy = _proxy(parts)
    if proxy is None:
        return kind(host, parts.port, timeout=timeout_s), target, {}
    if proxy.scheme != "http" or not proxy.hostname:
        text = f"The proxy in the environment is no http:// one: {proxy.scheme}://…"
        raise Failed(text, "environment")
    login = _login(proxy)
    connection = kind(proxy.hostname, proxy.port or 80, timeout=timeout_s)
    if not secure:
        return connection, parts._replace(fragment="").geturl(), login
    connection.set_tunnel(host, parts.port or 443, login)
    return connection, target, {}


def _proxy(parts: SplitResult) -> SplitResult | None:
    address = urllib.request.getproxies().get(parts.scheme)
    if (
        not address
        or _is_loopback(parts.hostname or "")
        or urllib.request.proxy_bypass(parts.netloc)
    ):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _is_loopback(host: str) -> bool:
    """Whether it is this machine, which no proxy can stand for."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _login(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


if __name__ == "__main__":
    sys.exit(main())
