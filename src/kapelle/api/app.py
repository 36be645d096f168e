"""The web application: routes under /api/v1 behind one guard."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from kapelle.api.page import WithPage
from kapelle.api.router import Router, Row
from kapelle.api.routes import ROUTES, daemon
from kapelle.api.security import Guard, anybody, owner_only
from kapelle.service import Service

_PREFIX = "/api/v1"


def routes() -> Router:
    """The application without its guard: what the OpenAPI document is made of."""

    def openapi() -> dict[str, Any]:
        return router.openapi()

    hidden = (
        Row("GET", "/healthz", anybody, daemon.healthz),
        Row("GET", f"{_PREFIX}/openapi.json", owner_only, openapi),
    )
    rows = {
        tag: tuple(replace(row, path=_PREFIX + row.path) for row in those)
        for tag, those in ROUTES.items()
    }
    router = Router({**rows, "": hidden})
    return router


def build(service: Service, token: str, allowed_hosts: Callable[[], frozenset[str]]) -> ASGIApp:
    """The application as it is served."""
    app = routes()
    app.service = service
    return Guard(WithPage(_WithMcp(app)), token, allowed_hosts, service.sessions.knows)


class _WithMcp:
    """Serves /mcp beside the routes, once somebody asks for it: it costs a second and 60 MB."""

    def __init__(self, app: Router) -> None:
        self._app = app
        self._mcp: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/mcp":
            await self._app(scope, receive, send)
            return
        if self._mcp is None or (self._mcp.done() and self._mcp.exception()):
            self._mcp = asyncio.ensure_future(asyncio.to_thread(self._made))
        serve = await asyncio.shield(self._mcp)
        await serve(scope, receive, send)

    def _made(self) -> ASGIApp:
        from kapelle.api.mcp import Mcp

        return Mcp(self._app)
