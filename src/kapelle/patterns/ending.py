"""Ending what a run has started: tasks, and the runs inside it."""

import asyncio
import logging
import time
from pathlib import Path

from kapelle.domain.errors import Conflict
from kapelle.engine import actions, run_actions
from kapelle.engine.bell import Bell
from kapelle.engine.stage import Stage
from kapelle.store import runs
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.runs")
_LOOK_S = 1.0
_LONGEST_S = 30.0


async def end_task(stage: Stage, task_id: str, reason: str) -> None:
    try:
        wish = await stage.db.write(actions.cancel, task_id, reason)
    except Conflict:
        return  # it has just ended by itself
    if wish is not None:
        stage.stop(*wish)


async def end_run(stage: Stage, run_id: str, reason: str, *, with_tasks: bool = True) -> None:
    try:
        await run_actions.cancel(stage, run_id, reason, with_tasks=with_tasks)
    except Conflict:
        return


async def end_leftovers(
    stage: Stage, bell: Bell, run_id: str, reason: str, *, with_tasks: bool = True
) -> None:
    """Return when no run inside this one is open, nor any of their tasks; what is, is ended."""
    with bell.listen(run_id) as heard:
        while True:
            inner, tasks = await stage.db.read(_open, run_id)
            if not inner and not (tasks and with_tasks):
                return
            # Each is told once: telling is an event, which would ring the bell for ever.
            for run in inner:
                if run["stop"] not in {"cancel", "abandon"}:
                    await end_run(stage, run["id"], reason, with_tasks=with_tasks)
            for task in tasks if with_tasks else ():
                if task["stop"] != "cancel":
                    await end_task(stage, task["id"], reason)
            await heard.wait(_LOOK_S)


async def end_checks(stage: Stage, run_id: str, reason: str) -> None:
    """End the commands of a run that a daemon before this one started and nobody watches."""
    deadline = time.monotonic() + _LONGEST_S
    while left := await asyncio.to_thread(_unfinished, stage.step_directory(run_id, "")):
        if time.monotonic() > deadline:
            _log.warning("%s leaves commands running: %s", run_id, left)
            return
        for process_dir in left:
            stage.runner.stop(process_dir, reason)
        await asyncio.sleep(_LOOK_S / 10)


def _unfinished(steps: Path) -> list[Path]:
    claims = [claim.parent for claim in steps.glob("**/claim")]
    return [process_dir for process_dir in claims if not (process_dir / "exit.json").exists()]


def _open(connection: Connection, run_id: str) -> tuple[list[runs.Row], list[runs.Row]]:
    family = runs.family(connection, run_id)
    return runs.still_open(connection, family[1:]), runs.open_tasks(connection, family)
