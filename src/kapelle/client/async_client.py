"""`kapelle.connect_async()`: the same client for asyncio; each call blocks a thread of its own.

A call that is cancelled, or a stream that is left early, has its socket shut, so that no thread
stays behind.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from kapelle.client.address import Address
from kapelle.client.client import Client
from kapelle.client.http import Cancellation, cancellation
from kapelle.client.work import Directory, Runs, Schedules, Stream, Tasks

P = ParamSpec("P")
T = TypeVar("T")
Wrapped = TypeVar("Wrapped")


def connect_async(
    url: str | None = None,
    token: str | None = None,
    home: Directory | None = None,
    start: bool = True,
) -> "AsyncClient":
    """A client for programs that use asyncio, with the parameters of `kapelle.connect()`."""
    return AsyncClient(Address.given(url, token, home), start=start)


class _Worker:
    """A thread that makes one blocking call after another for a coroutine."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._cancellation = Cancellation()
        threading.Thread(target=self._work, name="kapelle-client", daemon=True).start()

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises; cancelled, its request is broken off."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def perform() -> None:
            try:
                done = partial(_settle, future, function())
            except BaseException as error:
                done = partial(_settle, future, None, error)
            with suppress(RuntimeError):  # the loop is closed, so nobody waits
                loop.call_soon_threadsafe(done)

        self._calls.put(perform)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancellation.request()
            raise

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Break off what is under way, and end the thread; the last call is made in it."""
        self._cancellation.request()
        if last is not None:
            self._calls.put(last)
        self._calls.put(None)

    def _work(self) -> None:
        cancellation.set(self._cancellation)
        while (call := self._calls.get()) is not None:
            call()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class _Wrapper(Generic[Wrapped]):
    def __init__(self, wrapped: Wrapped) -> None:
        self._wrapped = wrapped


class _Method(Generic[P, T]):
    """A method of the client, as a coroutine."""

    def __init__(self, function: Callable[Concatenate[Any, P], T]) -> None:
        self.__wrapped__, self.__doc__ = function, function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self, instance: _Wrapper[Any], owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: _Wrapper[Any] | None, owner: type) -> Any:
        return self if instance is None else partial(self._call, instance._wrapped)

    async def _call(self, wrapped: object, *args: P.args, **kwargs: P.kwargs) -> T:
        worker = _Worker()
        try:
            return await worker.call(partial(self.__wrapped__, wrapped, *args, **kwargs))
        finally:
            worker.end()


class _Stream(Generic[P, T]):
    """An iterator of the client, as an asynchronous one."""

    def __init__(self, function: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self.__wrapped__, self.__doc__ = function, function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self, instance: _Wrapper[Any], owner: type
    ) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, instance: _Wrapper[Any] | None, owner: type) -> Any:
        return self if instance is None else partial(self._iterate, instance._wrapped)

    async def _iterate(
        self, wrapped: object, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        items = self.__wrapped__(wrapped, *args, **kwargs)
        worker = _Worker()
        try:
            while (item := await worker.call(partial(next, items, _END))) is not _END:
                yield item
        finally:
            worker.end(items.close)


_END = object()


class AsyncTasks(_Wrapper[Tasks]):
    """Every task of a daemon."""

    run = _Method(Tasks.run)
    get = _Method(Tasks.get)
    list = _Stream(Tasks.list)
    wait = _Method(Tasks.wait)
    cancel = _Method(Tasks.cancel)
    retry = _Method(Tasks.retry)
    resume = _Method(Tasks.resume)
    requeue = _Method(Tasks.requeue)
    archive = _Method(Tasks.archive)
    depend = _Method(Tasks.depend)
    diff = _Method(Tasks.diff)
    patch = _Method(Tasks.patch)
    merge = _Method(Tasks.merge)
    output = _Method(Tasks.output)
    transcript = _Stream(Tasks.transcript)


class AsyncRuns(_Wrapper[Runs]):
    """Every run of a daemon."""

    start = _Method(Runs.start)
    pipeline = _Method(Runs.pipeline)
    loop = _Method(Runs.loop)
    team = _Method(Runs.team)
    best_of = _Method(Runs.best_of)
    get = _Method(Runs.get)
    list = _Stream(Runs.list)
    wait = _Method(Runs.wait)
    result = _Method(Runs.result)
    steps = _Method(Runs.steps)
    pause = _Method(Runs.pause)
    resume = _Method(Runs.resume)
    cancel = _Method(Runs.cancel)
    answer = _Method(Runs.answer)
    archive = _Method(Runs.archive)
    diff = _Method(Runs.diff)
    patch = _Method(Runs.patch)
    merge = _Method(Runs.merge)


class AsyncSchedules(_Wrapper[Schedules]):
    """Every schedule of a daemon."""

    create = _Method(Schedules.create)
    get = _Method(Schedules.get)
    list = _Stream(Schedules.list)
    firings = _Stream(Schedules.firings)
    pause = _Method(Schedules.pause)
    resume = _Method(Schedules.resume)
    cancel = _Method(Schedules.cancel)
    run = _Method(Schedules.run)


class AsyncClient(_Wrapper[Client]):
    """A daemon, as asynchronous programs use it; close it, or use it in a with statement."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        client = Client(address, start=start)
        super().__init__(client)
        self.tasks = AsyncTasks(client.tasks)
        self.runs = AsyncRuns(client.runs)
        self.schedules = AsyncSchedules(client.schedules)

    close = _Method(Client.close)
    events = _Stream(Client.events)
    patterns = _Method(Client.patterns)
    agents = _Method(Client.agents)
    usage = _Method(Client.usage)
    instance = _Method(Client.instance)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._wrapped.close()
