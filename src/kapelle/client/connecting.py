"""The way in: `kapelle.connect()` and `kapelle.connect_async()`."""

from kapelle.client.address import Address
from kapelle.client.asynchronous.client import AsyncClient
from kapelle.client.options import Directory
from kapelle.client.synchronous.client import Client


def connect(
    url: str | None = None,
    token: str | None = None,
    home: Directory | None = None,
    start: bool = True,
) -> Client:
    """A client of the daemon, which is reached with the first request.

    Without a URL (or KAPELLE_URL) it is the daemon of a home, over its private socket; with start,
    it is started when there is none. With a URL the token is the one given, KAPELLE_TOKEN, or the
    one in the home.
    """
    return Client(Address.given(url, token, home), start=start)


def connect_async(
    url: str | None = None,
    token: str | None = None,
    home: Directory | None = None,
    start: bool = True,
) -> AsyncClient:
    """The same for programs that use asyncio."""
    return AsyncClient(Address.given(url, token, home), start=start)
