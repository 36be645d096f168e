"""Asks an OpenAI-compatible chat endpoint one question and prints event lines.

The prompt comes by stdin, OPENAI_BASE_URL and OPENAI_API_KEY by the environment. Nothing but the
standard library is used, so that any server that speaks the protocol serves.
"""

import json
import os
import sys
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from kapelle.agents.bridges.chat import Chat, piece_of, refusal_of
from kapelle.agents.bridges.speech import Arguments, Failed, prompt_given, run, system_given
from kapelle.agents.bridges.wire import Unreachable, is_address, post

_HOME = "https://api.openai.com/v1"
_FIELDS = ("event:", "id:", "retry:", ":")


def main() -> int:
    arguments = Arguments().parse_args()
    return run(
        lambda: _ask(arguments.model, system_given(arguments.system_file), arguments.timeout)
    )


def _ask(model: str, system: str | None, timeout_s: float) -> None:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt_given()})
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    body["stream_options"] = {"include_usage": True}
    chat = Chat()
    try:
        _listen(_answer(body, timeout_s), chat)
    except Unreachable as error:
        raise Failed(str(error), "environment") from error
    except TimeoutError as error:
        raise Failed(f"The server said nothing for {timeout_s:g} s.", "timeout") from error
    except (OSError, HTTPException) as error:
        text = f"The connection broke: {error or repr(error)}"
        raise Failed(text, "environment") from error
    finally:
        chat.answer.flush()
        chat.say_usage()
    chat.finish()


def _answer(body: dict[str, Any], timeout_s: float) -> HTTPResponse:
    """The answer to read; some servers take the request only without stream_options."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    url, headers = _address(), {"Content-Type": "application/json", **_authorization(key)}
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


def _authorization(key: str) -> dict[str, str]:
    if key and not (key.isascii() and key.isprintable()):
        raise Failed("OPENAI_API_KEY holds characters that no key has.", "authentication")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _listen(response: HTTPResponse, chat: Chat) -> None:
    """Read a stream of events, or the one object of a server that does not stream."""
    for line in _lines(response):
        if line.startswith("{"):
            chat.take(piece_of(line + response.read().decode("utf-8", "replace")))
            chat.complete = True
            return
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                chat.complete = True
                return
            chat.take(piece_of(data))
        elif not line.startswith(_FIELDS):
            piece_of(line)  # which says that it is none


def _lines(response: HTTPResponse) -> Iterator[str]:
    for line in response:
        text = line.decode("utf-8", "replace").strip()
        if text:
            yield text


if __name__ == "__main__":
    sys.exit(main())
