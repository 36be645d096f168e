"""One HTTP request with the standard library: proxies from the environment, no redirects."""

import base64
import ipaddress
import urllib.request
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, unquote, urlsplit

_CONNECTING_S = 30.0


class Unreachable(Exception):
    """No connection came about, so nothing was sent."""


def is_address(url: str) -> bool:
    """Whether requests can go to it; a password in it is refused, for logs show addresses."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return (
        bool(fits)
        and "@" not in parts.netloc
        and url.isascii()
        and url.isprintable()
        and " " not in url
    )


def post(url: str, headers: dict[str, str], body: bytes, timeout_s: float) -> HTTPResponse:
    """The answer to one request; timeout_s is the longest silence, not the longest answer."""
    parts = urlsplit(url)
    connection, target, more = _route(parts, min(_CONNECTING_S, timeout_s))
    try:
        connection.connect()
    except (OSError, HTTPException) as error:
        raise Unreachable(f"{parts.hostname} cannot be reached: {error or repr(error)}") from error
    connection.sock.settimeout(timeout_s)
    # A server that refuses a large body early closes the connection: its answer is still there.
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.request("POST", target, body, headers | more)
    return connection.getresponse()


def _route(parts: SplitResult, timeout_s: float) -> tuple[HTTPConnection, str, dict[str, str]]:
    """The connection, the target of the request line, and headers that only the proxy needs."""
    host, secure = parts.hostname or "", parts.scheme == "https"
    target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    kind = HTTPSConnection if secure else HTTPConnection
    proxy = _proxy(parts)
    if proxy is None:
        return kind(host, parts.port, timeout=timeout_s), target, {}
    if proxy.scheme != "http" or not proxy.hostname:
        raise Unreachable(f"The proxy in the environment is no http:// one: {proxy.scheme}://…")
    login = _login(proxy)
    connection = kind(proxy.hostname, proxy.port or 80, timeout=timeout_s)
    if not secure:
        return connection, parts._replace(fragment="").geturl(), login
    connection.set_tunnel(host, parts.port or 443, login)
    return connection, target, {}


def _proxy(parts: SplitResult) -> SplitResult | None:
    address = urllib.request.getproxies().get(parts.scheme)
    if not address or _is_here(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _is_here(host: str) -> bool:
    """Whether it is this machine, which no proxy can stand for."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _login(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
