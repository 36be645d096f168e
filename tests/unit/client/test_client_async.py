"""The asynchronous client offers what the other does, and leaves nothing behind."""

import asyncio
import inspect
import socket
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar, get_args, get_origin

import pytest

import kapelle
from kapelle.client.async_client import AsyncLearnings, AsyncLocks, AsyncNotes
from kapelle.client.async_work import AsyncRuns, AsyncSchedules, AsyncTasks
from kapelle.client.client import Learnings, Locks, Notes
from kapelle.client.work import Runs, Schedules, Tasks
from kapelle.home import Home

PAIRS: list[tuple[type, type]] = [
    (AsyncTasks, Tasks),
    (AsyncRuns, Runs),
    (AsyncSchedules, Schedules),
    (AsyncNotes, Notes),
    (AsyncLocks, Locks),
    (AsyncLearnings, Learnings),
    (kapelle.AsyncClient, kapelle.Client),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[other.__name__ for _, other in PAIRS])
def test_both_offer_the_same(one: type, other: type) -> None:
    names = {name for name in dir(other) if not name.startswith("_")}
    assert {name for name in dir(one) if not name.startswith("_")} == names
    for name in names:
        method, plain = getattr(one, name), getattr(other, name)
        assert not inspect.iscoroutinefunction(plain)
        assert method.__doc__ == plain.__doc__
        signature, plain_signature = inspect.signature(method), inspect.signature(plain)
        assert signature.parameters == plain_signature.parameters
        returned, plain_returned = signature.return_annotation, plain_signature.return_annotation
        if get_origin(plain_returned) is Generator:
            assert inspect.isasyncgenfunction(method)
            assert get_origin(returned) is AsyncGenerator
            assert get_args(returned)[0] == get_args(plain_returned)[0]
        else:
            assert inspect.iscoroutinefunction(method)
            assert _is_same(returned, plain_returned)


def _is_same(one: object, other: object) -> bool:
    """A type variable stands for the same types in both."""
    if isinstance(one, TypeVar) and isinstance(other, TypeVar):
        return one.__constraints__ == other.__constraints__
    return one == other


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a home at which nobody answers."""
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(Home(tmp_path).socket))
        Home(tmp_path).token.write_text("a token", encoding="ascii")
        listening.listen(200)
        yield listening


@pytest.fixture(autouse=True)
def _no_threads() -> Iterator[None]:
    """Calls are coroutines of the event loop, and no threads."""
    before = threading.active_count()
    yield
    assert threading.active_count() == before


async def test_a_call_that_is_cancelled_closes_its_connection(silent: socket.socket) -> None:
    home = Path(silent.getsockname()).parent
    async with kapelle.connect_async(home=home, start=False) as client:
        waiting = [asyncio.create_task(client.tasks.wait("task_1")) for _ in range(50)]
        loop = asyncio.get_running_loop()
        silent.setblocking(False)
        connections = [(await loop.sock_accept(silent))[0] for _ in waiting]
        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)
        for connection in connections:
            await asyncio.wait_for(_read_to_end(connection), 5)


async def test_a_stream_that_is_left_closes_its_connection(silent: socket.socket) -> None:
    home = Path(silent.getsockname()).parent
    async with kapelle.connect_async(home=home, start=False) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(client.events()), 0.2)
        await asyncio.wait_for(_read_to_end(silent.accept()[0]), 5)


async def _read_to_end(connection: socket.socket) -> None:
    connection.setblocking(False)
    with closing(connection):
        while await asyncio.get_running_loop().sock_recv(connection, 65536):
            pass


async def test_many_calls_are_made_at_once(silent: socket.socket) -> None:
    """More than a pool of connections has places by default."""
    home = Path(silent.getsockname()).parent
    async with kapelle.connect_async(home=home, start=False) as client:
        waiting = [asyncio.create_task(client.instance()) for _ in range(150)]
        silent.setblocking(False)
        loop = asyncio.get_running_loop()
        for _ in waiting:
            connection, _ = await asyncio.wait_for(loop.sock_accept(silent), 5)
            await loop.sock_recv(connection, 65536)
            await loop.sock_sendall(connection, b"HTTP/1.1 404 Not Found\r\n\r\n")
            connection.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in ended} == {kapelle.KapelleError}


def test_a_client_outlives_its_event_loop(tmp_path: Path) -> None:
    client = kapelle.connect_async(home=tmp_path, start=False)
    for _ in range(2):
        with pytest.raises(kapelle.Unavailable):
            asyncio.run(client.instance())


async def test_a_call_while_the_daemon_is_awaited_can_be_cancelled(tmp_path: Path) -> None:
    """It breaks off at once, and not when the client gives the daemon up."""
    home = Home(tmp_path)
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(home.socket))
        home.token.write_text("a token", encoding="ascii")
        listening.listen(1)
        async with kapelle.connect_async(home=tmp_path, start=False) as client:
            task = asyncio.create_task(client.instance())
            await asyncio.sleep(0.1)
            listening.accept()[0].close()
            listening.close()
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_errors_reach_the_coroutine(tmp_path: Path) -> None:
    async with kapelle.connect_async(home=tmp_path, start=False) as client:
        with pytest.raises(kapelle.Unavailable, match="No daemon is running"):
            await client.instance()
        with pytest.raises(kapelle.InvalidInput):
            await client.tasks.get(" ")
        with pytest.raises(kapelle.Unavailable):
            await anext(client.tasks.list())
