"""Agents and checks of runs that a crash or a restored backup left running."""

import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest
from tests.integration.engine.test_run_control import add_run
from tests.integration.rows import task_row

from kapelle.domain.ids import new_id
from kapelle.domain.states import RunStatus
from kapelle.engine import upkeep
from kapelle.engine.parts import Parts
from kapelle.home import Home
from kapelle.store import attempts, processes, tasks
from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate

_HOUR_S = 3600


class OrphanSetup:
    """A home whose process directories are never stopped, only noted."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.home.create()
        self.db = Database(sqlite_url(self.home.database))
        migrate(self.db.engine)
        self.runner = self
        self.stopped: list[Path] = []
        self.process = partial(Parts.process, cast(Parts, self))

    def stop(self, process_dir: Path, _reason: str) -> None:
        self.stopped.append(process_dir)

    async def look(self) -> list[Path]:
        self.stopped = []
        await upkeep.stop_left_processes(cast(Parts, SimpleNamespace(**vars(self))))
        return self.stopped

    async def add(self, status: RunStatus) -> str:
        ended = status in {RunStatus.COMPLETED, RunStatus.FAILED}
        return await add_run(self.db, status=status, ended_at=datetime.now(UTC) if ended else None)

    async def leave(self, run_id: str, age_s: float, position: str = "0001/0") -> Path:
        """A check that was begun and has not ended."""
        process_dir = self.process(await self.db.write(processes.begin, run_id, position)).directory
        process_dir.mkdir()
        (process_dir / "claim").touch()
        moment = time.time() - age_s
        os.utime(process_dir / "claim", (moment, moment))
        return process_dir


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[OrphanSetup]:
    made = OrphanSetup(tmp_path / "home")
    yield made
    made.db.close()


async def test_checks_are_ended_of_runs_that_are_not_under_way(
    setup: OrphanSetup,
) -> None:
    running, paused, ended = [
        await setup.add(status)
        for status in (RunStatus.RUNNING, RunStatus.PAUSED, RunStatus.COMPLETED)
    ]
    await setup.leave(running, 9 * _HOUR_S)
    wanted = [
        await setup.leave(paused, 9 * _HOUR_S),
        await setup.leave(ended, 120, "0002.1.0003/0"),
    ]
    assert sorted(await setup.look()) == sorted(wanted)
    for process_dir in wanted:
        (process_dir / "exit.json").touch()
    assert await setup.look() == []


async def test_all_directories_are_looked_into_by_a_new_daemon_and_then_once_an_hour(
    setup: OrphanSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long there was no daemon; but it takes its time where there are many."""
    looks: list[str] = []
    monkeypatch.setattr(upkeep, "_run_duty", partial(_noted, looks))
    duties = upkeep.Upkeep(cast(Parts, SimpleNamespace(**vars(setup), workspaces=MagicMock())))
    for _ in range(121):
        await duties.round()
    assert looks.count("stopping processes") == looks.count("finding worktrees") == 5 + 2
    left = await setup.leave(await setup.add(RunStatus.FAILED), 900 * _HOUR_S)
    assert await setup.look() == [left]


async def _noted(looks: list[str], name: str, *_duty: object) -> None:
    looks.append(name)


async def test_agents_are_ended_that_no_row_knows_of(setup: OrphanSetup) -> None:
    """As after a backup was put back; one that was just started may not be stored yet."""
    task, known = task_row(), new_id("attempt")
    await setup.db.write(tasks.insert, task, [])
    about = {"task_id": task["id"], "number": 1, "status": "running", "mode": "fresh"}
    values = about | {"agent": "x", "warnings": [], "started_at": datetime.now(UTC)}
    await setup.db.write(attempts.insert, id=known, **values)
    ages = {known: _HOUR_S, new_id("attempt"): _HOUR_S, new_id("attempt"): 0, "over": _HOUR_S}
    for name, age_s in ages.items():
        process_dir = setup.home.attempts / name
        process_dir.mkdir()
        (process_dir / "claim").touch()
        os.utime(process_dir / "claim", (time.time() - age_s, time.time() - age_s))
    (setup.home.attempts / "over" / "exit.json").touch()
    (setup.home.attempts / "file").touch()
    (setup.home.attempts / "prepared").mkdir()
    await upkeep.stop_left_processes(cast(Parts, SimpleNamespace(**vars(setup))))
    assert setup.stopped == [setup.home.attempts / list(ages)[1]]


async def test_checks_are_ended_that_no_row_knows_of(setup: OrphanSetup) -> None:
    run_id = await setup.add(RunStatus.RUNNING)
    await setup.leave(run_id, _HOUR_S)
    left = await setup.leave(gone := new_id("run"), _HOUR_S)
    await setup.db.write(processes.delete, gone)
    await upkeep.stop_left_processes(cast(Parts, SimpleNamespace(**vars(setup))))
    assert setup.stopped == [left]


async def test_a_home_without_runs_is_no_trouble(setup: OrphanSetup) -> None:
    setup.home.runs.rmdir()
    assert await setup.look() == []
