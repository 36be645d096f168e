"""Who may come in: Host first, then Origin, then a token or a session.

What is refused before any route sees it, and what the routes ask of a caller.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kapelle.api.errors import error_response
from kapelle.api.page import is_page
from kapelle.domain.errors import Forbidden
from kapelle.domain.ids import read_attempt_token
from kapelle.service import Service
from kapelle.service.caller import OWNER, Caller

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

OPEN_PATHS = frozenset({"/healthz", "/api/v1/healthz", "/api/v1/login"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_DIRECT = frozenset({"same-origin", "none"})


@dataclass(frozen=True)
class Principal:
    """Who makes a request, by its token or cookie; the functions below say what it may do."""

    kind: Literal["owner", "attempt", "nobody"]
    attempt_id: str | None = None
    session: str | None = None  # of a browser


def cookie_name(request: HTTPConnection) -> str:
    """Return the name of the session cookie of this daemon.

    Browsers send the cookies of a host to all of its ports, so each daemon needs a name of its own.
    """
    _, port = request.scope.get("server") or ("", None)
    return f"kapelle_session_{port or 0}"


async def private(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request that came through the unix socket.

    Only the owner's processes can open the socket, so no Host is required. A token is, because
    agents run with the uid of the owner.
    """
    scope["kapelle.private"] = True
    await app(scope, receive, send)


@dataclass(frozen=True)
class RequestGuard:
    """Refuses requests before any route sees them, and adds the security headers."""

    _app: ASGIApp
    _token: str = field(repr=False)
    _allowed_hosts: Callable[[], frozenset[str]]
    _knows_session: Callable[[str], bool]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._refusal(HTTPConnection(scope)) or self._app
        await answer(scope, receive, with_security_headers(send))

    def _refusal(self, request: HTTPConnection) -> Response | None:
        private = request.scope.get("kapelle.private", False)
        host = own_host(request.headers, self._allowed_hosts())
        # A target such as http://evil.com/ names a host of its own.
        if not request.scope["path"].startswith("/") or (host is None and not private):
            text = "This address is not one that the daemon answers to."
            return error_response(421, "wrong_host", text)
        if is_foreign(request.headers, host):
            return error_response(403, "wrong_origin", "Other web sites may not use this daemon.")
        principal = self._authenticate(request)
        request.scope["kapelle.principal"] = principal
        open_to_all = request.scope["path"] in OPEN_PATHS or is_page(request.scope)
        if principal.kind == "nobody" and not open_to_all:
            text = "A token is needed: Authorization: Bearer …"
            return error_response(401, "unauthorized", text)
        return None

    def _authenticate(self, request: HTTPConnection) -> Principal:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if hmac.compare_digest(token.strip().encode(), self._token.encode()):
                return Principal("owner")
            attempt_id = read_attempt_token(self._token, token.strip())
            if attempt_id:
                return Principal("attempt", attempt_id)
            return Principal("nobody")
        session = request.cookies.get(cookie_name(request))
        # A cookie is sent without the page knowing, so a write must also say where it comes from.
        named = request.scope.get("method") in _SAFE or "origin" in request.headers
        if session and named and self._knows_session(session):
            return Principal("owner", session=session)
        return Principal("nobody")


async def anybody(_request: HTTPConnection, _services: Service) -> None:
    """Let anybody call an operation, also without a token."""


async def owner_only(request: HTTPConnection, _services: Service) -> Caller:
    """Let only the owner call an operation."""
    if request.scope["kapelle.principal"].kind != "owner":
        raise Forbidden("An attempt's token does not allow this: only a person may.")
    return OWNER


async def attempt_too(request: HTTPConnection, services: Service) -> Caller:
    """Let running attempts call an operation, too; its use case decides what they may do there."""
    principal: Principal = request.scope["kapelle.principal"]
    if principal.attempt_id is None:
        return await owner_only(request, services)
    return await services.callers.identify(principal.attempt_id)


async def own_or_below(request: HTTPConnection, services: Service) -> Caller:
    """Let attempts call an operation for their own task and run, and for what is below them."""
    caller = await attempt_too(request, services)
    await services.callers.require_own(caller, _work_in_path(request), itself=True)
    return caller


async def below_only(request: HTTPConnection, services: Service) -> Caller:
    """Let attempts call an operation only for work that they started, and for what is below it."""
    caller = await attempt_too(request, services)
    await services.callers.require_own(caller, _work_in_path(request), itself=False)
    return caller


def _work_in_path(request: HTTPConnection) -> str:
    """Return the id of the task or run in the path."""
    for name in ("task_id", "run_id", "work_id"):
        if name in request.path_params:
            return str(request.path_params[name])
    raise LookupError("The path names no task and no run.")


def own_host(headers: Headers, allowed: frozenset[str]) -> str | None:
    """The Host header with its port, if it is exactly one and one of ours."""
    hosts = headers.getlist("host")
    if len(hosts) == 1:
        host = _with_port(hosts[0].lower())
    else:
        host = None
    return host if host in allowed else None


def is_foreign(headers: Headers, host: str | None) -> bool:
    """Whether a web page of any other address than this very host made the request."""
    for origin in headers.getlist("origin"):
        scheme, separator, sender = origin.partition("://")
        if (scheme, separator) != ("http", "://") or host is None or _with_port(sender) != host:
            return True
    # Pages of other ports on this machine count as the same site, so SameSite does not stop them.
    site = headers.get("sec-fetch-site")
    navigates = headers.get("sec-fetch-mode") == "navigate"
    return site is not None and site not in _DIRECT and not navigates


def _with_port(host: str) -> str:
    # Browsers leave out the port that http has by default.
    if host.startswith("["):
        named = host.rpartition("]")[2]
    else:
        named = host
    return host if ":" in named else f"{host}:80"


def with_security_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in {"http.response.start", "websocket.http.response.start"}:
            headers = MutableHeaders(scope=message)
            headers["Date"] = formatdate(usegmt=True)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
