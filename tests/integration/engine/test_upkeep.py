"""The duties of upkeep on a real home: databases, repositories, worktrees, files."""

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support.repositories import git, make_repository
from tests.integration.rows import task_row

from kapelle.domain.ids import new_id
from kapelle.domain.specs import Shell
from kapelle.domain.states import TaskStatus
from kapelle.engine import archive, upkeep
from kapelle.engine.archive import Setbacks
from kapelle.engine.parts import Parts
from kapelle.engine.upkeep import Upkeep
from kapelle.home import Home
from kapelle.runner.runner import Runner
from kapelle.secrets.vault import Vault
from kapelle.store import attempts, backup, events, runs, tasks
from kapelle.store import work as work_queries
from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate
from kapelle.store.tables import runs as runs_table
from kapelle.workspaces import Workspaces

_LONG_AGO = datetime.now(UTC) - timedelta(days=30)
_LIMIT = datetime.now(UTC) - timedelta(days=7)


def standing(parts: Parts) -> set[str]:
    """The owners whose worktrees are on the disk."""
    return {place.name for place in parts.home.worktrees.iterdir() if place.is_dir()}


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    home = Home(tmp_path / "home")
    home.create()
    db = Database(sqlite_url(home.database))
    migrate(db.engine)
    db.guard(home.database, home.backups)
    yield Parts(
        home=home,
        db=db,
        runner=Runner(home.root),
        workspaces=Workspaces(home.root, "Kapelle", "kapelle@localhost"),
        environ={"KAPELLE_UPKEEP__RETENTION_DAYS": "7"},
        secret="secret",
        vault=Vault(home),
    )
    db.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


async def add(parts: Parts, repository: Path | None = None, **changes: Any) -> str:
    """A task that ended long ago, with a worktree if it has a repository."""
    kind = "worktree" if repository else "in_place"
    ended = {"status": TaskStatus.COMPLETED, "created_at": _LONG_AGO, "ended_at": _LONG_AGO}
    place = {"directory": str(repository or "/"), "workspace_kind": kind}
    row = task_row(**ended | place | changes)
    await parts.db.write(tasks.insert, row, [])
    if repository is not None:
        made = await parts.workspaces.create(row["id"], repository, None)
        await parts.db.write(tasks.update, row["id"], workspace_branch=made.branch)
        Path(made.path, "new.txt").write_text("kept", encoding="utf-8")
    return str(row["id"])


async def stored(parts: Parts, task_id: str) -> bool:
    return task_id in await parts.db.read(work_queries.load_archive_times, [task_id])


def secret_of(parts: Parts, task_id: str, age_s: float = 0) -> Path:
    path = parts.home.secrets / f"{task_id}.json"
    path.write_text(json.dumps({"KEY": "value"}), encoding="utf-8")
    os.utime(path, (time.time() - age_s, time.time() - age_s))
    return path


async def test_a_failing_duty_keeps_none_of_the_others_from_being_done(
    parts: Parts, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = make_repository(repository.parent / "lost")
    stuck = await add(parts, lost)
    shutil.rmtree(lost)
    damaged, old = await add(parts, repository), await add(parts, repository)
    (parts.home.worktrees / f"{damaged}.json").write_text("{", encoding="utf-8")
    undeletable = parts.home.secrets / "task_x.json"
    undeletable.mkdir()
    os.utime(undeletable, (0, 0))
    duties = Upkeep(parts)
    with caplog.at_level(logging.WARNING, "kapelle.upkeep"):
        await duties.round()
        await duties.round()
    assert len(backup.list_backups(parts.home.backups)) == 1
    assert not await stored(parts, old)
    assert await stored(parts, stuck)
    assert await stored(parts, damaged)
    assert not lost.exists()
    assert (parts.home.worktrees / stuck / "new.txt").read_text(encoding="utf-8") == "kept"
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "dropping secrets failed" in line]) == 2
    for task_id in (stuck, damaged):
        assert len([line for line in told if task_id in line]) == 1, told


async def test_a_backup_is_due_by_the_age_of_the_last_one_not_of_the_daemon(parts: Parts) -> None:
    await Upkeep(parts).round()
    [first] = backup.list_backups(parts.home.backups)
    await Upkeep(parts).round()
    assert backup.list_backups(parts.home.backups) == [first]
    two_hours_ago = datetime.now(UTC) - timedelta(hours=2)
    first.rename(first.with_name(two_hours_ago.strftime("%Y%m%dT%H%M%S.%fZ")))
    await Upkeep(parts).round()
    assert len(backup.list_backups(parts.home.backups)) == 2


async def test_an_old_task_is_forgotten_with_its_worktree_and_marker_but_not_its_work(
    parts: Parts, repository: Path
) -> None:
    task_id = await add(parts, repository)
    secret = secret_of(parts, task_id)
    await archive.forget_old(parts, Setbacks())
    assert not await stored(parts, task_id)
    assert await parts.workspaces.traces() == set()
    assert not secret.exists()
    assert git(repository, "show", f"refs/kapelle/archive/{task_id}/final:new.txt") == "kept"
    # Nothing was committed, so there is no branch, and nothing to keep for it.
    assert git(repository, "branch", "--list", "kapelle/*") == ""
    assert git(repository, "for-each-ref", "refs/kapelle/base/") == ""
    told = await parts.db.read(events.list_after, 0, task_id=task_id)
    assert [event.kind for event in told] == ["task.archived"]


