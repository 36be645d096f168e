"""The asynchronous client offers what the other does, and leaves no thread behind."""

import asyncio
import inspect
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import kapelle
from kapelle.client.address import Address
from kapelle.client.client import (
    AsyncLearnings,
    AsyncLocks,
    AsyncNotes,
    AsyncRuns,
    AsyncSchedules,
    AsyncTasks,
    Learnings,
    Locks,
    Notes,
)
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
def test_both_offer_the_same(one: type, other: type, tmp_path: Path) -> None:
    address = Address.given(home=tmp_path)
    takes_address = other is kapelle.Client
    awaited, blocking = (kind(address if takes_address else None) for kind in (one, other))
    theirs = dict(inspect.getmembers(other, inspect.isfunction))
    names = {name for name in theirs if not name.startswith("_")}
    assert {name for name in dir(one) if not name.startswith("_")} == names
    for name in names:
        method, plain = getattr(awaited, name), getattr(blocking, name)
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        assert not inspect.iscoroutinefunction(plain)
        assert inspect.signature(method) == inspect.signature(plain)
        assert method.__doc__ == plain.__doc__


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """The home of a daemon that accepts connections and never answers."""
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(Home(tmp_path).socket))
        Home(tmp_path).token.write_text("a token", encoding="ascii")
        listening.listen(100)
        yield tmp_path


async def _threads_end() -> None:
    for _ in range(100):
        if not any(thread.name.startswith("kapelle-client") for thread in threading.enumerate()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("A thread is left.")


async def test_a_call_that_is_cancelled_leaves_no_thread(silent: Path) -> None:
    async with kapelle.connect_async(home=silent, start=False) as client:
        waiting = [asyncio.create_task(client.tasks.wait("task_1")) for _ in range(50)]
        await asyncio.sleep(0.2)
        assert threading.active_count() > 50
        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)
        await _threads_end()


async def test_a_stream_that_is_left_leaves_no_thread(silent: Path) -> None:
    async with kapelle.connect_async(home=silent, start=False) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(client.events()), 0.2)
        await _threads_end()


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
            await _threads_end()


async def test_errors_reach_the_coroutine(tmp_path: Path) -> None:
    async with kapelle.connect_async(home=tmp_path, start=False) as client:
        with pytest.raises(kapelle.Unavailable, match="No daemon is running"):
            await client.instance()
        with pytest.raises(kapelle.InvalidInput):
            await client.tasks.get(" ")
        with pytest.raises(kapelle.Unavailable):
            await anext(client.tasks.list())
        await _threads_end()
