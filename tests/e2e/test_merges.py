"""Merging into a base that has moved: verified as merged, in order, and never half."""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kapelle as api
from tests.e2e.instance import ApiError, Instance
from tests.e2e.repositories import git, make_repository

_WRITE = '[[do]]\nwrite = "{name}"\ncontent = "{content}"'


def done(kapelle: Instance, repository: Path, name: str, *checks: str, content: str = "x") -> str:
    """A completed task that wrote a file."""
    part = _WRITE.format(name=name, content=content)
    task = kapelle.wait(kapelle.play(part, repository, checks=list(checks)))
    assert task["status"] == "completed", task["reason"]
    return str(task["id"])


def move_base(repository: Path, name: str = "meanwhile.txt") -> str:
    """A commit on main that no task knows."""
    (repository / name).write_text("mine\n", encoding="utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=Meanwhile")
    return git(repository, "rev-parse", "main")


def nothing_is_left(kapelle: Instance, repository: Path) -> None:
    """No worktree, branch, lock or process of a merge."""
    assert not list(kapelle.home.worktrees.glob("merge_*"))
    assert not list((repository / ".git" / "worktrees").glob("merge_*"))
    assert "merge_" not in git(repository, "for-each-ref", "--format=%(refname)")
    assert not list((repository / ".git").glob("*.lock"))


def test_two_tasks_that_contradict_each_other_are_not_both_merged(
    kapelle: Instance, repository: Path
) -> None:
    one = done(kapelle, repository, "only_a.txt", "test ! -f only_b.txt")
    two = done(kapelle, repository, "only_b.txt", "echo looking; test ! -f only_a.txt")
    assert kapelle.cli("merge", one).returncode == 0
    before = git(repository, "rev-parse", "main")
    refused = kapelle.cli("merge", two)
    assert refused.returncode == 1
    assert "`echo looking; test ! -f only_a.txt` fails on what main would be" in refused.stderr
    assert "looking\n[exit code 1]" in refused.stderr
    assert git(repository, "rev-parse", "main") == before
    assert git(repository, "status", "--porcelain") == ""
    nothing_is_left(kapelle, repository)
    lines = kapelle.cli("events", "--task", two, "--json", check=True).stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert events[-1]["kind"] == "task.merge_refused"
    assert events[-1]["data"]["exit_code"] == 1
    assert events[-1]["data"]["commit"] in refused.stderr
    assert kapelle.task(two)["merged_at"] is None
    forced = kapelle.cli("merge", two, "--no-verify")
    assert forced.returncode == 0, forced.stderr
    assert (repository / "only_b.txt").exists()


def test_the_result_is_checked_where_tasks_are_with_set_up_and_copies(
    kapelle: Instance, repository: Path
) -> None:
    (repository / ".gitignore").write_text(".env\n", encoding="utf-8")
    (repository / ".kapelle").mkdir()
    (repository / ".kapelle" / "config.toml").write_text(
        '[workspace]\ncopy = [".env"]\nsetup = "echo ready > /dev/shm/../../$PWD/set_up"\n',
        encoding="utf-8",
    )
    base = move_base(repository, "start.txt")
    (repository / ".env").write_text("A=1\n", encoding="utf-8")
    check = "pwd; git log --oneline; cat .env set_up new.txt; test \"$(git status -s .env)\" = ''"
    task_id = done(kapelle, repository, "new.txt", check)
    move_base(repository)
    merged = json.loads(kapelle.cli("merge", task_id, "--json", check=True).stdout)
    [set_up, made] = merged["checks"]
    assert (set_up["name"], set_up["passed"], made["passed"]) == ("setup", True, True)
    assert made["commit"] == merged["commit"] == git(repository, "rev-parse", "main")
    assert made["directory"] in made["output"]
    assert str(kapelle.home.worktrees) in made["directory"]
    assert "Meanwhile" in made["output"]
    assert git(repository, "rev-parse", "main~2") == base
    nothing_is_left(kapelle, repository)
    # Where the base has not moved, its files are those that were checked.
    second = done(kapelle, repository, "second.txt", "test -f second.txt")
    assert kapelle.post(f"/tasks/{second}/merge")["checks"] == []