async def test_old_events_are_forgotten_and_their_numbers_not_given_again(parts: Parts) -> None:
    for _ in range(5):
        await parts.db.write(events.append, "daemon.started")
    known = await parts.db.read(events.list_after, 0)
    await parts.db.write(events.delete_oldest, known[3].at, 2)
    assert await parts.db.read(events.list_after, 0) == known[2:]
    await parts.db.write(events.delete_oldest, known[4].at, 100)
    assert await parts.db.read(events.list_after, 0) == known[4:]
    await parts.db.write(events.delete_oldest, datetime.now(UTC), 100)
    await parts.db.write(events.append, "daemon.started")
    assert (await parts.db.read(events.list_after, 0))[0].seq == known[4].seq + 1
    await archive.forget_old(parts, Setbacks())
    assert len(await parts.db.read(events.list_after, 0)) == 1


async def test_a_task_that_was_retried_meanwhile_is_not_forgotten(
    parts: Parts, repository: Path
) -> None:
    again, ended_again = await add(parts, repository), await add(parts, repository)
    assert await parts.db.read(tasks.list_ended_before, _LIMIT, 10) == [again, ended_again]
    await parts.db.write(tasks.enqueue_again, again)
    await parts.db.write(tasks.update, ended_again, ended_at=datetime.now(UTC))
    for task_id in (again, ended_again):
        await archive.forget_task(parts, task_id, _LIMIT)
        assert (await parts.db.read(tasks.get, task_id)).archived_at is None
        assert (parts.home.worktrees / task_id / "new.txt").exists()


async def test_only_an_ended_and_archived_task_is_deleted(parts: Parts) -> None:
    ended = await add(parts)
    queued = await add(parts, status=TaskStatus.QUEUED, archived_at=_LONG_AGO)
    for task_id in (ended, queued):
        assert not await parts.db.write(tasks.delete_archived, task_id)
        assert await stored(parts, task_id)
    await parts.db.write(tasks.update, ended, archived_at=datetime.now(UTC))
    assert await parts.db.write(tasks.delete_archived, ended)


async def test_a_forgetting_that_was_cut_short_is_finished_later(
    parts: Parts, repository: Path
) -> None:
    task_id = await add(parts, repository, archived_at=_LONG_AGO)
    await parts.workspaces.discard(task_id)
    await archive.forget_old(parts, Setbacks())
    assert not await stored(parts, task_id)


