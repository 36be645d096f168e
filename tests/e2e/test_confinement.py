"""Confined work: the workspace stands at the path of the checkout, and nothing else is reached."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import play
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git, make_repository

COMMIT = "git -c user.name=a -c user.email=a@a commit -qam agent"

pytestmark = pytest.mark.skipif(not shutil.which("unshare"), reason="namespaces are of Linux")


@pytest.fixture
def confined(kapelle: Instance) -> Instance:
    return configure(kapelle, level="namespaces")


def configure(kapelle: Instance, **settings: str) -> Instance:
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    kapelle.home.config.write_text("\n".join(["[confine]", *lines, ""]), encoding="utf-8")
    return kapelle


def run(kapelle: Instance, repository: Path, *commands: str, **spec: Any) -> Any:
    steps = [{"run": command} for command in commands]
    return kapelle.wait(kapelle.submit(play(*steps), repository, **spec))


def checked(*commands: str) -> list[dict[str, str]]:
    return [{"command": command, "prove": "never"} for command in commands]


def test_an_agent_works_at_the_path_of_the_checkout(confined: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "sample", {"a.txt": "one\n"})
    task = run(
        confined,
        repository,
        f'test "$(pwd)" = {repository}',
        f"echo two > a.txt; {COMMIT}; git stash list; git gc -q; git fsck",
        "git config user.name Agent; git branch; git status --short",
        checks=checked(f'test "$(pwd)" = {repository}; grep two a.txt'),
    )
    assert task["status"] == "completed", task["reason"]
    assert task["attempts"][-1]["confinement"] == "namespaces"
    assert (repository / "a.txt").read_text() == "one\n"
    assert git(repository, "status", "--short") == ""
    assert "user.name" not in (repository / ".git/config").read_text()
    confined.post(f"/tasks/{task['id']}/merge")
    assert (repository / "a.txt").read_text() == "two\n"


def test_an_agent_reaches_neither_secrets_nor_other_places(
    confined: Instance, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "sample")
    outside = Path(confined.home.root).parent / "outside"
    outside.mkdir(exist_ok=True)
    token = confined.home.token
    task = run(
        confined,
        repository,
        f"! cat {token}; ! ls {confined.home.database}; ! echo x > {outside}/f",
        'test "$KAPELLE_CONFINED" = namespaces; echo x > /tmp/kapelle-test-mark',
        checks=checked("true"),
    )
    assert task["status"] == "completed", task["reason"]
    assert list(outside.iterdir()) == []
    assert not Path("/tmp/kapelle-test-mark").exists()


def test_shared_directories_are_copied_on_write(confined: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "sample", {".gitignore": "node_modules\n", "a": "1\n"})
    modules = repository / "node_modules" / "m"
    modules.mkdir(parents=True)
    (modules / "index.js").write_text("user\n")
    task = run(
        confined,
        repository,
        "grep user node_modules/m/index.js; echo agent > node_modules/m/index.js; echo 2 > a",
        'echo new > node_modules/new; git add -A; git status --short; test -z "$(git ls-files '
        'node_modules)"',
        checks=checked(
            "grep agent node_modules/m/index.js; echo check > node_modules/new",
            "grep new node_modules/new",
        ),
    )
    assert task["status"] == "completed", task["reason"]
    assert (modules / "index.js").read_text() == "user\n"
    assert sorted(path.name for path in modules.parent.iterdir()) == ["m"]
    # Only what the agent changed is kept, for the next attempt.
    [share] = (confined.home.shares / task["id"]).iterdir()
    assert [path.name for path in share.iterdir()] == ["changes"]
    assert git(repository, "ls-tree", "--name-only", task["workspace"]["branch"]).split() == [
        ".gitignore",
        "a",
    ]


def test_what_was_refused_is_named_with_the_setting_that_allows_it(
    confined: Instance, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "sample")
    target = Path("/opt")
    command = f"touch {target}/kapelle-refused"
    task = run(confined, repository, f"{command} || true", checks=checked(command))
    assert task["status"] == "failed"
    [warning] = [w for w in task["attempts"][-1]["warnings"] if w["what"] == "refused"]
    assert f"{target}/kapelle-refused" in warning["text"]
    assert "confine.write" in warning["text"]
    assert "confine.write" in task["checks"][0]["output"]


def test_work_in_place_is_confined_to_its_directory(confined: Instance, tmp_path: Path) -> None:
    place = tmp_path / "plain"
    place.mkdir()
    task = run(
        confined,
        place,
        "echo x > made; ! echo x > /opt/kapelle-refused",
        workspace="in_place",
    )
    assert task["status"] == "completed", task["reason"]
    assert (place / "made").exists()
    assert not Path("/opt/kapelle-refused").exists()


def test_landlock_confines_at_the_place_of_the_workspace(kapelle: Instance, tmp_path: Path) -> None:
    configure(kapelle, level="landlock")
    repository = make_repository(tmp_path / "sample", {"a.txt": "one\n"})
    task = run(
        kapelle,
        repository,
        f"echo two > a.txt; ! cat {kapelle.home.token}; ! touch /opt/kapelle-refused",
        COMMIT,
        checks=checked("grep two a.txt"),
    )
    assert task["status"] == "completed", kapelle.output(task["id"], "err")
    assert task["attempts"][-1]["confinement"] == "landlock"


def test_nothing_starts_with_less_than_the_settings_demand(
    kapelle: Instance, tmp_path: Path
) -> None:
    if shutil.which("bwrap"):
        pytest.skip("bubblewrap is installed here, so it can be demanded")
    configure(kapelle, level="bubblewrap")
    repository = make_repository(tmp_path / "sample")
    task = run(kapelle, repository, "touch made")
    assert task["status"] == "failed"
    assert "bubblewrap (bwrap) is not installed" in task["reason"]
    assert task["attempts"][-1]["confinement"] is None