def _await(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def test_a_kill_of_the_daemon_amid_the_checks_leaves_nothing(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    gate, pids = tmp_path / "gate", tmp_path / "pids"
    check = f"test ! -f meanwhile.txt || {{ echo $$ > {pids}; touch {gate}; sleep 600; }}"
    task_id = done(kapelle, repository, "a.txt", check)
    base = move_base(repository)
    answer = kapelle.request("POST", f"/tasks/{task_id}/merge?timeout_s=0")[1]
    assert json.loads(answer)["status"] == "under_way"
    _await(gate)
    kapelle.kill()
    kapelle.start()
    deadline = time.monotonic() + 60
    while (
        list(kapelle.home.worktrees.glob("merge_*"))
        or Path("/proc", pids.read_text().strip()).exists()
    ):
        assert time.monotonic() < deadline, kapelle.log_tail()
        time.sleep(0.1)
    nothing_is_left(kapelle, repository)
    assert not [
        path for path in kapelle.home.processes.iterdir() if not (path / "exit.json").exists()
    ]
    assert git(repository, "rev-parse", "main") == base
    merged = kapelle.post(f"/tasks/{task_id}/merge", {"verify": False})
    assert merged["status"] == "merged"


def test_a_merge_that_takes_long_is_waited_for_and_can_be_given_up(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    gate, go = tmp_path / "gate", tmp_path / "go"
    check = (
        f"test ! -f meanwhile.txt || {{ touch {gate}; until test -f {go}; do sleep 0.1; done; }}"
    )
    task_id = done(kapelle, repository, "a.txt", check)
    base = move_base(repository)
    path = f"/tasks/{task_id}/merge"
    assert kapelle.post(f"{path}?timeout_s=0")["status"] == "under_way"
    _await(gate)
    going = kapelle.post(f"{path}?timeout_s=0")
    assert going["phase"].startswith("1 of 1: test ! -f meanwhile.txt")
    with pytest.raises(ApiError, match="otherwise"):
        kapelle.post(path, {"style": "squash"})
    kapelle.call("DELETE", path)
    nothing_is_left(kapelle, repository)
    assert git(repository, "rev-parse", "main") == base
    gate.unlink()
    with api.connect(home=kapelle.home.root, start=False) as client:
        waiting = threading.Thread(target=client.tasks.merge, args=(task_id,))
        waiting.start()
        _await(gate)
        # Whoever commits meanwhile has the result checked once more.
        move_base(repository, "later.txt")
        go.touch()
        waiting.join(60)
    assert git(repository, "show", "main:later.txt") == "mine"
    assert git(repository, "show", "main:a.txt") == "x"


def test_only_files_that_the_merge_touches_must_be_clean(
    kapelle: Instance, repository: Path
) -> None:
    task_id = done(kapelle, repository, "NOTES.md")
    (repository / "README.md").write_text("mine\n", encoding="utf-8")
    (repository / "staged.txt").write_text("mine\n", encoding="utf-8")
    git(repository, "add", "staged.txt")
    before = git(repository, "status", "--porcelain")
    assert kapelle.cli("merge", task_id).returncode == 0
    assert git(repository, "status", "--porcelain") == before
    assert (repository / "NOTES.md").read_text(encoding="utf-8") == "x"
    same = done(kapelle, repository, "README.md")
    refused = kapelle.cli("merge", same)
    assert refused.returncode == 2
    assert "uncommitted changes in README.md, which the merge changes too" in refused.stderr


def test_what_to_type_is_quoted_and_named(kapelle: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "mein Projekt 日本")
    git(repository, "tag", "v1")
    git(repository, "checkout", "--quiet", "--detach")
    detached = done(kapelle, repository, "README.md")
    tagged = kapelle.wait(kapelle.play(_WRITE.format(name="a", content="x"), repository, base="v1"))
    for task_id in (detached, tagged["id"]):
        refused = kapelle.cli("merge", task_id)
        assert refused.returncode == 2
        assert f"kapelle merge {task_id} --into main" in refused.stderr
    git(repository, "switch", "--quiet", "main")
    (repository / "README.md").write_text("mine\n", encoding="utf-8")
    refused = kapelle.cli("merge", detached, "--into", "main")
    [typed] = [part for part in refused.stderr.splitlines() if "stash" in part]
    command = typed[typed.index("git -C") : typed.index(", then")]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    merged: dict[str, Any] = json.loads(
        kapelle.cli("merge", detached, "--into", "main", "--json", check=True).stdout
    )
    assert merged["checkout_updated"] == str(repository)
