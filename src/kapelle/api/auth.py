"""Who may come in: Host first, then Origin, then a token, a session, or the private socket."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kapelle.api.errors import error_response
from kapelle.domain.tokens import attempt_of

COOKIE = "kapelle_session"
OPEN_PATHS = frozenset({"/healthz", "/api/v1/healthz", "/api/v1/login"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True)
class Caller:
    """Who makes a request; an attempt may do only what concerns its own task."""

    kind: Literal["owner", "attempt", "nobody"]
    attempt_id: str | None = None


class PrivateSocket:
    """Marks what comes through the unix socket, whose file mode lets only the owner in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["kapelle.private"] = True
        await self._app(scope, receive, send)


class Guard:
    """Refuses requests before any route sees them, and adds the security headers."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        allowed_hosts: Callable[[], frozenset[str]],
        knows_session: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._token = token
        self._allowed_hosts = allowed_hosts
        self._knows_session = knows_session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await error_response(*refusal)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> tuple[int, str, str] | None:
        private = request.scope.get("kapelle.private", False)
        hosts = request.headers.getlist("host")
        if not private and (len(hosts) != 1 or hosts[0].lower() not in self._allowed_hosts()):
            return 421, "wrong_host", "This address is not one that the daemon answers to."
        origin = request.headers.get("origin")
        if origin is not None and not self._own_origin(origin):
            return 403, "wrong_origin", "Other web sites may not use this daemon."
        caller = Caller("owner") if private else self._caller(request, origin)
        request.scope["kapelle.caller"] = caller
        if caller.kind == "nobody" and request.url.path not in OPEN_PATHS:
            return 401, "unauthorized", "A token is needed: Authorization: Bearer …"
        return None

    def _own_origin(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme == "http" and parts.netloc.lower() in self._allowed_hosts()

    def _caller(self, request: Request, origin: str | None) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if hmac.compare_digest(token.strip().encode(), self._token.encode()):
                return Caller("owner")
            attempt_id = attempt_of(self._token, token.strip())
            return Caller("attempt", attempt_id) if attempt_id else Caller("nobody")
        session = request.cookies.get(COOKIE)
        # A cookie is sent without the page knowing, so a write must also say where it comes from.
        if session and (request.method in _SAFE or origin) and self._knows_session(session):
            return Caller("owner")
        return Caller("nobody")
