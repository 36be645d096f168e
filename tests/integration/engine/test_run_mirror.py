"""The files of runs, whatever becomes of them while a daemon writes them."""

import asyncio
import errno
import json
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.integration.engine.test_run_control import add_run

from kapelle.domain.states import RunStatus
from kapelle.engine import background
from kapelle.engine.parts import Parts
from kapelle.engine.runs import mirror as mirror_module
from kapelle.engine.runs.mirror import RunMirror
from kapelle.home import Home
from kapelle.runner.shim import files
from kapelle.store import events, runs
from kapelle.store.database import Connection, Database, sqlite_url
from kapelle.store.migrate import migrate


@pytest.fixture
async def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parts]:
    for module, name in ((mirror_module, "_LOOK_S"), (background, "_PAUSE_S")):
        monkeypatch.setattr(module, name, 0.05)
    home = Home(tmp_path / "home")
    home.create()
    db = Database(sqlite_url(home.database))
    migrate(db.engine)
    yield cast(Parts, SimpleNamespace(home=home, db=db))
    db.close()


@pytest.fixture
async def mirror(parts: Parts) -> AsyncIterator[asyncio.Task[None]]:
    mirroring = asyncio.create_task(RunMirror(parts).run())
    yield mirroring
    await end(mirroring)


async def end(duty: asyncio.Task[None]) -> None:
    assert not duty.done(), duty
    duty.cancel()
    with suppress(asyncio.CancelledError):
        await duty


async def begin(parts: Parts) -> str:
    run_id = await add_run(parts.db)
    await tell(parts, run_id, 1)
    return run_id


async def tell(parts: Parts, run_id: str, number: int) -> None:
    await parts.db.write(lambda c: events.append(c, "run.progress", run_id, number=number))


def numbers(parts: Parts, run_id: str) -> list[int]:
    path = parts.home.runs / run_id / "events.jsonl"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["data"].get("number", 0) for line in lines]


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