async def test_tasks_that_cannot_be_forgotten_do_not_keep_others_from_it(
    parts: Parts, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_AT_A_TIME", 1)
    lost = make_repository(repository.parent / "lost")
    stuck = await add(parts, lost)
    shutil.rmtree(lost)
    old = await add(parts, repository)
    setbacks = Setbacks()
    for _ in range(2):
        await archive.forget_old(parts, setbacks)
    assert await stored(parts, stuck)
    assert not await stored(parts, old)


class Busy(Workspaces):
    """Whoever lists the worktrees finds that one was made a moment ago."""

    parts: Parts
    repository: Path
    made: str

    async def traces(self) -> set[str]:
        self.made = await add(self.parts, self.repository, status=TaskStatus.RUNNING)
        return await super().traces()


async def test_a_task_that_is_submitted_during_the_search_keeps_its_worktree(
    parts: Parts, repository: Path
) -> None:
    unknown = new_id("task")
    await parts.workspaces.create(unknown, repository, None)
    busy = Busy(parts.home.root, "Kapelle", "kapelle@localhost")
    busy.parts, busy.repository = parts, repository
    parts.workspaces = busy
    await upkeep.put_away_left_worktrees(parts, Setbacks())
    assert standing(parts) == {busy.made}


async def test_an_attempt_that_cannot_be_packed_keeps_no_other_from_it(
    parts: Parts,
) -> None:
    task_id = await add(parts)
    about = {"agent": "rehearsal", "mode": "fresh", "status": "completed", "task_id": task_id}
    values = {**about, "warnings": [], "started_at": _LONG_AGO, "ended_at": _LONG_AGO}
    stuck, free = sorted(new_id("attempt") for _ in range(2))
    for number, attempt_id in enumerate((stuck, free), 1):
        await parts.db.write(attempts.insert, id=attempt_id, number=number, **values)
        (parts.home.attempts / attempt_id).mkdir()
    # In the way of the file that is to become the pack.
    (parts.home.attempts / f".{stuck}.zip").mkdir()
    setbacks = Setbacks()
    await archive.pack_ended(parts, setbacks)
    assert len(setbacks) == 1
    assert (parts.home.attempts / stuck).is_dir()
    assert (parts.home.attempts / f"{free}.zip").is_file()


class Resumed(Workspaces):
    """While one worktree is removed, somebody resumes every other task."""

    parts: Parts
    others: set[str]

    async def put_away_merged(self, owner: str, into: str, *, is_squashed: bool = False) -> bool:
        self.others.discard(owner)
        for other in self.others:
            await self.parts.db.write(tasks.enqueue_again, other)
        return await super().put_away_merged(owner, into, is_squashed=is_squashed)


async def test_a_merged_task_that_is_resumed_during_the_removals_keeps_its_worktree(
    parts: Parts, repository: Path
) -> None:
    merged = {"merged_at": _LONG_AGO, "workspace_base": "main"}
    both = {await add(parts, repository, **merged) for _ in range(2)}
    resumed = Resumed(parts.home.root, "Kapelle", "kapelle@localhost")
    resumed.parts, resumed.others = parts, set(both)
    parts.workspaces = resumed
    await archive.put_away_merged(parts, Setbacks())
    assert len(resumed.others) == 1
    assert standing(parts) == resumed.others


async def test_secrets_of_no_task_are_dropped_when_no_request_can_still_store_it(
    parts: Parts,
) -> None:
    living, archived = await add(parts), await add(parts, archived_at=_LONG_AGO)
    kept = [secret_of(parts, living, age_s=3600), secret_of(parts, new_id("task"), age_s=60)]
    for task_id in (archived, new_id("task")):
        secret_of(parts, task_id, age_s=3600)
    await upkeep.drop_unused_secrets(parts)
    assert sorted(parts.home.secrets.iterdir()) == sorted(kept)


async def test_environments_are_kept_while_something_asked_for_in_them_is_there(
    parts: Parts,
) -> None:
    used, archived, new = (
        str(parts.secrets.keep_shell(Shell(variables={"LANG": name}))) for name in "abc"
    )
    await add(parts, shell=used)
    await add(parts, shell=archived, archived_at=_LONG_AGO)
    for digest in (used, archived):
        os.utime(parts.home.secrets / f"shell_{digest}.json", (1e9, 1e9))
    await upkeep.forget_shells(parts)
    assert [parts.secrets.shell(digest) is not None for digest in (used, archived, new)] == [
        True,
        False,
        True,
    ]


async def test_an_archiving_that_a_crash_cut_short_is_finished(
    parts: Parts, repository: Path
) -> None:
    cut = await add(parts, repository, archived_at=_LONG_AGO)
    just_now = await add(parts, repository, archived_at=datetime.now(UTC))
    ended = await add(parts, repository)
    await upkeep.put_away_left_worktrees(parts, Setbacks())
    assert standing(parts) == {just_now, ended}
    assert git(repository, "show", f"refs/kapelle/archive/{cut}/final:new.txt") == "kept"
    assert cut not in await parts.workspaces.traces()


class Stuck(Workspaces):
    """No worktree can be removed."""

    async def discard(self, owner: str, *, empty_branch: bool = False) -> None:
        raise PermissionError(owner)


async def test_what_cannot_be_archived_is_not_and_what_was_archived_before_stays_so(
    parts: Parts,
) -> None:
    parts.workspaces = Stuck(parts.home.root, "Kapelle", "kapelle@localhost")
    place = {"workspace_kind": "worktree", "workspace_branch": "kapelle/a", "id": new_id("run")}
    values = task_row(status="completed", pattern="own", spec={}, progress={}, **place)
    run = {name: value for name, value in values.items() if name in runs_table.c}
    await parts.db.write(runs.insert, run)
    with pytest.raises(PermissionError):
        await archive.archive_run(parts, run["id"])
    assert (await parts.db.read(runs.get, run["id"])).archived_at is None
    await parts.db.write(runs.update, run["id"], archived_at=_LONG_AGO)
    with pytest.raises(PermissionError):
        await archive.archive_run(parts, run["id"])
    assert (await parts.db.read(runs.get, run["id"])).archived_at == _LONG_AGO


_LOGGING = """
import os, sys
from pathlib import Path
from kapelle.engine.upkeep import shorten
print("the last line", file=sys.stderr)
print(shorten(Path(sys.argv[1])))
print("a later line", file=sys.stderr)
"""


@pytest.mark.parametrize("how", ["own", "small", "another's", "not appended"])
def test_a_log_that_grew_too_large_is_shortened_if_it_is_our_own(tmp_path: Path, how: str) -> None:
    log = tmp_path / "daemon.log"
    line = b"x" * 99 + b"\n"
    log.write_bytes(line * (1_000 if how == "small" else 210_000))
    target = tmp_path / "other.log" if how == "another's" else log
    with target.open("r+b" if how == "not appended" else "ab") as stream:
        stream.seek(0, os.SEEK_END)
        command = [sys.executable, "-c", _LOGGING, str(log)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stream, check=True)
    kept = tmp_path / "daemon.log.1"
    assert done.stdout == (b"True\n" if how == "own" else b"False\n")
    assert kept.exists() == (how == "own")
    if how == "own":
        assert log.read_bytes() == b"a later line\n"
        assert 1_999_000 < kept.stat().st_size <= 2_000_000
        assert kept.read_bytes().startswith(line)
        assert kept.read_bytes().endswith(line + b"the last line\n")
        assert kept.stat().st_mode & 0o077 == 0
