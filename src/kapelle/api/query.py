"""Query parameters without a value are as good as absent: `?status=&tag=` asks for everything."""

from starlette.types import ASGIApp, Receive, Scope, Send


class WithoutEmptyParameters:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("query_string"):
            pairs = scope["query_string"].split(b"&")
            kept = [pair for pair in pairs if pair.partition(b"=")[2]]
            scope = {**scope, "query_string": b"&".join(kept)}
        await self._app(scope, receive, send)
