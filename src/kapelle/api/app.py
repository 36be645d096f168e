"""The web application: the API below /api/v1, the page and MCP, behind one guard."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from kapelle.api.openapi import make_document
from kapelle.api.operation import Operation
from kapelle.api.page import is_page, page
from kapelle.api.router import Router
from kapelle.api.routes.table import OPERATIONS
from kapelle.api.security import RequestGuard, anybody, owner_only
from kapelle.service import Service

PREFIX = "/api/v1"


def make_router(services: Service) -> Router:
    """Return the API, without the guard and the page."""
    return Router({**_DOCUMENTED, "": _HIDDEN}, services)


def openapi(services: Service) -> Any:
    """Return the OpenAPI document."""
    return make_document(_DOCUMENTED, services)


_DOCUMENTED = {
    tag: tuple(replace(operation, path=PREFIX + operation.path) for operation in operations)
    for tag, operations in OPERATIONS.items()
}
_HIDDEN = (
    Operation("GET", "/healthz", anybody, lambda s: s.daemon.healthz),
    Operation("GET", f"{PREFIX}/openapi.json", owner_only, lambda s: partial(openapi, s)),
)


def build(services: Service, token: str, allowed_hosts: Callable[[], frozenset[str]]) -> ASGIApp:
    """Return the application as it is served: the API, the page and MCP behind the guard."""
    app = make_router(services)
    mcp: asyncio.Future[ASGIApp] | None = None

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal mcp
        answer: ASGIApp = app
        if is_page(scope):
            answer = await page(scope)
        elif scope["path"] == "/mcp" and scope["type"] == "http":
            # Loaded for the first request, because it costs a second and 60 MB.
            if mcp is None or (mcp.done() and mcp.exception()):
                mcp = asyncio.ensure_future(asyncio.to_thread(_load_mcp, app))
            answer = await asyncio.shield(mcp)
        await answer(scope, receive, send)

    return RequestGuard(serve, token, allowed_hosts, services.sessions.knows)


def _load_mcp(app: Router) -> ASGIApp:
    from kapelle.api.mcp import Mcp

    return Mcp(app)
