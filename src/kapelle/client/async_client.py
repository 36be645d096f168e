"""`kapelle.connect_async()`: the same client for asyncio; each call blocks a thread of its own.

A call that is cancelled, or a stream that is left early, has its socket shut, so that no thread
stays behind.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kapelle.client.address import Address
from kapelle.client.client import Client, Learnings, Locks, Notes
from kapelle.client.http import Cancellation, cancellation
from kapelle.client.work import Directory, Runs, Schedules, Stream, Tasks

P = ParamSpec("P")
T = TypeVar("T")


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
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._cancellation = Cancellation()
        threading.Thread(target=self._work, name="kapelle-client", daemon=True).start()

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises; cancelled, its request is broken off."""
        future: Future[T] = Future()
        self._calls.put((future, function))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._cancellation.request()
            raise

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Break off what is under way, and end the thread; the last call is made in it."""
        self._cancellation.request()
        if last is not None:
            self._calls.put((Future(), last))
        self._calls.put(None)

    def _work(self) -> None:
        cancellation.set(self._cancellation)
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


class _Wrapper:
    def __init__(self, wrapped: object) -> None:
        self._wrapped = wrapped


def _method(
    function: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[_Wrapper, P], Coroutine[Any, Any, T]]:
    """A method of the client, as a coroutine."""

    @wraps(function)
    async def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> T:
        worker = _Worker()
        try:
            return await worker.call(partial(function, self._wrapped, *args, **kwargs))
        finally:
            worker.end()

    return call


def _stream(
    function: Callable[Concatenate[Any, P], Stream[T]],
) -> Callable[Concatenate[_Wrapper, P], AsyncGenerator[T, None]]:
    """An iterator of the client, as an asynchronous one."""

    @wraps(function)
    async def iterate(
        self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        items = function(self._wrapped, *args, **kwargs)
        worker, end = _Worker(), object()
        try:
            while (item := await worker.call(partial(next, items, end))) is not end:
                yield item
        finally:
            worker.end(items.close)

    return iterate


class AsyncTasks(_Wrapper):
    """Every task of a daemon."""

    run = _method(Tasks.run)
    get = _method(Tasks.get)
    list = _stream(Tasks.list)
    wait = _method(Tasks.wait)
    cancel = _method(Tasks.cancel)
    retry = _method(Tasks.retry)
    resume = _method(Tasks.resume)
    say = _method(Tasks.say)
    requeue = _method(Tasks.requeue)
    archive = _method(Tasks.archive)
    depend = _method(Tasks.depend)
    diff = _method(Tasks.diff)
    pull_request = _method(Tasks.pull_request)
    deliver = _method(Tasks.deliver)
    patch = _method(Tasks.patch)
    merge = _method(Tasks.merge)
    preview_merge = _method(Tasks.preview_merge)
    output = _method(Tasks.output)
    transcript = _stream(Tasks.transcript)


class AsyncRuns(_Wrapper):
    """Every run of a daemon."""

    start = _method(Runs.start)
    get = _method(Runs.get)
    list = _stream(Runs.list)
    wait = _method(Runs.wait)
    result = _method(Runs.result)
    steps = _method(Runs.steps)
    pause = _method(Runs.pause)
    resume = _method(Runs.resume)
    cancel = _method(Runs.cancel)
    answer = _method(Runs.answer)
    follow_up = _method(Runs.follow_up)
    archive = _method(Runs.archive)
    diff = _method(Runs.diff)
    pull_request = _method(Runs.pull_request)
    deliver = _method(Runs.deliver)
    patch = _method(Runs.patch)
    merge = _method(Runs.merge)
    preview_merge = _method(Runs.preview_merge)


class AsyncSchedules(_Wrapper):
    """Every schedule of a daemon."""

    create = _method(Schedules.create)
    get = _method(Schedules.get)
    list = _stream(Schedules.list)
    firings = _stream(Schedules.firings)
    pause = _method(Schedules.pause)
    resume = _method(Schedules.resume)
    cancel = _method(Schedules.cancel)
    run = _method(Schedules.run)


class AsyncNotes(_Wrapper):
    """Every note of a daemon."""

    put = _method(Notes.put)
    get = _method(Notes.get)
    list = _method(Notes.list)
    delete = _method(Notes.delete)
    watch = _method(Notes.watch)


class AsyncLocks(_Wrapper):
    """Every lock of a daemon."""

    take = _method(Locks.take)
    list = _method(Locks.list)
    release = _method(Locks.release)


class AsyncLearnings(_Wrapper):
    """Every learning of a daemon."""

    add = _method(Learnings.add)
    get = _method(Learnings.get)
    list = _method(Learnings.list)
    edit = _method(Learnings.edit)
    delete = _method(Learnings.delete)


class AsyncClient(_Wrapper):
    """A daemon, as asynchronous programs use it; close it, or use it in a with statement."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        self._client = client = Client(address, start=start)
        super().__init__(client)
        self.tasks = AsyncTasks(client.tasks)
        self.runs = AsyncRuns(client.runs)
        self.schedules = AsyncSchedules(client.schedules)
        self.notes = AsyncNotes(client.notes)
        self.locks = AsyncLocks(client.locks)
        self.learnings = AsyncLearnings(client.learnings)

    close = _method(Client.close)
    events = _stream(Client.events)
    questions = _method(Client.questions)
    answer = _method(Client.answer)
    search = _method(Client.search)
    patterns = _method(Client.patterns)
    agents = _method(Client.agents)
    trusted = _method(Client.trusted)
    trust = _method(Client.trust)
    untrust = _method(Client.untrust)
    usage = _method(Client.usage)
    prune = _method(Client.prune)
    instance = _method(Client.instance)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()
