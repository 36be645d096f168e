"""Processes by the daemon's own runner, and calls that block or await where the other is asked."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from kapelle.library.agent import Stop
from kapelle.runner.process_dir import Ended, Launch
from kapelle.runner.runner import Runner

T = TypeVar("T")

_LOOK_S = 0.1


class LeftBehind(Exception):
    """A call did not end in time; its thread goes on, and what comes of it is not used."""


@contextmanager
def process_directory() -> Iterator[Path]:
    """Where one process is executed, with the runner's own files beside it; removed in the end."""
    with TemporaryDirectory(prefix="kapelle-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve() / "process"


async def execute(launch: Launch, stop: Stop) -> Ended:
    """Execute a command in such a directory to its end, or until it is to stop.

    Whatever it started ends with it, also when this is cancelled.
    """
    # Without a cgroup, which nobody would remove after this program was killed.
    runner = Runner(launch.process_dir.parent, use_cgroup=False)
    await runner.start()
    try:
        work = asyncio.ensure_future(runner.execute(launch))
        try:
            while not stop.wanted and not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
        except asyncio.CancelledError:
            stop.request("it was interrupted")
            raise
        finally:
            if stop.wanted:
                runner.stop(launch.process_dir, stop.reason)
            await asyncio.wait({work})
        return work.result()
    finally:
        await runner.close()


async def call(
    function: Callable[[], T], stop: Stop, limit_s: float | None, ends_within_s: float
) -> T:
    """What a function that blocks returns or raises; after the limit, and when this is cancelled,
    it is told to stop. Raises LeftBehind when it does not end then."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as error:
            # This is the edge of a thread, which SystemExit must not cross.
            future.set_exception(
                error if isinstance(error, Exception) else RuntimeError(repr(error))
            )

    # A daemon: what cannot be ended must not keep the whole program from ending.
    threading.Thread(target=work, name="kapelle-agent", daemon=True).start()
    done = asyncio.wrap_future(future)
    try:
        await asyncio.wait({done}, timeout=limit_s)
        if not done.done():
            stop.request(f"{limit_s:g} s have passed")
    except asyncio.CancelledError:
        stop.request("the run was interrupted")
        raise
    finally:
        if stop.wanted:
            await asyncio.wait({done}, timeout=ends_within_s)
        if not done.done():
            done.cancel()
    if done.cancelled():
        raise LeftBehind(stop.reason)
    return done.result()


def block_on(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, for callers outside of an event loop and inside of one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
