"""A door in this process: requests that do not arrive, and more connections than it takes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from kapelle.api import server, sse
from kapelle.api.server import Door, listen
from kapelle.api.sse import EventStream, render_event

WHOLE = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
HELD = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf of it"
OPENED: list[asyncio.StreamWriter] = []
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


LEFT: list[str] = []


async def told() -> AsyncIterator[int]:
    """Something to tell, and then nothing more for ever."""
    try:
        yield 1
        await asyncio.Event().wait()
    finally:
        LEFT.append("the generator is closed")


def rendered(number: int) -> bytes:
    return render_event(str(number), "told", "{}")


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/stream":
        answer = EventStream(told(), rendered)
        await answer(scope, receive, send)
        return
    body = await Request(scope, receive).body()
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


async def test_a_stream_ends_with_the_right_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_PING_S", 0.001)
    rights, sent = iter([True, False]), list[Message]()

    async def is_allowed() -> bool:
        return next(rights)

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    async def send(message: Message) -> None:
        sent.append(message)

    stream = EventStream(told(), rendered, is_allowed)
    await stream({"type": "http"}, receive, send)
    LEFT.clear()
    assert (next(rights, None), sent[-1]["more_body"]) == (None, False)


@asynccontextmanager
async def door(most: int) -> AsyncIterator[int]:
    listener = listen("127.0.0.1", [0])
    opened = Door(app, listener, most)
    serving = asyncio.create_task(opened.serve())
    port = listener.getsockname()[1]
    try:
        while True:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            await asyncio.sleep(0.01)
        yield port
    finally:
        while OPENED:
            OPENED.pop().close()
        opened.close()
        await serving


async def sent(port: int, data: bytes) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    OPENED.append(writer)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def answer(streams: Streams) -> bytes:
    """All that comes until the door closes the connection."""
    async with asyncio.timeout(5):
        return await streams[0].read()


@pytest.mark.parametrize("data", [b"", b"GET /x HTTP/1.1\r\n", HELD], ids=["none", "head", "body"])
async def test_a_request_that_does_not_arrive_is_given_up(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.2)
    monkeypatch.setattr(server, "_BODY_S", 0.2)
    async with door(10) as port:
        told = await answer(await sent(port, data))
        assert told.startswith(b"HTTP/1.1 400 ")
        assert b"did not arrive in time" in told


async def test_the_second_request_of_a_connection_has_its_time_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.3)
    async with door(10) as port:
        reader, writer = await sent(port, WHOLE)
        assert b"0 bytes" in await reader.readuntil(b"bytes")
        writer.write(b"GET /x HT")
        for _ in range(5):  # byte by byte makes it no later
            await asyncio.sleep(0.05)
            writer.write(b"T")
        assert b"did not arrive in time" in await answer((reader, writer))


async def test_a_request_under_way_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.1)
    async with door(10) as port:
        streams = await sent(port, HELD)
        await asyncio.sleep(0.3)
        streams[1].write(b"." * 90)
        assert b"100 bytes" in await streams[0].readuntil(b"bytes")


async def test_whoever_kept_the_door_waiting_longest_gives_way() -> None:
    async with door(20) as port:
        for _ in range(40):
            await sent(port, b"GET /x HTTP/1.1\r\n")
        for _ in range(30):
            streams = await sent(port, WHOLE)
            assert b"0 bytes" in await streams[0].readuntil(b"bytes")


@pytest.mark.parametrize("gone", [True, False], ids=["client", "door"])
async def test_a_stream_ends_when_its_client_goes_or_the_door_closes(
    gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "_PING_S", 0.05)
    LEFT.clear()
    async with door(10) as port:
        reader, writer = await sent(port, WHOLE.replace(b"/x", b"/stream"))
        head = await reader.readuntil(b"id: 1\nevent: told\ndata: {}\n\n")
        assert b"content-type: text/event-stream" in head
        assert b"content-length" not in head
        await reader.readuntil(b": ping\n\n")
        if gone:
            writer.close()
        else:
            OPENED.clear()  # for the door to end
    if not gone:
        assert (await answer((reader, writer))).endswith(b"0\r\n\r\n")
        writer.close()
    assert LEFT == ["the generator is closed"]
