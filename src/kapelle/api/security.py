"""Access control: the guard in front of all routes, and the access rules of operations.

The guard checks the Host, then the Origin, then the token or the session of a browser.
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
    """The sender of a request, by its token or cookie."""

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
        answer = self._refuse(HTTPConnection(scope)) or self._app
        await answer(scope, receive, with_security_headers(send))

    def _refuse(self, request: HTTPConnection) -> Response | None:
        """Return the response that refuses a request; None if the request may pass."""
        is_private = request.scope.get("kapelle.private", False)
        host = own_host(request.headers, self._allowed_hosts())
        # A request target such as http://evil.com/ names a host of its own.
        if not request.scope["path"].startswith("/") or (host is None and not is_private):
            text = "The daemon does not answer requests for this host."
            return error_response(421, "wrong_host", text)
        if is_foreign(request.headers, host):
            text = "Requests from other web sites are not allowed."
            return error_response(403, "wrong_origin", text)
        principal = self._authenticate(request)
        request.scope["kapelle.principal"] = principal
        is_open = request.scope["path"] in OPEN_PATHS or is_page(request.scope)
        if principal.kind == "nobody" and not is_open:
            text = "The request needs a token: Authorization: Bearer …"
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
        # Browsers send cookies with any request to the host, so a write needs an Origin, too.
        is_protected = request.scope.get("method") in _SAFE or "origin" in request.headers
        if session and is_protected and self._knows_session(session):
            return Principal("owner", session=session)
        return Principal("nobody")


async def anybody(_request: HTTPConnection, _services: Service) -> None:
    """Let anybody call an operation, even without a token."""


async def owner_only(request: HTTPConnection, _services: Service) -> Caller:
    """Let only the owner call an operation."""
    if request.scope["kapelle.principal"].kind != "owner":
        raise Forbidden("The token of an attempt does not allow this; only a person may do it.")
    return OWNER


async def attempt_too(request: HTTPConnection, services: Service) -> Caller:
    """Let running attempts call an operation, too; the use case decides what they may do."""
    principal: Principal = request.scope["kapelle.principal"]
    if principal.attempt_id is None:
        return await owner_only(request, services)
    return await services.callers.identify(principal.attempt_id)


async def own_or_below(request: HTTPConnection, services: Service) -> Caller:
    """Let attempts call an operation for their own task and run, and for work that they started."""
    caller = await attempt_too(request, services)
    await services.callers.require_own(caller, _work_in_path(request), itself=True)
    return caller


async def below_only(request: HTTPConnection, services: Service) -> Caller:
    """Let attempts call an operation only for work that they started, directly or indirectly."""
    caller = await attempt_too(request, services)
    await services.callers.require_own(caller, _work_in_path(request), itself=False)
    return caller


def _work_in_path(request: HTTPConnection) -> str:
    """Return the id of the task or run in the path."""
    for name in ("task_id", "run_id", "work_id"):
        if name in request.path_params:
            return str(request.path_params[name])
    raise LookupError("The path names no task and no run.")


def own_host(headers: Headers, allowed_hosts: frozenset[str]) -> str | None:
    """Return the Host header with its port; None unless there is exactly one, which is allowed."""
    hosts = headers.getlist("host")
    if len(hosts) != 1:
        return None
    host = _with_port(hosts[0].lower())
    if host not in allowed_hosts:
        return None
    return host


def is_foreign(headers: Headers, host: str | None) -> bool:
    """Return whether a web page of another address than this host made the request."""
    for origin in headers.getlist("origin"):
        scheme, separator, sender = origin.partition("://")
        if (scheme, separator) != ("http", "://") or host is None or _with_port(sender) != host:
            return True
    # For browsers, pages of other ports are the same site, so SameSite does not stop them.
    site = headers.get("sec-fetch-site")
    navigates = headers.get("sec-fetch-mode") == "navigate"
    return site is not None and site not in _DIRECT and not navigates


def _with_port(host: str) -> str:
    """Return a host with its port; browsers leave out the default port 80."""
    # The colons inside of an IPv6 address such as [::1] do not begin a port.
    end = host.rpartition("]")[2]
    if ":" in end:
        return host
    return f"{host}:80"


def with_security_headers(send: Send) -> Send:
    """Return a function that sends messages with the security headers."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] in {"http.response.start", "websocket.http.response.start"}:
            headers = MutableHeaders(scope=message)
            headers["Date"] = formatdate(usegmt=True)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers
