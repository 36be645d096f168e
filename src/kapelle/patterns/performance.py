"""A run from beginning to end. Taken up again after a crash it is performed from the top, and
the journal tells its steps what came of them before."""

import logging
import traceback
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.domain.run_specs import PatternSpec
from kapelle.domain.states import RunStatus
from kapelle.engine.bell import Bell
from kapelle.engine.durable import Durable
from kapelle.engine.failpoints import failpoint
from kapelle.engine.run_workspace import run_workspace
from kapelle.engine.stage import Stage
from kapelle.engine.steadily import steadily
from kapelle.patterns import registry
from kapelle.patterns.durable_context import DurableContext
from kapelle.patterns.journal import Cancelled, Paused, Suspended
from kapelle.patterns.registry import Pattern
from kapelle.patterns.results import Failed
from kapelle.patterns.starting import Starter, problems
from kapelle.store import run_lifecycle, runs, steps
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.runs")
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


class RunPerformance:
    """The durable function behind every run."""

    def __init__(self, stage: Stage, durable: Durable, bell: Bell, starter: Starter) -> None:
        self._stage = stage
        self._bell = bell
        self._starter = starter
        durable.workflow("run", self.perform)

    async def perform(self, run_id: str) -> None:
        """Play the pattern to its end, or to where it has to wait for a person."""
        if run_id in self._stage.live:
            return
        with self._stage.performing(run_id):
            failpoint("run_begin")
            run = await steadily(self._row)(run_id)
            if run["status"] != RunStatus.RUNNING:
                return  # it was ended just before a crash
            status, reason, values = await self._play(run)
            failpoint("run_before_end")
            await steadily(self._conclude)(run_id, status, reason, values)
            failpoint("run_after_end")

    async def _row(self, run_id: str) -> runs.Row:
        return await self._stage.db.glance(runs.row, run_id)

    async def _play(self, run: runs.Row) -> tuple[RunStatus, str | None, dict[str, Any]]:
        try:
            pattern, context = await steadily(self._prepare)(run)
            result = await pattern.function(context, context.spec)
            return RunStatus.COMPLETED, getattr(result, "reason", None), {"result": as_json(result)}
        except Paused:
            return RunStatus.PAUSED, None, {}
        except Suspended:
            return RunStatus.WAITING, None, {}
        except Cancelled:
            return await self._cancelled(run["id"], context)
        except Failed as failure:
            return RunStatus.FAILED, failure.reason, {"result": as_json(failure.result)}
        except Unavailable:
            raise
        except KapelleError as error:
            reason = f"{error.message} {error.hint}" if error.hint else error.message
            return RunStatus.FAILED, reason, {}
        except Exception as error:
            _log.exception("the pattern of %s failed", run["id"])
            return RunStatus.FAILED, _mistake(error), {}

    async def _prepare(self, run: runs.Row) -> tuple[Pattern, DurableContext]:
        pattern = registry.get(run["pattern"], self._stage.home, Path(run["directory"]))
        env = self._stage.task_env(run["id"])
        try:
            spec: PatternSpec = pattern.spec.model_validate({**run["spec"], "env": env})
        except ValidationError as error:
            raise Failed(f"the pattern's specification changed: {problems(error)}") from None
        await run_workspace(self._stage, run)
        known = await self._stage.db.read(steps.of_run, run["id"])
        context = DurableContext(self._stage, self._bell, self._starter, run, spec, known)
        return pattern, context

    async def _cancelled(
        self, run_id: str, context: DurableContext
    ) -> tuple[RunStatus, str | None, dict[str, Any]]:
        run = await self._row(run_id)
        if run["stop"] != "abandon":
            await context.waiting.for_leftovers()
        return RunStatus.CANCELLED, run["reason"], {}

    async def _conclude(
        self, run_id: str, status: RunStatus, reason: str | None, values: dict[str, Any]
    ) -> None:
        await self._stage.db.write(_settle, run_id, status, reason, values)


def _settle(
    connection: Connection,
    run_id: str,
    status: RunStatus,
    reason: str | None,
    values: dict[str, Any],
) -> None:
    row = runs.row(connection, run_id)
    if row["status"] != RunStatus.RUNNING:
        return
    if status in {RunStatus.PAUSED, RunStatus.WAITING}:
        _rest(connection, row, status)
    else:
        run_lifecycle.change(connection, run_id, status, reason, **values)


def _rest(connection: Connection, row: runs.Row, status: RunStatus) -> None:
    """Put a run to rest, unless what it rests for was done in this very moment."""
    asked = steps.questions(connection, row["id"])
    if row["stop"] == "pause":
        run_lifecycle.change(connection, row["id"], RunStatus.PAUSED, row["reason"], stop=None)
    elif status is RunStatus.WAITING and asked and row["stop"] is None:
        text = " · ".join(question.text for question in asked)
        values = {"waiting_for": "input"}
        run_lifecycle.change(connection, row["id"], RunStatus.WAITING, text, **values)
    else:
        run_lifecycle.change(connection, row["id"], RunStatus.QUEUED, row["reason"])


def as_json(value: Any) -> Any:
    """A pattern's result as it is kept."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return _ANYTHING.dump_python(value, mode="json", fallback=repr)


def _mistake(error: Exception) -> str:
    """What went wrong inside a pattern, with the place in its file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/patterns/" in frame.filename]
    place = own[-1] if own else frames[-1] if frames else None
    where = f" ({place.filename}:{place.lineno})" if place else ""
    return f"the pattern raised {type(error).__name__}: {error}{where}"
