"""The web application: routes under /api/v1 behind one guard."""

import asyncio
from collections.abc import Callable

from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kapelle import __version__
from kapelle.api import errors
from kapelle.api.page import WithPage
from kapelle.api.routes import daemon, output, routers, sessions, terminals
from kapelle.api.security import BodyLimit, Guard, WithoutEmptyParameters, owner_only
from kapelle.service import Service

_ERRORS = {
    400: "a request that cannot be read",
    401: "no token, or a wrong one",
    403: "a foreign Origin, or a token that does not allow this",
    404: "no such thing",
    409: "the present state does not allow this",
    413: "the request is too large",
    421: "a Host that is not the daemon's",
    422: "what was given cannot be used",
}
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorView"}}}


def routes() -> FastAPI:
    """The application without its guard: what the OpenAPI document is made of."""
    app = FastAPI(
        title="Kapelle",
        version=__version__,
        description="A conductor for coding agents.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda r: f"{r.tags[0] if r.tags else 'api'}_{r.name}",
        # By reference: with the model, FastAPI would make a validator of it for every route.
        responses={code: {"description": d, "content": _ERROR} for code, d in _ERRORS.items()},
    )
    own = (output.router, daemon.events_router, daemon.router, sessions.router, terminals.router)
    for router in (*routers(), *own):
        app.include_router(router, prefix="/api/v1")
    app.add_api_route("/healthz", daemon.healthz, include_in_schema=False)

    @app.get("/api/v1/openapi.json", include_in_schema=False, dependencies=[Depends(owner_only)])
    async def openapi() -> JSONResponse:
        return JSONResponse(app.openapi())

    errors.install(app)
    return app


def build(service: Service, token: str, allowed_hosts: Callable[[], frozenset[str]]) -> ASGIApp:
    """The application as it is served."""
    app = routes()
    app.state.service = service
    inner = WithoutEmptyParameters(BodyLimit(WithPage(_WithMcp(app))))
    return Guard(inner, token, allowed_hosts, service.sessions.knows)


class _WithMcp:
    """Serves /mcp beside the routes, once somebody asks for it: it costs a second and 60 MB."""

    def __init__(self, app: FastAPI) -> None:
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
