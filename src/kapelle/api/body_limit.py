"""Refuses request bodies that are larger than any real one."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kapelle.api.errors import error_response

# A prompt and a system prompt of 1 MB each, with every character escaped in JSON, and the rest.
MAX_BODY = 16_000_000


class TooLarge(Exception):
    pass


class BodyLimit:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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

        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, limited, tracked)
        except TooLarge:
            if not started:
                text = f"The request is larger than {MAX_BODY // 1_000_000} MB."
                await error_response(413, "too_large", text)(scope, receive, send)
