"""HTTP to the daemon for asyncio: requests and event streams that outlast its restarts.

The asyncio variant of http.py, on httpx2. Each request has a connection of its own: one that was
kept open might be closed by the daemon just when a write is sent on it.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from kapelle.client.address import Address
from kapelle.client.autostart import start_steps
from kapelle.client.environment import with_shell
from kapelle.client.http import listens
from kapelle.client.protocol import (
    EVENT_STREAM,
    LONG_POLL_S,
    MORE_S,
    PAUSE_S,
    REPEAT_HINT,
    RETURN_S,
    STREAM_SILENCE_S,
    TIMEOUT_S,
    TRIES,
    ConnectionLost,
    EventParser,
    LineSplitter,
    NothingListens,
    QueryParameters,
    ServerEvent,
    daemon_stopped,
    no_answer,
    nothing_listens,
    read_refusal,
    target,
)
from kapelle.domain.errors import InvalidInput, Unauthorized, Unavailable

_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=0)


class AsyncDaemonConnection:
    """Requests to one daemon, which is started when it is not there unless told otherwise."""

    def __init__(self, address: Address, *, autostart: bool = True) -> None:
        self.address = address
        self._autostart = autostart and address.url is None
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        """Break off what is under way."""
        if self._client is not None:
            client = self._client
            self._client = None
            await client.aclose()

    async def get(
        self, path: str, query: QueryParameters | None = None, within_s: float = TIMEOUT_S
    ) -> Any:
        return json.loads(await self.get_bytes(path, query, within_s))

    async def get_bytes(
        self, path: str, query: QueryParameters | None = None, within_s: float = TIMEOUT_S
    ) -> bytes:
        """Return a body as it came."""
        return await self._request("GET", target(path, query), within_s=within_s)

    async def pages(
        self, path: str, query: QueryParameters
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield every item of a list; a page is requested when the one before it is used up."""
        cursor: str | None = None
        while True:
            page = await self.get(path, {**query, "cursor": cursor})
            for item in page[path.rpartition("/")[2]]:
                yield item
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def wait(
        self,
        path: str,
        query: QueryParameters,
        is_over: Callable[[Any], bool],
        limit_s: float | None,
    ) -> Any:
        """Request a path that waits by itself, until its answer is over or the time is up."""
        began = time.monotonic()
        while True:
            sent = time.monotonic()
            if limit_s is None:
                left = LONG_POLL_S
            else:
                left = limit_s - (sent - began)
            poll_s = round(max(0, min(left, LONG_POLL_S)), 3)
            answer = await self.get(path, {**query, "timeout_s": poll_s}, poll_s + MORE_S)
            if is_over(answer) or left <= 0:
                return answer
            if time.monotonic() - sent < poll_s / 2:
                # What waits for a person is answered at once, also to whoever waits for its end.
                await asyncio.sleep(min(PAUSE_S, poll_s))

    async def post(
        self, path: str, body: Any = None, within_s: float = TIMEOUT_S, *, tries: int = 1
    ) -> Any:
        """Send a write, once unless it leads to the same state: only the daemon knows whether one
        without an answer arrived."""
        try:
            answer = await self._request(
                "POST", target(path), body or {}, within_s=within_s, tries=tries
            )
        except ConnectionLost as error:
            error.hint = REPEAT_HINT
            raise
        if answer.strip():
            return json.loads(answer)
        return None

    async def merge(self, path: str, body: Any) -> Any:
        """Merge something and wait for it, however long it takes."""
        while True:
            answer = await self.post(path, body, tries=TRIES)
            if answer["status"] == "merged":
                return answer

    async def put(self, path: str, body: Any, query: QueryParameters | None = None) -> Any:
        """Send a write that may be sent again, because it leads to the same state."""
        return json.loads(await self._request("PUT", target(path, query), body))

    async def delete(self, path: str, query: QueryParameters | None = None) -> Any:
        """Send a removal, which may be sent again."""
        return json.loads(await self._request("DELETE", target(path, query)))

    async def create(self, path: str, body: Any, key: str | None = None) -> Any:
        """Send a write that may be sent again, because the daemon knows its key."""
        headers = {"Idempotency-Key": key or os.urandom(16).hex()}
        if self.address.url is None:
            body = with_shell(self.address.home, path, body)
        return json.loads(await self._request("POST", target(path), body, headers))

    async def stream(
        self, path: str, query: QueryParameters, *, endless: bool
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield server-sent events; an endless stream goes on where it broke off."""
        headers = {"Accept": EVENT_STREAM}
        where = target(path, query)
        while True:
            try:
                async with self._exchange("GET", where, None, headers, STREAM_SILENCE_S) as answer:
                    if not answer.headers.get("content-type", "").startswith(EVENT_STREAM):
                        raise Unavailable(f"{self.address} does not send events.")
                    # Where the stream begins, should it break before its first event.
                    if "x-last-event-id" in answer.headers:
                        headers.setdefault("Last-Event-ID", answer.headers["x-last-event-id"])
                    async for event in _parse(answer):
                        if event.id:
                            headers["Last-Event-ID"] = event.id
                        yield event
                        if event.kind == "end":
                            return
                if not endless:
                    return
            except ConnectionLost:
                if not endless:
                    raise
            await self.wait_for_return()

    async def _request(
        self,
        method: str,
        where: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        within_s: float = TIMEOUT_S,
        tries: int = TRIES,
    ) -> bytes:
        """Return the whole answer; the request is repeated if the daemon went away before that."""
        while True:
            try:
                async with self._exchange(method, where, body, headers or {}, within_s) as answer:
                    return await answer.aread()
            except ConnectionLost:
                tries -= 1
                if not tries:
                    raise
            await self.wait_for_return()

    @asynccontextmanager
    async def _exchange(
        self, method: str, where: str, body: Any, headers: dict[str, str], within_s: float
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request; its response is to be read before this is left."""
        content = None
        if body is not None:
            headers = {"Content-Type": "application/json", **headers}
            content = json.dumps(body).encode()
        response = await self._send_or_start(method, where, content, headers, within_s)
        try:
            if response.status_code >= 400:
                content = await response.aread()
                status = response.status_code
                raise read_refusal(self.address, status, response.reason_phrase, content)
            yield response
        except httpx2.HTTPError as error:
            raise ConnectionLost("The daemon went away in the middle of its answer.") from error
        finally:
            await response.aclose()

    async def _send_or_start(
        self,
        method: str,
        where: str,
        content: bytes | None,
        headers: dict[str, str],
        within_s: float,
    ) -> httpx2.Response:
        """Send a request, if need be to a daemon that is started for it."""
        if self.address.url is not None:
            return await self._send(method, where, content, headers, within_s)
        try:
            return await self._send(method, where, content, headers, within_s)
        except (NothingListens, Unauthorized):
            # Where no daemon ever was there is no token either.
            if listens(self.address):
                raise
            if not self._autostart:
                raise nothing_listens(self.address, "") from None
        await self._start()
        return await self._send(method, where, content, headers, within_s)

    async def _send(
        self,
        method: str,
        where: str,
        content: bytes | None,
        headers: dict[str, str],
        within_s: float,
    ) -> httpx2.Response:
        """Send a request; its response is not read yet."""
        if self._client is None:
            self._client = _make_client(self.address)
        try:
            request = self._client.build_request(
                method,
                _base_url(self.address) + where,
                content=content,
                headers={**self.address.headers(), **headers},
                timeout=within_s,
            )
            return await self._client.send(request, stream=True)
        except (httpx2.LocalProtocolError, httpx2.InvalidURL, ValueError) as error:
            raise InvalidInput(f"This cannot be sent: {error}.") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise nothing_listens(self.address, _reason(error)) from None
        except httpx2.TimeoutException:
            raise no_answer(self.address, within_s) from None
        except httpx2.HTTPError as error:
            raise ConnectionLost("The daemon went away before it answered.") from error

    async def _start(self) -> None:
        for seconds in start_steps(self.address.home):
            await asyncio.sleep(seconds)

    async def wait_for_return(self) -> None:
        """Return when the daemon is back after a break; start it again if it crashed.

        A daemon that was stopped takes its socket away, and is not brought back against the will
        of whoever stopped it.
        """
        problem = daemon_stopped()
        deadline = time.monotonic() + RETURN_S
        while time.monotonic() < deadline:
            await asyncio.sleep(PAUSE_S)
            if self.address.url is None and not self.address.home.socket.exists():
                continue
            try:
                await self._reach()
            except Unavailable as error:
                problem = error
                continue
            return
        raise problem

    async def _reach(self) -> None:
        """Return if the daemon accepts connections; else start it, or raise Unavailable."""
        try:
            if self.address.url is None:
                _, writer = await asyncio.open_unix_connection(str(self.address.home.socket))
            else:
                scheme, host, port = self.address.parts()
                default = 443 if scheme == "https" else 80
                _, writer = await asyncio.open_connection(host, port or default)
        except OSError as error:
            if not self._autostart:
                raise nothing_listens(self.address, error.strerror or str(error)) from None
            await self._start()
        else:
            writer.close()


def _make_client(address: Address) -> httpx2.AsyncClient:
    """Return a client that behaves like http.py: without proxies, and with the system's CAs."""
    if address.url is None:
        # The name of the host is there for the form, and nothing is encrypted.
        transport = httpx2.AsyncHTTPTransport(
            uds=str(address.home.socket), verify=False, limits=_LIMITS, trust_env=False
        )
    else:
        scheme, _, _ = address.parts()
        verify = ssl.create_default_context() if scheme == "https" else False
        transport = httpx2.AsyncHTTPTransport(verify=verify, limits=_LIMITS, trust_env=False)
    return httpx2.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)


def _base_url(address: Address) -> str:
    if address.url is None:
        return "http://localhost"
    scheme, host, port = address.parts()
    shown_host = f"[{host}]" if ":" in host else host
    shown_port = "" if port is None else f":{port}"
    return f"{scheme}://{shown_host}{shown_port}{address.base_path}"


def _reason(error: BaseException) -> str:
    """Return what the operating system said, which is behind the errors of the library."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)


async def _parse(response: httpx2.Response) -> AsyncIterator[ServerEvent]:
    """Yield the events of a stream."""
    parser = EventParser()
    splitter = LineSplitter()
    async for block in response.aiter_raw():
        for line in splitter.feed(block):
            event = parser.feed(line)
            if event is not None:
                yield event
