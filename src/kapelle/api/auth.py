"""Who may come in: Host first, then Origin, then a token, a session, or the private socket."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kapelle.api.errors import error_response
from kapelle.api.origins import is_foreign, own_host
from kapelle.api.security_headers import with_security_headers
from kapelle.domain.tokens import attempt_of

COOKIE = "kapelle_session"
OPEN_PATHS = frozenset({"/healthz", "/api/v1/healthz", "/api/v1/login"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


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
            raise RuntimeError(f"only http is guarded, so {scope['type']} is not served")
        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, with_security_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        private = request.scope.get("kapelle.private", False)
        host = own_host(request.headers, self._allowed_hosts())
        # A target such as http://evil.com/ names a host of its own.
        if not request.scope["path"].startswith("/") or (host is None and not private):
            text = "This address is not one that the daemon answers to."
            return error_response(421, "wrong_host", text)
        if is_foreign(request.headers, host):
            return error_response(403, "wrong_origin", "Other web sites may not use this daemon.")
        caller = Caller("owner") if private else self._caller(request)
        request.scope["kapelle.caller"] = caller
        if caller.kind == "nobody" and request.scope["path"] not in OPEN_PATHS:
            text = "A token is needed: Authorization: Bearer …"
            return error_response(401, "unauthorized", text)
        return None

    def _caller(self, request: Request) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if hmac.compare_digest(token.strip().encode(), self._token.encode()):
                return Caller("owner")
            attempt_id = attempt_of(self._token, token.strip())
            return Caller("attempt", attempt_id) if attempt_id else Caller("nobody")
        session = request.cookies.get(COOKIE)
        # A cookie is sent without the page knowing, so a write must also say where it comes from.
        named = request.method in _SAFE or "origin" in request.headers
        if session and named and self._knows_session(session):
            return Caller("owner")
        return Caller("nobody")
