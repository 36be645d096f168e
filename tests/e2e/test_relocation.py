"""A repository that was moved: `kapelle relocate` takes its work along, and refuses a copy."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import play
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git, make_repository

SECOND_TIME = """Play.
```rehearsal
[[rule]]
attempt = 1
do = [{ exit = 3 }]
[[rule]]
do = [{ write = "b.txt", content = "b" }]
```
"""
CONFIG = '[[checks]]\nname = "there"\ncommand = "test -e README.md"\n'


@pytest.fixture
def wary(tmp_path: Path) -> Iterator[Instance]:
    """A daemon that trusts nothing by itself."""
    instance = Instance(tmp_path / "home", KAPELLE_TRUST="")
    instance.start()
    try:
        yield instance
    finally:
        instance.destroy()


def relocated(kapelle: Instance, old: Path, new: Path) -> Any:
    done = kapelle.cli("relocate", str(old), "--json", cwd=new)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def listed(kapelle: Instance, place: Path) -> set[str]:
    done = kapelle.cli("list", "--json", cwd=place, check=True)
    return {item["id"] for item in json.loads(done.stdout)}


def test_a_moved_repository_has_its_work_again(wary: Instance, tmp_path: Path) -> None:
    files = {"README.md": "# Shop\n", "src/a.txt": "a\n", ".kapelle/config.toml": CONFIG}
    old, new = make_repository(tmp_path / "shop", files), tmp_path / "new_%" / "store"
    new.parent.mkdir()
    (old / "data").mkdir()
    (old / "data/big").write_text("1\n")
    config = CONFIG + '[workspace]\nlink = ["data"]\n'
    (old / ".kapelle/config.toml").write_text(config)
    git(old, "commit", "--quiet", "--all", "--message=Link")
    neighbour = make_repository(tmp_path / "shop-2")
    wary.cli("trust", str(old), check=True)
    writing = play({"write": "b.txt", "content": "b\n"}, {"result": "Done."})
    finished = wary.wait(wary.submit(writing, old / "src"))
    failed = wary.wait(wary.submit(SECOND_TIME, old, retry={"max_attempts": 1}))
    other = wary.wait(wary.submit(play({"result": "x"}), neighbour))
    assert (finished["status"], failed["status"]) == ("completed", "failed")
    run = wary.post(
        "/runs",
        {
            "pattern": "batch",
            "spec": {
                "directory": str(old),
                "agent": "rehearsal",
                "items": [{"prompt": play({"result": "x"}), "directory": str(old / "src")}],
            },
        },
    )
    wary.get(f"/runs/{run['id']}/wait?timeout_s=55")
    schedule = wary.post(
        "/schedules",
        {
            "kind": "task",
            "spec": {"prompt": "Later.", "directory": str(old), "agent": "rehearsal"},
            "cron": "0 0 1 1 *",
        },
    )
    wary.cli("learnings", "add", "A title", "A content", cwd=old, check=True)
    wary.cli("project", "switch", "retail", cwd=old, check=True)
    template = {"name": "fix", "guidelines": "Be brief.", "directory": str(old)}
    wary.post("/templates", template)

    old.rename(new)
    # Until then: a remark where it is now, and the remedy in every refusal.
    assert wary.get(f"/relocations?directory={tmp_path}/new_%25/store/src") == [
        {"old": str(old), "new": str(new)}
    ]
    assert wary.get(f"/relocations?directory={neighbour}") == []
    assert f"kapelle relocate {old}" in wary.cli("list", cwd=new).stderr
    assert f"kapelle relocate {old}" in wary.cli("status", cwd=new).stderr
    for path, body in (("merge", {}), ("resume", {"message": "Go on."}), ("retry", {})):
        with pytest.raises(ApiError) as refused:
            wary.post(f"/tasks/{finished['id']}/{path}", body)
        assert refused.value.status == 409
        assert f"kapelle relocate {old}" in refused.value.body["error"]["hint"]
    assert wary.task(finished["id"])["attempts"] == finished["attempts"]

    moved = relocated(wary, old, new)
    counts = ("tasks", "runs", "schedules", "templates", "learnings", "projects")
    assert [moved[name] for name in counts] == [3, 1, 1, 1, 1, 1]
    assert (moved["trust"], moved["problems"]) == ("trusted", [])
    assert listed(wary, new) == {finished["id"], failed["id"], run["id"]}
    assert listed(wary, neighbour) == {other["id"]}
    assert wary.get(f"/runs/{run['id']}")["spec"]["items"][0]["directory"] == str(new / "src")
    assert wary.get("/templates/fix")["directory"] == str(new)
    [trust] = wary.get("/trust")
    assert (trust["directory"], trust["status"]) == (str(new), "trusted")

    worktree = Path(wary.task(failed["id"])["workspace"]["path"])
    borrowed = (worktree / ".git/objects/info/alternates").read_text()
    assert Path(borrowed.strip()).resolve() == new / ".git/objects"
    assert git(worktree, "log", "-1", "--format=%s")
    assert (worktree / "data/big").read_text() == "1\n"
    wary.cli("diff", finished["id"], cwd=new, check=True)
    wary.cli("merge", finished["id"], cwd=new, check=True)
    assert (new / "src/b.txt").read_text() == "b\n"
    wary.post(f"/tasks/{failed['id']}/resume", {"message": "Go on."})
    again = wary.wait(failed["id"])
    assert (again["status"], again["project"]) == ("completed", None)
    wary.cli("merge", failed["id"], cwd=new, check=True)
    assert (new / "b.txt").exists()

    wary.post(f"/schedules/{schedule['id']}/run")
    [firing] = wary.get(f"/schedules/{schedule['id']}/firings")["firings"]
    assert wary.wait(firing["subject"])["directory"] == str(new)
    fresh = wary.wait(wary.submit(play({"result": "x"}), new))
    assert fresh["project"] == "retail"

    # A changed .kapelle does not inherit trust.
    new.rename(old)
    (old / ".kapelle/config.toml").write_text(config.replace("README.md", "LICENSE"))
    assert relocated(wary, new, old)["trust"] == "changed"
    [trust] = wary.get(f"/trust?directory={old}")
    assert trust["status"] == "changed"
    assert any("LICENSE" in line for line in trust["difference"])


def test_a_copy_another_repository_and_running_work_are_refused(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    copy, other = tmp_path / "copy", make_repository(tmp_path / "other", {"a": "b"})
    task = kapelle.wait(kapelle.submit(play({"result": "x"}), repository))
    shutil.copytree(repository, copy)

    def status_of(old: Path, new: Path) -> int:
        with pytest.raises(ApiError) as refused:
            kapelle.post("/relocations", {"old": str(old), "new": str(new)})
        return refused.value.status

    assert kapelle.get(f"/relocations?directory={copy}") == []
    assert status_of(repository, copy) == 409
    moved = repository.rename(tmp_path / "moved")
    assert status_of(repository, other) == 409
    assert status_of(repository, tmp_path) == 422
    assert status_of(repository, tmp_path / "nowhere") == 422
    assert status_of(tmp_path / "nowhere", moved) == 404
    assert kapelle.task(task["id"])["directory"] == str(repository)

    # With a link in the old place work goes on there, and blocks the relocation.
    repository.symlink_to(moved)
    running = kapelle.submit(play({"sleep": 60}), repository)
    kapelle.wait_for_status(running, "running")
    assert status_of(repository, moved) == 409
    kapelle.post(f"/tasks/{running}/cancel")
    kapelle.wait(running)
    relocated(kapelle, repository, moved)
    assert listed(kapelle, moved) == {task["id"], running}
    assert kapelle.task(running)["directory"] == str(moved)


def test_a_directory_above_repositories_is_no_old_place(kapelle: Instance, tmp_path: Path) -> None:
    """A path typed too short must not take the work of other repositories along."""
    above = tmp_path / "projects"
    one, two = make_repository(above / "one"), make_repository(above / "two")
    task = kapelle.wait(kapelle.submit(play({"result": "x"}), one))
    for place in (above, tmp_path):
        with pytest.raises(ApiError) as refused:
            kapelle.post("/relocations", {"old": str(place), "new": str(two)})
        assert refused.value.status == 409
    gone = above.rename(tmp_path / "moved")
    with pytest.raises(ApiError) as refused:
        kapelle.post("/relocations", {"old": str(above), "new": str(gone / "two")})
    assert refused.value.status == 409
    assert kapelle.task(task["id"])["repository"] == str(one)
    relocated(kapelle, one, gone / "one")
    assert listed(kapelle, gone / "one") == {task["id"]}
