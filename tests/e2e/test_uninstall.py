"""`kapelle uninstall`: it lists everything, asks, and leaves nothing of this home behind."""

import json
from pathlib import Path

from tests.e2e.support.ensembles import play
from tests.e2e.support.instance import Instance, pauses
from tests.e2e.support.repositories import git


def _branches(repository: Path) -> set[str]:
    listed = git(repository, "for-each-ref", "--format=%(refname)").split()
    return {ref for ref in listed if "kapelle" in ref}


def test_it_removes_what_this_home_has_left_and_nothing_else(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    write = {"write": "new.txt", "content": "x\n"}
    merged = kapelle.wait(kapelle.submit(play(write), repository))
    kapelle.post(f"/tasks/{merged['id']}/merge")
    kept = kapelle.wait(kapelle.submit(play({"write": "b.txt", "content": "b\n"}), repository))
    running = kapelle.submit(play({"run": "sleep 600"}), repository)
    kapelle.wait_for_status(running, "running")
    for _ in pauses(10):
        if (kapelle.home.worktrees / running).is_dir():
            break
    foreign = f"refs/heads/kapelle/task_{'0' * 26}"
    git(repository, "update-ref", foreign, "HEAD")
    claude = kapelle.user_home / ".claude.json"
    home = {"env": {"KAPELLE_HOME": str(kapelle.home.root)}, "command": "kapelle"}
    claude.write_text(json.dumps({"mcpServers": {"kapelle": home, "other": {}}}))
    (kapelle.user_home / ".bashrc").write_text('alias x=y\neval "$(kapelle completion bash)"\n')

    own = kapelle.home.root / "patterns" / "mine.py"
    own.parent.mkdir()
    own.write_text("# mine\n")
    kapelle.home.config.write_text("[limits]\n")

    # A home that holds other files, such as a person's home directory, stays as it is.
    thesis = kapelle.home.root / "thesis" / "one.txt"
    thesis.parent.mkdir()
    thesis.write_text("mine\n")
    for how in ("--dry-run", "--yes"):
        assert kapelle.cli("uninstall", how, "--json").returncode == 2
    assert thesis.exists()
    assert kapelle.task(running)["status"] == "running"
    thesis.rename(tmp_path / "one.txt")
    thesis.parent.rmdir()

    before = _branches(repository)
    listed = json.loads(kapelle.cli("uninstall", "--dry-run", "--json", check=True).stdout)
    [found] = listed["repositories"]
    assert found["unmerged"] == [f"refs/heads/kapelle/{kept['id']}"]
    assert len(found["worktrees"]) >= 2
    assert listed["clients"] == [str(claude)]
    assert listed["configuration"] == [str(kapelle.home.config), str(own)]
    keeping = kapelle.cli("uninstall", "--dry-run", "--keep-work", "--json", check=True)
    assert json.loads(keeping.stdout)["configuration"] == [str(kapelle.home.config)]
    assert json.loads(keeping.stdout)["kept_configuration"] == [str(own)]
    assert str(own) in kapelle.cli("uninstall", "--dry-run", check=True).stdout
    refused = kapelle.cli("uninstall")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert _branches(repository) == before

    done = kapelle.cli("uninstall", "--keep-work", "--yes")
    assert done.returncode == 0, done.stderr
    left = _branches(repository)
    assert f"refs/heads/kapelle/{kept['id']}" in left
    assert foreign in left
    assert f"refs/heads/kapelle/{merged['id']}" not in left
    # The branch can be deleted: no worktree holds it any more.
    git(repository, "branch", "-D", f"kapelle/{kept['id']}")
    assert [*kapelle.home.root.rglob("*")] == [own.parent, own]
    assert json.loads(claude.read_text()) == {"mcpServers": {"other": {}}}
    assert (kapelle.user_home / ".bashrc").read_text() == "alias x=y\n"
    assert kapelle.processes() == []
