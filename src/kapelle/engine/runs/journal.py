"""The steps of one run: each is made once, and remembered when the run is taken up again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from kapelle.domain.errors import (
    Conflict,
    InvalidInput,
    KapelleError,
    Unavailable,
    find_error_class,
)
from kapelle.engine.background import with_retries
from kapelle.engine.parts import Parts
from kapelle.engine.runs.control import IN_ORDER, Control, RunInterrupted
from kapelle.runner.process_dir import Process
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import processes, steps
from kapelle.store.database import Connection

# What the kind of a step ends with that could not even begin.
_REFUSED = " refused"


class PatternChanged(KapelleError, code="pattern_changed"):
    """The pattern does something else than it did when the run began."""


class StepNotReady(Exception):
    """The work that a step waited for has resumed, so the step waits again."""


class PatternExited(Exception):
    """The pattern wanted to end the program that it is played in."""


@dataclass(frozen=True)
class StepRequest:
    """A step as the pattern asks for it.

    perform makes it, again after a crash. begin stores it with whatever belongs to its beginning;
    end, in the transaction that ends it, stores what belongs to its end and makes the result of
    what perform returned, or raises StepNotReady. One that may be made twice is made at_once: it is
    stored in one transaction when it was made. role and cycle say what a task is for.
    """

    kind: str
    label: str
    perform: "Callable[[StepRequest], Awaitable[Any]]"
    begin: "Callable[[StepRequest], Awaitable[None]] | None" = None
    end: Callable[[Connection, Any], Any] | None = None
    data: dict[str, Any] = field(default_factory=dict)
    at_once: bool = False
    role: str | None = None
    cycle: int | None = None
    position: str = ""  # its place, which the journal gives it


class Journal:
    """Records the steps of a run: earlier ones are read once, new ones written as they happen."""

    def __init__(
        self, parts: Parts, run_id: str, earlier_steps: dict[str, steps.Row], control: Control
    ) -> None:
        self._parts = parts
        self._run_id = run_id
        self._known = earlier_steps
        self._control = control
        self._gates: dict[str, Gate] = {}
        self._open = 0
        self._idle_since = time.monotonic()
        self._closed: BaseException | None = None

    @property
    def idle_s(self) -> float:
        """For how long no step has been under way."""
        if self._open:
            return 0.0
        return time.monotonic() - self._idle_since

    def close(self, reason: BaseException) -> None:
        """Have no further step made, whatever the pattern tries."""
        self._closed = reason

    def _next(self) -> str:
        scope = _scope.get()
        if self._closed is not None:
            raise self._closed
        if scope.owner is not asyncio.current_task():
            raise Conflict(
                "Steps at the same time go through ctx.gather; this one was made in an asyncio "
                "task of the pattern's own, where a replay would not find it again."
            )
        if scope.left is not None:
            raise scope.left
        return scope.next()

    async def step(self, step: StepRequest) -> Any:
        """The result of a step, which JSON can hold: remembered, or made now."""
        if not isinstance(step.label, str):
            raise InvalidInput(f"ctx.{step.kind} takes a text, not {step.label!r}.")
        if not isinstance(step.role, str | None):
            raise InvalidInput(f"ctx.{step.kind}: role is a text, not {step.role!r}.")
        if not isinstance(step.cycle, int | None):
            raise InvalidInput(f"ctx.{step.kind}: cycle is a whole number, not {step.cycle!r}.")
        return await self._make_step(replace(step, position=self._next()))

    async def _make_step(self, step: StepRequest) -> Any:
        """A step, however often what it needs is not to be had."""
        self._open += 1
        try:
            with self._branch_left():
                return await with_retries(self._step, self._look_again)(step)
        finally:
            self._open -= 1
            self._idle_since = time.monotonic()

    async def _look_again(self) -> None:
        """See how far the run has come, unless a person does not want it to wait any longer."""
        await with_retries(self._control.require)()
        self._known = await with_retries(self._parts.db.read)(steps.load_by_position, self._run_id)

    @asynccontextmanager
    async def lock(self, name: str, places: int) -> AsyncIterator[None]:
        """A place behind a gate; who had one before a crash has it again."""
        position = self._next()
        if name not in self._gates:
            self._gates[name] = Gate(places, sum(_is_in(name, e) for e in self._known.values()))
        was_in = _is_in(name, self._known.get(position))
        with self._branch_left():
            await self._gates[name].enter(was_in=was_in)
        try:
            await self._make_step(
                StepRequest("lock", name, no_work, at_once=True, position=position)
            )
            yield
        finally:
            self._gates[name].leave()

    @contextmanager
    def _branch_left(self) -> Iterator[None]:
        """Once a branch was interrupted, none of its later steps is made, not even in a finally."""
        try:
            yield
        except RunInterrupted as error:
            _scope.get().left = error
            raise
        except asyncio.CancelledError:
            _scope.get().left = Conflict(
                "The pattern's own code has cancelled a step, as asyncio.timeout and wait_for do, "
                "which a replay cannot repeat.",
                hint="Give the step a limit of its own, such as timeout_s.",
            )
            raise

    async def _step(self, step: StepRequest) -> Any:
        entry = self._known.get(step.position)
        if entry is None:
            await self._control.require()
            failpoint("step_before_begin")
            if not step.at_once:
                await self._begin(step)
            failpoint("step_after_begin")
        elif entry["kind"].removesuffix(_REFUSED) != step.kind:
            raise PatternChanged(
                f"Step {step.position} was {entry['kind']} ({entry['label']}) and would now be "
                f"{step.kind} ({step.label}): the pattern changed while the run was under way.",
                hint="Put the pattern back as it was, or start a new run.",
            )
        elif entry["ended_at"] is not None:
            return _replay(entry)
        else:
            step = replace(step, data=entry["data"], at_once=False)
        return await self._make(step)

    async def _begin(self, step: StepRequest) -> None:
        try:
            if step.begin is not None:
                await step.begin(step)
            else:
                await self._parts.db.write(self.store, step)
        except Unavailable:
            raise
        except KapelleError as error:
            # Remembered too: what was over, or not installed, may be there at the next replay.
            refusal = replace(step, kind=step.kind + _REFUSED, at_once=True)
            await self._parts.db.write(self._end, refusal, None, error)
            raise

    async def _make(self, step: StepRequest) -> Any:
        while True:
            try:
                value = await step.perform(step)
            except Unavailable:
                raise  # it passes, and nothing is to be remembered of it
            except KapelleError as error:
                failpoint("step_before_end")
                await self._parts.db.write(self._end, step, None, error)
                raise
            failpoint("step_before_end")
            with suppress(StepNotReady):
                result = await self._parts.db.write(self._end, step, value)
                failpoint("step_after_end")
                return result

    def _end(
        self,
        connection: Connection,
        step: StepRequest,
        value: Any,
        error: KapelleError | None = None,
    ) -> Any:
        """Store the result of a step; a step made at once is stored as a whole."""
        if step.kind.endswith(_REFUSED):
            self._control.check(connection)  # it has not begun
        self._control.require_claim(connection)
        result = value
        problem = None
        if error is not None:
            problem = {"code": error.code, "message": error.message, "hint": error.hint}
        elif step.end is not None:
            result = step.end(connection, value)
        if step.at_once:
            self._insert(connection, step)
        steps.end(connection, self._run_id, step.position, result, problem)
        return result

    def store(self, connection: Connection, step: StepRequest, subject: str | None = None) -> None:
        """Store that a step begins; once a person wants the run to stop, none does."""
        self._control.check(connection)
        self._insert(connection, step, subject)

    def _insert(
        self, connection: Connection, step: StepRequest, subject: str | None = None
    ) -> None:
        steps.begin(
            connection,
            self._run_id,
            step.position,
            step.kind,
            step.label,
            role=step.role,
            cycle=step.cycle,
            subject=subject,
            data=step.data,
        )

    def note(self, connection: Connection, step: StepRequest, data: dict[str, Any]) -> None:
        """Keep what a step that goes on needs to know if it is made again."""
        self._control.require_claim(connection)
        steps.update_data(connection, self._run_id, step.position, data)

    async def process(self, name: str, announce: processes.Announce | None = None) -> Process:
        """The process of a step; that it is begun is stored before anything of it is there."""

        def begin(connection: Connection) -> steps.Row:
            self._control.require_claim(connection)
            return processes.begin(connection, self._run_id, name, announce)

        return self._parts.process(await self._parts.db.write(begin))

    async def gather(self, branches: tuple[Coroutine[Any, Any, Any], ...]) -> list[Any]:
        """Branches at once, each with places of its own; all end before anything is raised."""
        prefix = self._next()
        branch_tasks = [
            asyncio.create_task(play(branch, f"{prefix}.{number}."))
            for number, branch in enumerate(branches, 1)
        ]
        with self._branch_left():
            try:
                results = await asyncio.gather(*branch_tasks, return_exceptions=True)
            except asyncio.CancelledError:
                for task in branch_tasks:
                    task.cancel()
                raise
            # The end goes before a pause, and both before errors, which the replay repeats.
            for kind in IN_ORDER:
                for error in (item for item in results if isinstance(item, kind)):
                    raise error
        return list(results)


@dataclass
class _Scope:
    """Numbers the steps of one branch, so that they have the same places at every replay."""

    prefix: str
    owner: "asyncio.Task[Any] | None"
    count: int = 0
    # What ended the branch: whatever it does on its way out is not part of it.
    left: BaseException | None = None

    def next(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count:04d}"


_scope: ContextVar[_Scope] = ContextVar("scope")


async def play(branch: Coroutine[Any, Any, Any], prefix: str = "") -> Any:
    """Play a pattern or a branch of it in the present asyncio task, which alone makes its steps."""
    _scope.set(_Scope(prefix, asyncio.current_task()))
    try:
        return await branch
    except (SystemExit, KeyboardInterrupt) as error:
        # Out of an asyncio task, these would end the daemon.
        raise PatternExited from error


class Gate:
    """Lets branches in, as many at once as there are places.

    A branch that was in before the crash comes in at once: it goes on with what it did there, or
    only walks through what it has done. Until all of those are back, nobody else comes in.
    """

    def __init__(self, places: int, were_in: int) -> None:
        self._places = places
        self._awaited = were_in
        self._inside = 0
        self._waiting: list[asyncio.Event] = []

    async def enter(self, *, was_in: bool) -> None:
        if was_in:
            self._awaited -= 1
        elif self._is_full or self._waiting:
            turn = asyncio.Event()
            self._waiting.append(turn)
            try:
                await turn.wait()
            except BaseException:
                self._give_up(turn)
                raise
            return  # whoever called this one up has counted it in
        self._inside += 1
        self._admit()

    def leave(self) -> None:
        self._inside -= 1
        self._admit()

    @property
    def _is_full(self) -> bool:
        return self._awaited > 0 or self._inside >= self._places

    def _admit(self) -> None:
        while self._waiting and not self._is_full:
            self._inside += 1
            self._waiting.pop(0).set()

    def _give_up(self, turn: asyncio.Event) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        else:
            self.leave()


def _is_in(name: str, entry: steps.Row | None) -> bool:
    """Return whether a step is the one with which a branch entered the gate of this name."""
    if entry is None or entry["ended_at"] is None:
        return False
    return (entry["kind"], entry["label"]) == ("lock", name)


async def no_work(_step: StepRequest) -> None:
    """Do nothing: the work of a step that is only recorded."""


def _replay(entry: steps.Row) -> Any:
    error = entry["error"]
    if error is None:
        return entry["result"]
    # Of the same class as the first time, for the pattern may have caught it by that.
    failure = find_error_class(error["code"])(error["message"], hint=error["hint"])
    failure.code = error["code"]
    raise failure
