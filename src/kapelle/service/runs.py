"""Use cases of runs: start, look, wait, and change their course."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.run import Run, RunFilter, Step, rests
from kapelle.domain.states import RUN_FINAL, RunStatus, TaskStatus
from kapelle.domain.views import PatternView
from kapelle.engine.children import as_child, own_key, require_undecided, room_for, why_stopped
from kapelle.engine.parts import Parts
from kapelle.engine.questions import answer
from kapelle.engine.runs import control
from kapelle.engine.runs.patterns import list_patterns
from kapelle.engine.runs.start import start, validated
from kapelle.engine.tasks.submit import require_directory
from kapelle.service.batches import with_list
from kapelle.service.work import below, of_repository, wait
from kapelle.store import runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row


class Runs:
    def __init__(self, parts: Parts, held: Callable[[], str | None] = lambda: None) -> None:
        """held says why no task starts now, None when nothing is in the way."""
        self._parts = parts
        self._db = parts.db
        self._held = held

    async def start(
        self,
        pattern: str,
        spec: dict[str, Any],
        idempotency_key: str | None = None,
        schedule_id: str | None = None,
        parent: str | None = None,
    ) -> Run:
        """Store a run; once this returned, nothing but a person ends it without a verdict. What an
        attempt asks for is a child of the attempt's task, its parent."""
        parts, spec = self._parts, await with_list(self._db, pattern, spec)
        if parent is None:
            run_id = await start(parts, pattern, spec, idempotency_key, schedule_id=schedule_id)
            return await self.get(run_id)
        place = (await self._db.read(tasks.row, parent))["directory"]
        valid = await validated(parts, pattern, {"directory": place, **spec})
        run_id = await start(
            parts,
            pattern,
            await as_child(parts, parent, valid.model_dump(mode="json", exclude_unset=True)),
            own_key(parent, idempotency_key),
            parent_task_id=parent,
            also=room_for(parts, parent),
        )
        return await self.get(run_id)

    async def patterns(self, directory: str | None) -> tuple[list[PatternView], list[InvalidInput]]:
        """Every pattern that may be named, as seen from a directory, and what is wrong there."""
        place = Path(require_directory(directory)) if directory else None
        return await list_patterns(self._parts, place)

    async def get(self, text: str) -> Run:
        return await self._db.read(lambda c: self._shown(c, runs.get(c, text)))

    async def page(
        self, wanted: RunFilter, parent: str | None = None
    ) -> tuple[list[Run], str | None]:
        """Some runs, newest first, and the cursor of the next page, if there is one; to an attempt
        those below its task, the parent."""
        among = await below(self._db, parent, "run")
        found, cursor = await self._db.read(self._page, of_repository(wanted), among)
        return [run.as_row() for run in found] if wanted.light else found, cursor

    def _page(
        self, connection: Connection, wanted: RunFilter, among: list[str] | None
    ) -> tuple[list[Run], str | None]:
        found, cursor = runs.page(connection, wanted, among)
        return [self._shown(connection, run) for run in found], cursor

    async def steps(self, text: str) -> list[Step]:
        return await self._db.read(lambda c: steps.shown(c, runs.resolve(c, text)))

    async def wait(self, text: str, timeout_s: float) -> Run:
        """The run as soon as it has ended, waits or is paused, or as it is when time is up."""
        run_id = await self._id(text)
        await wait(self._db, run_id, timeout_s, self._is_resting)
        return await self.get(run_id)

    async def pause(self, text: str, *, now: bool = False, parent: str | None = None) -> Run:
        run_id = await self._id(text)
        await control.pause(self._parts, run_id, why_stopped("paused", parent), now=now)
        return await self.get(run_id)

    async def resume(self, text: str, parent: str | None = None) -> Run:
        self._parts.require_trust((await self.get(text)).directory)

        def resume(connection: Connection, run_id: str) -> None:
            family = runs.family(connection, run_id) if parent is not None else []
            for row in runs.still_open(connection, family):
                require_undecided(connection, row["id"])
            control.resume(connection, run_id)

        return await self._apply_change(text, resume)

    async def cancel(
        self,
        text: str,
        reason: str | None = None,
        *,
        with_tasks: bool = True,
        parent: str | None = None,
    ) -> Run:
        """End a run, with its tasks and the runs inside it or without."""
        run_id = await self._id(text)
        why = why_stopped("cancelled", parent, reason)
        await control.cancel(self._parts, run_id, why, with_tasks=with_tasks)
        return await self.get(run_id)

    async def answer(self, text: str, answer: str, token: str | None = None) -> Run:
        """Answer a question of the run, which then goes on."""
        return await self._apply_change(text, _answer, token, answer)

    async def pause_all(self, reason: str) -> None:
        """Pause whatever is under way; running tasks go back to their queue."""
        for run_id in await self._db.read(runs.running):
            with suppress(Conflict):  # it has just ended, or is paused with its parent
                await control.pause(self._parts, run_id, reason, now=True)

    async def _id(self, text: str) -> str:
        return await self._db.read(lambda c: runs.row(c, runs.resolve(c, text))["id"])

    async def _apply_change(self, text: str, change: Callable[..., None], *args: Any) -> Run:
        def apply(connection: Connection) -> str:
            run_id = runs.resolve(connection, text)
            change(connection, run_id, *args)
            return run_id

        return await self.get(await self._db.write(apply))

    def _is_resting(self, connection: Connection, run_id: str) -> bool:
        return rests(self._shown(connection, runs.get(connection, run_id)))

    def _shown(self, connection: Connection, run: Run) -> Run:
        """A run with what it is at, and whether all that it could go on with waits for a person."""
        if run.status is not RunStatus.RUNNING or run.reason is not None:
            return run
        going = runs.open_tasks(connection, [run.id])
        asking = [task for task in going if task["waiting_for"] == "input"]
        if asking and len(asking) == len(going) and runs.row(connection, run.id)["may_ask"]:
            task_id, question = asking[0]["id"], asking[0]["question"]
            reason = f'{task_id} asks: {question} (kapelle answer {task_id} "…")'
            found = {"waiting_for": "input", "reason": reason, "question": question}
            return run.model_copy(update=found)
        for check in self._parts.checking.get(run.id, ()):
            reason = check.words(datetime.now(UTC))
            return run.model_copy(update={"reason": reason, "checking": check})
        states = ", ".join(map(self._state, going))
        return run.model_copy(update={"reason": states or "between two tasks"})

    def _state(self, task: Row) -> str:
        """What a task of a run is at; of one that waits, why."""
        held = self._held() if task["status"] == TaskStatus.QUEUED else None
        why = held or task["reason"]
        return f"{task['title']} is {task['status']}" + (f": {why}" if why else "")


def _answer(connection: Connection, run_id: str, token: str | None, text: str) -> None:
    asker, _, place = (token or "").rpartition(":")
    if asker not in {"", run_id}:
        raise Conflict(f"{token} is the token of a question of another run.")
    if (run := runs.row(connection, run_id))["status"] in RUN_FINAL:
        raise Conflict(f"{run_id} is {run['status']} already.")
    answer(connection, f"{run_id}:{place}" if place else run_id, text)
