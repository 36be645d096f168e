"""What ended work leaves behind: after a merge, after days, after `kapelle prune`."""

import json
import os
import shutil
import sqlite3
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kapelle.client.client import connect
from kapelle.home import disk_use
from tests.e2e.support.ensembles import perform, play, rule, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git

_WORK = '[[do]]\nwrite = "{name}"\ncontent = "kept"\n[[do]]\nsay = "line of {name}"\n'
_DAY_US = 86_400 * 1_000_000


def _await(condition: Callable[[], bool], instance: Instance) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, instance.log_tail()
        time.sleep(0.05)


def _completed(instance: Instance, repository: Path, name: str, **spec: Any) -> str:
    task_id = instance.play(_WORK.format(name=name), repository, **spec)
    assert instance.wait(task_id)["status"] == "completed"
    return task_id


def _age(instance: Instance, days: float) -> None:
    """Have everything that is stored be so much older, as if the clock were moved."""
    with closing(sqlite3.connect(instance.home.database)) as connection:
        for table in ("tasks", "runs", "attempts"):
            shift = int(days * _DAY_US)
            connection.execute(f"UPDATE {table} SET ended_at = ended_at - {shift}")
        connection.commit()
    for entry in instance.home.attempts.iterdir():
        past = entry.stat().st_mtime - days * 86_400
        os.utime(entry, (past, past))


def _left(instance: Instance, repository: Path) -> tuple[int, int]:
    """Bytes on the disk and inodes of what tasks leave: in the home and in the repository."""
    return disk_use(instance.home.attempts, instance.home.worktrees, repository / ".git")


def _restart(instance: Instance) -> None:
    instance.kill()
    instance.start()


def test_a_merged_tasks_worktree_and_branch_go_at_once_and_its_work_can_be_shown(
    kapelle: Instance, repository: Path
) -> None:
    task_id = _completed(kapelle, repository, "new.txt")
    patch = kapelle.get(f"/tasks/{task_id}/diff")["patch"]
    kapelle.post(f"/tasks/{task_id}/merge")
    assert list(kapelle.home.worktrees.iterdir()) == []
    assert git(repository, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert kapelle.get(f"/tasks/{task_id}/diff")["patch"] == patch != ""
    again = kapelle.post(f"/tasks/{task_id}/merge")
    assert again["already"]
    git(repository, "branch", "release", "main~1")
    elsewhere = kapelle.post(f"/tasks/{task_id}/merge", {"into": "release"})
    assert not elsewhere["already"]
    assert git(repository, "show", "release:new.txt") == "kept"


def test_merged_work_can_be_gone_on_with(kapelle: Instance, repository: Path) -> None:
    task_id = _completed(kapelle, repository, "new.txt")
    kapelle.post(f"/tasks/{task_id}/merge")
    more = _completed(kapelle, repository, "more.txt", continue_from=task_id)
    assert set(kapelle.get(f"/tasks/{more}/diff")["files"]) == {"more.txt"}
    kapelle.post(f"/tasks/{more}/merge")
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "Once more."})
    assert kapelle.wait(task_id)["status"] == "completed"
    assert (kapelle.home.worktrees / task_id / "new.txt").exists()
    # It changed nothing since it was merged.
    assert kapelle.get(f"/tasks/{task_id}/diff")["files"] == []


def test_a_merged_run_leaves_only_branches_that_were_not_taken(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, rule("Write", {"write": "new.txt", "content": "kept"}))
    run = perform(
        kapelle, "best-of", repository, prompt="Write", count=2, eval="echo 1", direction="maximize"
    )
    assert run["status"] == "completed", run
    tasks = kapelle.get(f"/tasks?run_id={run['id']}")["tasks"]
    kapelle.post(f"/runs/{run['id']}/merge")
    assert git(repository, "show", "main:new.txt") == "kept"
    refs = git(repository, "for-each-ref", "--format=%(refname)", "refs/heads").splitlines()
    # What was not chosen is in no other branch.
    [loser] = [task["id"] for task in tasks if f"refs/heads/kapelle/{task['id']}" in refs]
    assert refs == [f"refs/heads/kapelle/{loser}", "refs/heads/main"]
    assert [path.name for path in kapelle.home.worktrees.iterdir()] == [f"{loser}.json"]
    assert kapelle.get(f"/runs/{run['id']}/diff")["files"] == ["new.txt"]
    for task in tasks:
        assert kapelle.get(f"/tasks/{task['id']}/diff")["files"] == ["new.txt"]


