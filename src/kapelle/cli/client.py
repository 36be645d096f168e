"""The daemon's API as the command line uses it."""

import http.client
import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from kapelle.cli.sse import ServerEvent, parse
from kapelle.cli.transport import connection_to
from kapelle.client.address import Address
from kapelle.client.refusals import ConnectionLost, no_answer, nobody_there, refusal
from kapelle.domain.errors import Unavailable

TIMEOUT_S = 60.0
# The daemon sends a comment every few seconds when there is nothing to tell.
STREAM_SILENCE_S = 90.0
RETURN_S = 10.0
_TRIES = 4

Query = dict[str, Any]
Response = http.client.HTTPResponse


class Client:
    """Requests to the daemon, which is started when it is not there unless told otherwise."""

    def __init__(self, address: Address | None = None, *, autostart: bool = True) -> None:
        self.address = address or Address.from_environment()
        self._autostart = autostart and self.address.url is None

    def get(self, path: str, query: Query | None = None, timeout: float = TIMEOUT_S) -> Any:
        return json.loads(self.get_bytes(path, query, timeout)[0])

    def get_bytes(
        self, path: str, query: Query | None = None, timeout: float = TIMEOUT_S
    ) -> tuple[bytes, dict[str, str]]:
        """A body as it came, and its headers in lower case."""
        return self._persist("GET", _target(path, query), None, {}, timeout)

    def post(self, path: str, body: Any = None, timeout: float = TIMEOUT_S) -> Any:
        """A write is sent once: whether a lost one arrived, only the daemon knows."""
        try:
            answer = _read(self._ask("POST", _target(path), _encoded(body), timeout=timeout))
        except ConnectionLost as error:
            error.hint = "It may have been done all the same: look with `kapelle list`."
            raise
        return json.loads(answer) if answer.strip() else None

    def put(self, path: str, body: Any, query: Query | None = None) -> Any:
        """A write that may be sent again, because it leads to the same state."""
        return json.loads(
            self._persist("PUT", _target(path, query), _encoded(body), {}, TIMEOUT_S)[0]
        )

    def delete(self, path: str, query: Query | None = None) -> Any:
        """A removal, which likewise may be sent again."""
        return json.loads(self._persist("DELETE", _target(path, query), None, {}, TIMEOUT_S)[0])

    def create(self, path: str, body: Any) -> Any:
        """A write that may be sent again, because its key lets the daemon know it."""
        headers = {"Idempotency-Key": os.urandom(16).hex()}
        answer, _ = self._persist("POST", _target(path), _encoded(body), headers, TIMEOUT_S)
        return json.loads(answer)

    def _persist(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> tuple[bytes, dict[str, str]]:
        """Ask again when the daemon went away before it had answered."""
        for remaining in reversed(range(_TRIES)):
            try:
                response = self._ask(method, target, body, timeout=timeout, headers=headers)
                answer = _read(response)
                return answer, {name.lower(): value for name, value in response.getheaders()}
            except ConnectionLost:
                if not remaining:
                    raise
                self._wait_for_return()
        raise AssertionError("unreachable")

    def stream(
        self, path: str, query: Query, *, endless: bool, last_id: str | None = None
    ) -> Iterator[ServerEvent]:
        """Server-sent events; an endless stream is taken up again where it broke off."""
        while True:
            try:
                for event in self._events(path, query, last_id):
                    last_id = event.id or last_id
                    yield event
                    if event.kind == "end":
                        return
                if not endless:
                    return
            except ConnectionLost:
                if not endless:
                    raise
            self._wait_for_return()

    def _events(self, path: str, query: Query, last_id: str | None) -> Iterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        response = self._ask("GET", _target(path, query), timeout=STREAM_SILENCE_S, headers=headers)
        with response:
            try:
                yield from parse(_lines(response))
            except (OSError, http.client.HTTPException) as error:
                raise ConnectionLost("The daemon went away.") from error

    def _ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        timeout: float,
        headers: dict[str, str] | None = None,
    ) -> Response:
        connection = self._connect(timeout)
        sent = {**self.address.headers(), **(headers or {})}
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, self.address.base_path + target, body, sent)
            response = connection.getresponse()
        except TimeoutError:
            raise no_answer(self.address, timeout) from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost("The daemon went away before it answered.") from error
        if response.status >= 400:
            raise refusal(self.address, response.status, response.reason, _read(response))
        return response

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        connection = connection_to(self.address, timeout)
        try:
            connection.connect()
        except OSError as error:
            if not self._autostart:
                raise self._nobody_there(error) from None
            from kapelle.client.autostart import ensure_daemon

            ensure_daemon(self.address.home)
            try:
                connection.connect()
            except OSError as second:
                raise self._nobody_there(second) from None
        return connection

    def _nobody_there(self, error: OSError) -> Unavailable:
        why = error.strerror or error
        return nobody_there(self.address, why, hint="Any other command starts one.")

    def _wait_for_return(self) -> None:
        """After a break: go on when the daemon is back; start it again if it crashed.

        A daemon that was told to stop takes its socket away, and is not brought back behind
        the back of whoever stopped it.
        """
        deadline = time.monotonic() + RETURN_S
        while time.monotonic() < deadline:
            time.sleep(0.2)
            if self.address.url is None and not self.address.home.socket.exists():
                continue
            try:
                self._connect(5).close()
            except Unavailable:
                continue
            return
        raise Unavailable(
            "The daemon was stopped; running agents go on without it.",
            hint="Type the command again to start it and go on.",
        )


def _target(path: str, query: Query | None = None) -> str:
    given = {key: value for key, value in (query or {}).items() if value is not None}
    suffix = "?" + urlencode(given, doseq=True) if given else ""
    return f"/api/v1{path}{suffix}"


def _encoded(body: Any) -> bytes:
    return json.dumps({} if body is None else body).encode()


def _lines(response: Response) -> Iterator[bytes]:
    """The lines of a body as they come; several times faster than the response's own readline."""
    rest = b""
    while block := response.read1(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _read(response: Response) -> bytes:
    try:
        return response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionLost("The daemon went away in the middle of its answer.") from error
