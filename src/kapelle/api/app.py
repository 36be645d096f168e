"""The web application: routes under /api/v1 behind one guard."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from kapelle.api.page import is_page, page
from kapelle.api.router import Route, Router
from kapelle.api.routes import ROUTES
from kapelle.api.security import RequestGuard, anybody, owner_only
from kapelle.service import Service
from kapelle.service.daemon import DaemonService

_PREFIX = "/api/v1"


def routes() -> Router:
    """The application without its guard: what the OpenAPI document is made of."""

    def openapi() -> Any:
        return router.openapi()

    hidden = (
        Route("GET", "/healthz", anybody, DaemonService.healthz),
        Route("GET", f"{_PREFIX}/openapi.json", owner_only, openapi),
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
    mcp: asyncio.Future[ASGIApp] | None = None

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal mcp
        answer: ASGIApp = app
        if is_page(scope):
            answer = await page(scope)
        elif scope["path"] == "/mcp" and scope["type"] == "http":
            # Once somebody asks for it: it costs a second and 60 MB.
            if mcp is None or (mcp.done() and mcp.exception()):
                mcp = asyncio.ensure_future(asyncio.to_thread(_mcp, app))
            answer = await asyncio.shield(mcp)
        await answer(scope, receive, send)

    return RequestGuard(serve, token, allowed_hosts, service.sessions.knows)


def _mcp(app: Router) -> ASGIApp:
    from kapelle.api.mcp import Mcp

    return Mcp(app)
