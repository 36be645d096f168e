"""Where a request comes from: which addresses are ours, and which web page sent it, if any did."""

from starlette.datastructures import Headers

_DIRECT = frozenset({"same-origin", "none"})


def own_host(headers: Headers, allowed: frozenset[str]) -> str | None:
    """The Host header with its port, if it is exactly one and one of ours."""
    hosts = headers.getlist("host")
    host = _with_port(hosts[0].lower()) if len(hosts) == 1 else None
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
    named = host.rpartition("]")[2] if host.startswith("[") else host
    return host if ":" in named else f"{host}:80"
