# Made by `make docs` from asynchronous/connection.py: change that file.
"""Requests to the daemon that outlast its restarts."""

import secrets
import time
from contextlib import closing
from typing import Any

import httpx2

from kapelle.client.address import Address
from kapelle.client.autostart import answers
from kapelle.client.flavours import Stream, sleep, start_daemon
from kapelle.client.refusals import ConnectionLost, no_answer, nobody_there, refusal
from kapelle.client.requests import TIMEOUT_S, Ask, base_url, transport_options
from kapelle.domain.errors import Unavailable

# The daemon sends a comment every few seconds when there is nothing to tell.
STREAM_SILENCE_S = 90.0
RETURN_S = 10.0
PAUSE_S = 0.2
TRIES = 4

Query = dict[str, Any]
_NOT_REACHED = (httpx2.ConnectError, httpx2.ConnectTimeout)
_HEALTH = Ask("GET", "/healthz", timeout_s=5)


class Connection:
    """One daemon, which is started when it is not there unless told otherwise."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        self.address = address
        self._start = start
        self._met = False
        self._http = httpx2.Client(
            transport=httpx2.HTTPTransport(**transport_options(address)),
            base_url=base_url(address),
            headers=address.headers(),
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def get(
        self, path: str, query: Query | None = None, timeout_s: float = TIMEOUT_S
    ) -> httpx2.Response:
        return self._insist(Ask("GET", path, query or {}, timeout_s=timeout_s))

    def put(self, path: str, body: Any) -> httpx2.Response:
        """A write that may be sent again, because it leads to the same state."""
        return self._insist(Ask("PUT", path, body=body))

    def create(self, path: str, body: Any, key: str | None = None) -> httpx2.Response:
        """A write that may be sent again, because its key lets the daemon know it."""
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return self._insist(Ask("POST", path, body=body, headers=headers))

    def post(self, path: str, body: Any = None) -> httpx2.Response:
        """A write is sent once: whether a lost one arrived, only the daemon knows."""
        try:
            return self._reach(Ask("POST", path, body=body))
        except ConnectionLost as error:
            error.hint = "It may have been done all the same: look before you ask again."
            raise

    def stream(self, path: str, query: Query, *, endless: bool) -> Stream[httpx2.ServerSentEvent]:
        """Server-sent events; an endless stream is taken up again where it broke off."""
        reached = [""]
        while True:
            try:
                with closing(self._events(path, query, reached)) as events:
                    for event in events:
                        reached[0] = event.id or reached[0]
                        yield event
                if not endless:
                    return
            except ConnectionLost:
                if not endless:
                    raise
            self._wait_for_return()

    def _events(
        self, path: str, query: Query, reached: list[str]
    ) -> Stream[httpx2.ServerSentEvent]:
        headers = {"Accept": "text/event-stream"}
        if reached[0]:
            headers["Last-Event-ID"] = reached[0]
        ask = Ask("GET", path, query, headers=headers, timeout_s=STREAM_SILENCE_S)
        response = self._reach(ask, stream=True)
        # Where the stream begins, should it break before its first event.
        reached[0] = reached[0] or response.headers.get("X-Last-Event-ID", "")
        try:
            for event in httpx2.EventSource(response, max_event_size=None):
                if event.data:
                    yield event
        except httpx2.SSEError as error:
            raise Unavailable(f"{self.address} does not send events: {error}") from None
        except httpx2.RequestError as error:
            self._met = False
            raise ConnectionLost("The daemon went away.") from error
        finally:
            response.close()

    def _insist(self, ask: Ask) -> httpx2.Response:
        """Ask again when the daemon went away before it had answered."""
        for remaining in reversed(range(TRIES)):
            try:
                return self._reach(ask)
            except ConnectionLost:
                if not remaining:
                    raise
            self._wait_for_return()
        raise AssertionError("unreachable")

    def _reach(self, ask: Ask, *, stream: bool = False) -> httpx2.Response:
        """Ask once; a daemon that is not there is started first."""
        if not self._met:
            self._meet()
        try:
            return self._send(ask, stream)
        except ConnectionLost:
            self._met = False
            raise
        except _NOT_REACHED:
            self._meet()
        try:
            return self._send(ask, stream)
        except _NOT_REACHED as error:
            raise self._nobody_there(error) from None

    def _meet(self) -> None:
        """See whether the daemon is there before anything is sent, and start it if it is not."""
        if self.address.url is None and not answers(self.address.home.socket):
            if not self._start:
                raise self._nobody_there(None)
            start_daemon(self.address.home)
        self._met = True

    def _send(self, ask: Ask, stream: bool) -> httpx2.Response:
        request = self._http.build_request(**ask.arguments())
        try:
            response = self._http.send(request, stream=stream)
            if response.is_error:
                response.read()
        except _NOT_REACHED:
            raise
        except httpx2.TimeoutException:
            raise no_answer(self.address, ask.timeout_s) from None
        except httpx2.RequestError as error:
            raise ConnectionLost("The daemon went away before it answered.") from error
        if response.is_error:
            status, reason = response.status_code, response.reason_phrase
            raise refusal(self.address, status, reason, response.content)
        return response

    def _nobody_there(self, error: Exception | None) -> Unavailable:
        return nobody_there(self.address, error, hint="`kapelle serve` starts it.")

    def _wait_for_return(self) -> None:
        """After a break: go on when the daemon is back; start it again if it crashed.

        A daemon that was told to stop takes its socket away, and is not brought back behind
        the back of whoever stopped it.
        """
        problem = Unavailable(
            "The daemon was stopped; running agents go on without it.",
            hint="`kapelle serve` starts it again, and so does a new client.",
        )
        deadline = time.monotonic() + RETURN_S
        while time.monotonic() < deadline:
            sleep(PAUSE_S)
            if self.address.url is None and not self.address.home.socket.exists():
                continue
            try:
                self._reach(_HEALTH)
            except Unavailable as error:
                problem = error
                continue
            return
        raise problem
