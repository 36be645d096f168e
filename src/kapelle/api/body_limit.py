"""Refuses request bodies that are larger than any real one."""

import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kapelle.api.errors import error_response

# A prompt and a system prompt of 1 MB each, with every character escaped in JSON, and the rest.
MAX_BODY = 16_000_000


class TooLarge(Exception):
    """The body goes on behind the limit."""


class BodyLimit:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0
        refused = False

        async def limited() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                refused = True
                raise TooLarge
            return message

        async def unless_refused(message: Message) -> None:
            # The framework turns what reading a body raises into an answer of its own.
            if not refused:
                await send(message)

        if _declared(scope) > MAX_BODY:
            refused = True
        else:
            with contextlib.suppress(TooLarge):
                await self._app(scope, limited, unless_refused)
        if refused:
            text = f"The request is larger than {MAX_BODY // 1_000_000} MB."
            await error_response(413, "too_large", text)(scope, receive, send)


def _declared(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0
