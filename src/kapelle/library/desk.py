"""Where a run reports and asks: the thread that called run, or the event loop that it is in."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from kapelle.library.interaction import Interaction

T = TypeVar("T")
Observer = Callable[[dict[str, Any]], None]

_log = logging.getLogger("kapelle.library")


class Desk(Protocol):
    """What a run has to say goes to the observer, what it has to ask to the interaction."""

    def tell(self, kind: str, **facts: Any) -> None: ...

    async def ask(self, question: str, default: str | None) -> str: ...


class LoopDesk:
    """For run_async: the observer is called in the loop, the interaction in a thread."""

    def __init__(self, interaction: Interaction, observer: Observer | None) -> None:
        self._interaction = interaction
        self._observer = observer

    def tell(self, kind: str, **facts: Any) -> None:
        _observe(self._observer, _event(kind, facts))

    async def ask(self, question: str, default: str | None) -> str:
        return await asyncio.to_thread(self._interaction.ask, question, default)


class CallerDesk:
    """For run: the work goes on in a thread, and the calling one serves it.

    So input() is asked where Ctrl-C arrives, and an observer never has to think of threads.
    """

    def __init__(self, interaction: Interaction, observer: Observer | None) -> None:
        self._interaction = interaction
        self._observer = observer
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def tell(self, kind: str, **facts: Any) -> None:
        event = _event(kind, facts)
        self._calls.put(lambda: _observe(self._observer, event))

    async def ask(self, question: str, default: str | None) -> str:
        answer: Future[str] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._interaction.ask(question, default))
            except Exception as error:
                answer.set_exception(error)

        self._calls.put(ask)
        return await asyncio.wrap_future(answer)

    def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of the work; interrupted, it ends the work with all its agents first."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(work)
        thread = threading.Thread(
            target=self._run, args=(loop, task), name="kapelle-run", daemon=True
        )
        thread.start()
        try:
            while (call := self._calls.get()) is not None:
                call()
        except BaseException:
            with suppress(RuntimeError):  # the work has just ended by itself
                loop.call_soon_threadsafe(task.cancel)
            thread.join()
            raise
        thread.join()
        return task.result()

    def _run(self, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[T]") -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(asyncio.wait([task]))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            self._calls.put(None)


def _event(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "at": datetime.now(UTC).isoformat(), **facts}


def _observe(observer: Observer | None, event: dict[str, Any]) -> None:
    if observer is None:
        return
    try:
        observer(event)
    except Exception:
        # Whoever looks on must not be able to spoil the work.
        _log.exception("the observer failed at %s", event["kind"])