def test_a_branch_stays_that_others_need(kapelle: Instance, repository: Path) -> None:
    below, used = (_completed(kapelle, repository, name) for name in ("a.txt", "b.txt"))
    above = _completed(kapelle, repository, "c.txt", base=f"kapelle/{below}")
    kapelle.post(f"/tasks/{below}/merge")
    assert git(repository, "branch", "--list", f"kapelle/{below}")
    kapelle.post(f"/tasks/{above}/merge")
    mine = repository.parent / "mine"
    kapelle.post(f"/tasks/{used}/archive")
    git(repository, "worktree", "add", "--quiet", str(mine), f"kapelle/{used}")
    kapelle.post(f"/tasks/{used}/merge")
    assert git(mine, "status", "--porcelain", "--branch") == f"## kapelle/{used}"


@pytest.mark.parametrize("point", [None, "pack_before_removal"])
def test_an_ended_attempt_is_one_file_and_read_as_before(
    kapelle: Instance, repository: Path, point: str | None
) -> None:
    task_id = _completed(kapelle, repository, "new.txt")
    kapelle.post(f"/tasks/{task_id}/merge")
    transcript = kapelle.cli("logs", task_id).stdout
    output = kapelle.output(task_id)
    assert b"line of new.txt" in output
    kapelle.kill()
    _age(kapelle, 1)
    if point is not None:
        kapelle.spawn(KAPELLE_FAILPOINT=point)
        kapelle.await_death()
        [attempt] = [path for path in kapelle.home.attempts.iterdir() if path.is_dir()]
        (attempt / "out.log").unlink()  # as far as the removal came
    kapelle.start()
    _await(lambda: [p.suffix for p in kapelle.home.attempts.iterdir()] == [".zip"], kapelle)
    assert kapelle.output(task_id) == output
    assert kapelle.cli("logs", task_id).stdout == transcript
    assert kapelle.cli("logs", task_id, "--tail", "1").stdout in transcript


def _packed(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_checks_and_steps_are_packed_with_their_work_and_nothing_is_lost_when_it_goes_on(
    kapelle: Instance, repository: Path
) -> None:
    task_id = kapelle.play(
        _WORK.format(name="new.txt"), repository, checks=[{"command": "echo made 1; exit 3"}]
    )
    assert kapelle.wait(task_id)["status"] == "failed"
    loop = {"prompt": play({"run": "echo x >> n.txt"}), "until": ["wc -l < n.txt; false"]}
    run = perform(kapelle, "loop", repository, max_iterations=2, **loop)
    first = kapelle.output(task_id)
    kapelle.kill()
    _age(kapelle, 1)
    kapelle.start()
    _await(lambda: not list(kapelle.home.processes.iterdir()), kapelle)
    [attempt] = kapelle.task(task_id)["attempts"]
    found = _packed(kapelle.home.attempts / f"{attempt['id']}.zip")
    assert found["checks/0/out.log"] == b"made 1\n"
    assert {"out.log", "exit.json", "checks/0/exit.json"} <= found.keys()
    steps = kapelle.home.runs / run["id"] / "steps.zip"
    printed = {name: data for name, data in _packed(steps).items() if name.endswith("/out.log")}
    assert sorted(printed.values()) == [b"1\n", b"2\n"]
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "Once more."})
    assert kapelle.wait(task_id)["status"] == "failed"
    kapelle.kill()
    # As if a check of the first attempt, and a step of the run, had been made after all.
    with closing(sqlite3.connect(kapelle.home.database)) as connection:
        for owner in (attempt["id"], run["id"]):
            row = (owner, "late", f"late-{owner}", "00" * 32, 0)
            columns = "owner, name, directory, secret, begun_at"
            connection.execute(f"INSERT INTO processes ({columns}) VALUES (?, ?, ?, ?, ?)", row)
            (kapelle.home.processes / f"late-{owner}").mkdir()
            (kapelle.home.processes / f"late-{owner}" / "out.log").write_text("late")
        connection.commit()
    _age(kapelle, 1)
    kapelle.start()
    _await(lambda: not list(kapelle.home.processes.iterdir()), kapelle)
    again, second = kapelle.task(task_id)["attempts"]
    assert again == {**attempt, "ended_at": again["ended_at"]}
    assert found | {"late/out.log": b"late"} == _packed(
        kapelle.home.attempts / f"{attempt['id']}.zip"
    )
    assert {**printed, "late/out.log": b"late"}.items() <= _packed(steps).items()
    assert _packed(kapelle.home.attempts / f"{second['id']}.zip")["checks/0/out.log"] == b"made 1\n"
    assert kapelle.output(task_id, attempt=1) == first


