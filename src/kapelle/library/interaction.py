"""Who answers the questions of a team, and in which thread it is asked and its observer called."""

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
    """Nobody answers now: the run is left off, to be taken up with the answers."""


class Interaction(ABC):
    """A way to have questions answered; ask is called in the thread that called run."""

    asks: bool = True  # whether it is worth thinking of questions at all
    confirms: bool = False  # whether proposed success criteria are to be confirmed as well

    @abstractmethod
    def ask(self, question: str, default: str | None = None) -> str:
        """The answer to a question."""


class Auto(Interaction):
    """Nobody is asked: the planner decides what is sensible."""

    asks = False

    def ask(self, question: str, default: str | None = None) -> str:
        return default or ""


class Console(Interaction):
    """A person at the terminal; an empty line takes the default, or leaves it to the agents."""

    confirms = True

    def ask(self, question: str, default: str | None = None) -> str:
        print(question)
        try:
            answer = input(f"[{default}] > " if default else "> ")
        except EOFError:
            answer = ""
        return answer.strip() or default or ""


class Suspend(Interaction):
    """The run ends with needs_input, its questions and a token to go on with; with confirms in any
    case before the work begins."""

    def __init__(self, *, confirms: bool = False) -> None:
        self.confirms = confirms

    def ask(self, question: str, default: str | None = None) -> str:
        raise TeamSuspended(question)


class ProgressCaller:
    """Whoever called run_async: the observer is called in the loop, the interaction in a thread."""

    def __init__(self, interaction: Interaction, observer: Observer | None) -> None:
        self._interaction = interaction
        self._observer = observer

    def report(self, kind: str, **facts: Any) -> None:
        """Let the observer know of something that happened."""
        self._observe({"kind": kind, "at": datetime.now(UTC).isoformat(), **facts})

    def _observe(self, event: dict[str, Any]) -> None:
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception:
            # Whoever looks on must not be able to spoil the work.
            _log.exception("the observer failed at %s", event["kind"])

    async def ask(self, question: str, default: str | None) -> str:
        return await asyncio.to_thread(self._interaction.ask, question, default)


class ThreadCaller(ProgressCaller):
    """The thread that called run: it serves the work, which goes on in another one.

    So input() is asked where Ctrl-C arrives, and an observer never has to think of threads.
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
        """What comes of the work; interrupted, it ends the work with all its agents first."""
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
            with suppress(RuntimeError):  # the work has just ended by itself
                loop.call_soon_threadsafe(task.cancel)
            thread.join()
            raise
        thread.join()
        return task.result()
