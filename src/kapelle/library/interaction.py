"""Answer the questions of a team, and call its observer, in the right thread."""

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

T = TypeVar("T")
Observer = Callable[[dict[str, Any]], None]

_log = logging.getLogger("kapelle.library")


class TeamSuspended(Exception):
    """Raised for a question without an answer now: the run ends, and resumes with the answers."""


class Interaction(ABC):
    """A way to answer questions; ask() is called in the thread that called run()."""

    asks: bool = True  # False: the planner makes no questions
    confirms: bool = False  # True: proposed success criteria become a question, too

    @abstractmethod
    def ask(self, question: str, default: str | None = None) -> str:
        """Return the answer to a question."""


class Auto(Interaction):
    """Asks nobody: the planner decides."""

    asks = False

    def ask(self, question: str, default: str | None = None) -> str:
        return default or ""


class Console(Interaction):
    """Asks the person at the terminal; an empty line is the default, or else the agents decide."""

    confirms = True

    def ask(self, question: str, default: str | None = None) -> str:
        print(question)
        try:
            answer = input(f"[{default}] > " if default else "> ")
        except EOFError:
            answer = ""
        return answer.strip() or default or ""


class Suspend(Interaction):
    """Ends the run with the status needs_input, its questions and a token to resume with.

    With confirms it ends at least once, before the work begins.
    """

    def __init__(self, *, confirms: bool = False) -> None:
        self.confirms = confirms

    def ask(self, question: str, default: str | None = None) -> str:
        raise TeamSuspended(question)


class ProgressCaller:
    """The caller of run_async(): calls the observer in the loop, the interaction in a thread."""

    def __init__(self, interaction: Interaction, observer: Observer | None) -> None:
        self._interaction = interaction
        self._observer = observer

    def report(self, kind: str, **facts: Any) -> None:
        """Send an event to the observer."""
        self._observe({"kind": kind, "at": datetime.now(UTC).isoformat(), **facts})

    def _observe(self, event: dict[str, Any]) -> None:
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception:
            # An error of the observer must not end the run.
            _log.exception("the observer failed at %s", event["kind"])

    async def ask(self, question: str, default: str | None) -> str:
        """Return the answer to a question."""
        return await asyncio.to_thread(self._interaction.ask, question, default)


class ThreadCaller(ProgressCaller):
    """The caller of run(): its thread serves questions and events, the work runs in another one.

    So input() is called in the thread that gets Ctrl-C, and an observer needs no locks.
    """

    def __init__(self, interaction: Interaction, observer: Observer | None) -> None:
        super().__init__(interaction, observer)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def _observe(self, event: dict[str, Any]) -> None:
        observe = super()._observe
        self._calls.put(lambda: observe(event))

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
        """Return the result of the work; an interruption first ends the work and its agents."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(work)

        def perform() -> None:
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(asyncio.wait([task]))
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                loop.close()
                self._calls.put(None)

        thread = threading.Thread(target=perform, name="kapelle-run", daemon=True)
        thread.start()
        try:
            while (call := self._calls.get()) is not None:
                call()
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed, because the work has just ended
                loop.call_soon_threadsafe(task.cancel)
            thread.join()
            raise
        thread.join()
        return task.result()