def test_a_merged_task_leaves_almost_nothing_after_a_day(
    kapelle: Instance, repository: Path
) -> None:
    _completed(kapelle, repository, "before.txt")  # locks, shadows and the like are there
    before = _left(kapelle, repository)
    for number in range(300):  # as many as it takes for packing to be worth it
        (repository / ".git" / f"{number}.txt").write_text(str(number), encoding="utf-8")
    paths = sorted(map(str, (repository / ".git").glob("*.txt")))
    git(repository, "hash-object", "-w", *paths)
    for path in paths:
        os.unlink(path)
    count = 8
    for number in range(count):
        kapelle.post(f"/tasks/{_completed(kapelle, repository, f'{number}.txt')}/merge")
    kapelle.kill()
    _age(kapelle, 1)
    kapelle.start()
    _await(lambda: not any(p.is_dir() for p in kapelle.home.attempts.iterdir()), kapelle)

    def is_little() -> bool:
        """Of both, for inodes go a moment before bytes do while objects are packed."""
        bytes_left, inodes_left = _left(kapelle, repository)
        return bytes_left - before[0] <= 5_000 * count and inodes_left - before[1] <= 2 * count

    _await(is_little, kapelle)


def _ended(instance: Instance, repository: Path) -> dict[str, str]:
    """A task of every end, by how it ended."""
    failed = instance.play(
        '[[do]]\nwrite = "half.txt"\ncontent = "x"\n[[do]]\nfail = "no"', repository
    )
    cancelled = instance.play("[[do]]\nsleep = 60", repository)
    instance.wait_for_status(cancelled, "running")
    instance.post(f"/tasks/{cancelled}/cancel")
    merged, kept = (_completed(instance, repository, name) for name in ("m.txt", "k.txt"))
    instance.post(f"/tasks/{merged}/merge")
    found = {"failed": failed, "cancelled": cancelled, "merged": merged, "kept": kept}
    for task_id in found.values():
        instance.wait(task_id)
    return found


def _archived(instance: Instance, found: dict[str, str]) -> set[str]:
    return {how for how, task_id in found.items() if instance.task(task_id)["archived_at"]}


def _are_archived(instance: Instance, found: dict[str, str], wanted: set[str]) -> bool:
    return _archived(instance, found) == wanted


def test_old_work_is_archived_by_itself_and_old_output_deleted(
    kapelle: Instance, repository: Path
) -> None:
    found = _ended(kapelle, repository)
    for days, archived in ((8, {"cancelled", "merged"}), (24, {"cancelled", "merged", "failed"})):
        kapelle.kill()
        _age(kapelle, days)
        kapelle.start()
        _await(partial(_are_archived, kapelle, found, archived), kapelle)
    failed, kept = found["failed"], found["kept"]
    places = {kapelle.home.worktrees / kept, kapelle.home.worktrees / f"{kept}.json"}
    _await(lambda: {*kapelle.home.worktrees.iterdir()} == places, kapelle)
    assert git(repository, "show", f"refs/kapelle/archive/{failed}/final:half.txt") == "x"
    assert kapelle.get(f"/tasks/{failed}/diff")["files"] == ["half.txt"]
    assert kapelle.output(kept)
    kapelle.kill()
    _age(kapelle, 90)
    kapelle.start()
    _await(lambda: not list(kapelle.home.attempts.iterdir()), kapelle)
    gone = kapelle.cli("logs", kept)
    assert "output was deleted" in gone.stdout + gone.stderr


def test_prune_says_what_it_would_do_and_does_it(kapelle: Instance, repository: Path) -> None:
    found = _ended(kapelle, repository)
    refused = kapelle.cli("prune", "--older", "soon")
    assert refused.returncode == 2
    assert "--older is not a duration" in refused.stderr
    assert kapelle.cli("prune", check=True).stdout == ""
    told = kapelle.cli("prune", "--merged", "--dry-run", check=True)
    assert told.stdout.split() == [found["merged"]]
    assert _archived(kapelle, found) == set()
    # Ended attempts whose files are packed by the way are told of before as well.
    past = time.time() - 3600
    with closing(sqlite3.connect(kapelle.home.database)) as database, database:
        database.execute("UPDATE attempts SET ended_at = ?", (int(past * 1_000_000),))
    dry = json.loads(kapelle.cli("prune", "--dry-run", "--json", check=True).stdout)
    assert dry["packed"] > 0
    assert json.loads(kapelle.cli("prune", "--json", check=True).stdout)["packed"] == dry["packed"]
    assert kapelle.cli("prune", "--merged", check=True).stdout.split() == [found["merged"]]
    assert _archived(kapelle, found) == {"merged"}
    with connect(home=kapelle.home.root, start=False) as client:
        freed = client.prune(older_s=0)
    assert set(freed.archived) == {found["cancelled"], found["failed"]}
    assert freed.bytes > 0
    assert freed.inodes > 0
    assert _archived(kapelle, found) == {"merged", "cancelled", "failed"}


def test_merged_work_goes_first_where_room_is_scarce(kapelle: Instance, repository: Path) -> None:
    found = _ended(kapelle, repository)
    kapelle.kill()
    half = shutil.disk_usage(kapelle.home.root).free // 1_000_000
    kapelle.env["KAPELLE_LIMITS__MIN_FREE_DISK_MB"] = str(int(half * 0.7))
    kapelle.start()
    _await(lambda: _archived(kapelle, found) == {"merged"}, kapelle)