@pytest.mark.parametrize("name", ["events.jsonl", "status.json"])
async def test_a_run_whose_files_cannot_be_written_keeps_no_other_from_it(
    parts: Parts, mirror: asyncio.Task[None], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    broken = await begin(parts)
    await until(lambda: numbers(parts, broken) == [1])
    path = parts.home.runs / broken / name
    path.unlink()
    (path / "x").mkdir(parents=True)
    for number in (2, 3):
        await tell(parts, broken, number)
        other = await begin(parts)
        await until((parts.home.runs / other / "events.jsonl").exists)
    # The same words each time, which the log tells once a minute.
    told = {record.getMessage() for record in caplog.records if broken in record.getMessage()}
    assert len(told) == 1
    assert str(path) in caplog.text
    shutil.rmtree(path)
    await tell(parts, broken, 4)
    await until(path.is_file)
    await until(lambda: numbers(parts, broken) == [1, 2, 3, 4])


async def test_a_directory_that_may_not_be_written_ends_nothing(
    parts: Parts, mirror: asyncio.Task[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = await begin(parts)
    opened = os.open

    def deny(path: Any, *args: Any, **kwargs: Any) -> int:
        if denied in str(path):
            raise PermissionError(errno.EACCES, "denied", str(path))
        return opened(path, *args, **kwargs)

    await until(lambda: numbers(parts, denied) == [1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", deny)
        await tell(parts, denied, 2)
        other = await begin(parts)
        await until(lambda: numbers(parts, other) == [1])
    await tell(parts, denied, 3)
    await until(lambda: numbers(parts, denied) == [1, 2, 3])


@pytest.mark.parametrize("all_of_them", [True, False])
async def test_a_directory_that_was_removed_is_made_again(
    parts: Parts, mirror: asyncio.Task[None], all_of_them: bool
) -> None:
    run_id = await begin(parts)
    await until((parts.home.runs / "position").exists)
    shutil.rmtree(parts.home.runs if all_of_them else parts.home.runs / run_id)
    await tell(parts, run_id, 2)
    await until(lambda: numbers(parts, run_id) == [1, 2])
    await until((parts.home.runs / "position").exists)
    assert parts.home.runs.stat().st_mode & 0o777 == 0o700


async def test_a_position_that_cannot_be_kept_stops_nothing(
    parts: Parts, mirror: asyncio.Task[None]
) -> None:
    (parts.home.runs / "position" / "x").mkdir(parents=True)
    first = await begin(parts)
    await until(lambda: numbers(parts, first) == [1])
    await tell(parts, first, 2)
    await until(lambda: numbers(parts, first) == [1, 2])


async def test_a_disk_that_was_full_for_a_moment_leaves_no_line_out_and_none_twice(
    parts: Parts, mirror: asyncio.Task[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await begin(parts)
    path = parts.home.runs / run_id / "events.jsonl"
    await until(lambda: numbers(parts, run_id) == [1])
    full = 3
    written = files.replace

    def write(target: str, data: bytes) -> None:
        nonlocal full
        if full and target.endswith("/status.json"):
            full -= 1
            with path.open("a", encoding="utf-8") as file:
                file.write('{"seq": 9')
            raise OSError(errno.ENOSPC, "full")
        written(target, data)

    monkeypatch.setattr(files, "replace", write)
    await tell(parts, run_id, 2)
    await until(lambda: full == 0)
    await tell(parts, run_id, 3)
    await until(lambda: path.read_text(encoding="utf-8").endswith("}\n"))
    await until(lambda: numbers(parts, run_id) == [1, 2, 3])


async def test_a_run_that_ends_during_a_pass_has_its_last_line_before_its_result(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await begin(parts)
    ends = runs.change
    found = events.list_of_runs

    def end_it_then(connection: Connection, seq: int) -> Any:
        told = found(connection, seq)
        with parts.db.engine.begin() as other:
            ends(other, run_id, RunStatus.COMPLETED)
        monkeypatch.setattr(events, "list_of_runs", found)
        return told

    monkeypatch.setattr(events, "list_of_runs", end_it_then)
    written: list[str] = []
    replace = files.replace

    def note(target: str, data: bytes) -> None:
        if target.endswith("/result.json"):
            lines = Path(target).with_name("events.jsonl").read_text(encoding="utf-8").splitlines()
            written.append(json.loads(lines[-1])["kind"])
        replace(target, data)

    monkeypatch.setattr(files, "replace", note)
    mirroring = asyncio.create_task(RunMirror(parts).run())
    await until(lambda: written)
    await end(mirroring)
    assert set(written) == {"run.completed"}


async def test_a_position_that_was_lost_repeats_no_line(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await begin(parts)
    for number in range(2, 8):
        await tell(parts, run_id, number)
    few = events.list_of_runs
    monkeypatch.setattr(events, "list_of_runs", lambda c, seq: few(c, seq, limit=2))
    for _ in range(2):
        mirroring = asyncio.create_task(RunMirror(parts).run())
        await until((parts.home.runs / "position").exists)
        await tell(parts, run_id, 0)
        await until(lambda: 0 in numbers(parts, run_id))
        await asyncio.sleep(0.3)
        await end(mirroring)
        (parts.home.runs / "position").unlink()
    await parts.db.write(runs.change, run_id, RunStatus.COMPLETED)
    assert numbers(parts, run_id) == [*range(1, 8), 0, 0]


async def test_what_nobody_expected_does_not_end_the_mirror(
    parts: Parts,
    mirror: asyncio.Task[None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("unexpected")

    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0.1)
        with monkeypatch.context() as patch:
            patch.setattr(events, "list_of_runs", fail)
            await parts.db.write(_nothing)
            await until(lambda: "ValueError: unexpected" in caplog.text)
        run_id = await begin(parts)
        await until(lambda: numbers(parts, run_id) == [1])
    assert "kapelle.runs" in {record.name for record in caplog.records}


def _nothing(_connection: Connection) -> None:
    """A write wakes those who wait."""
