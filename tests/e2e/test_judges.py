"""Work is judged by the tests of its base, and on the commit alone."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import cheats
from tests.e2e.support.instance import Instance, pauses
from tests.e2e.support.repositories import git, make_repository

_NEW_TEST = "sed 's/app.OK/app.NEW/; s/TestApp/TestNew/' tests/test_app.py > tests/test_new.py"
_SETUP = "mkdir -p built && echo good > built/lib"


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("judges") / "home", KAPELLE_TASKS__PROVE="once")
    instance.start()
    command = '["/bin/sh", "-c", "{prompt}"]'
    instance.cli("config", "set", "agents.sh.command", command, check=True)
    try:
        yield instance
    finally:
        instance.destroy()


def check_of(kapelle: Instance, repository: Path, does: str, check: Any, **spec: Any) -> Any:
    """A task of one check: the task, its check, and the kinds of its warnings."""
    task = kapelle.wait(kapelle.submit(does, repository, agent="sh", checks=[check], **spec))
    warnings = {warning["what"] for warning in task["attempts"][-1]["warnings"]}
    return task, task["checks"][0], warnings


def test_new_tests_of_new_behaviour_raise_no_doubt(kapelle: Instance, tmp_path: Path) -> None:
    repository = cheats.make_cheated(tmp_path / "repository")
    new = "echo 'NEW = True' >> app.py"
    another = "sed 's/app.OK/app.NEW/; s/test_app/test_more/; s/TestApp/TestMore/'"
    honest = {
        "a new file": f"{new}; {_NEW_TEST}",
        "a new file and what leads it": f"{new}; {_NEW_TEST}; echo 'import os' > tests/conftest.py",
        "an old file": f"{new}; {another} tests/test_app.py > m; cat m >> tests/test_app.py; rm m",
    }
    tasks = {
        told: kapelle.submit(does, repository, agent="sh", checks=[cheats.UNITTEST])
        for told, does in honest.items()
    }
    named = cheats.UNITTEST["command"] + " tests/test_new.py"
    tasks["one that the check asks for"] = kapelle.submit(
        f"{new}; {_NEW_TEST}", repository, agent="sh", checks=[named]
    )
    bare = make_repository(tmp_path / "bare", {"app.py": "OK = True\n"})
    first = "mkdir tests; echo > tests/__init__.py; echo 'import app' > tests/test_app.py"
    first += f"; {cheats.HONEST}"
    tasks["the first ones"] = kapelle.submit(first, bare, agent="sh", checks=[cheats.UNITTEST])
    for told, task_id in tasks.items():
        task = kapelle.wait(task_id)
        assert (task["status"], task["verified"]) == ("completed", True), (told, task["checks"])
        assert task["checks"][0]["passes_only_with"] == [], told


def test_what_passes_only_with_changed_tests_is_told_everywhere_and_left_to_a_person(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = cheats.make_cheated(tmp_path / "repository")
    does = f"{cheats.BREAK}; sed -i s/assertTrue/assertFalse/ tests/test_app.py"
    task, check, warnings = check_of(
        kapelle, repository, does, cheats.UNITTEST, deliver="merge", title="Turn it round"
    )
    assert (task["status"], task["verified"], warnings) == ("completed", False, {"doubted"})
    assert check["passes_only_with"] == ["tests/test_app.py"]
    told = "passes only with tests changed by this work: tests/test_app.py"
    for _ in pauses(30):
        delivery = kapelle.task(task["id"])["delivery"]
        if delivery["status"] != "pending":
            break
    assert delivery["status"] == "failed"
    assert told in delivery["reason"]
    assert git(repository, "log", "--format=%s", "main") == "Start"
    for command in (("status", task["id"]), ("merge", task["id"], "--preview"), ("report",)):
        assert told in " ".join(kapelle.cli(*command, check=True).stdout.split()), command
    preview = kapelle.get(f"/tasks/{task['id']}/merge")
    assert len(preview["doubts"]) == 1
    outcomes = kapelle.get("/usage?by=outcome")["rows"]
    assert "completed" in {row["key"] for row in outcomes}
    kapelle.cli("merge", task["id"], check=True)
    assert kapelle.task(task["id"])["merged_at"] is not None


def test_files_that_no_check_looks_at_are_named(kapelle: Instance, tmp_path: Path) -> None:
    repository = cheats.make_cheated(tmp_path / "repository")
    does = f"{cheats.HONEST}; echo 'x = 1' > other.py"
    task, check, warnings = check_of(kapelle, repository, does, cheats.UNITTEST)
    assert (task["verified"], check["proved"], warnings) == (True, True, {"overlooked"})
    assert check["overlooks"] == ["other.py"]


def test_a_check_that_does_not_look_at_a_file_any_more_verifies_nothing(
    kapelle: Instance, tmp_path: Path
) -> None:
    """Whatever the work put in its way, under names that nobody knows."""
    look = "import importlib, pathlib\n\nnames = pathlib.Path('names.d').read_text().split()\n"
    look += "for name in names:\n    importlib.import_module(name)\n"
    files = {"names.d": "app\n", "app.py": "OK = True\n", "look.py": look, "untested.py": "\n"}
    repository = make_repository(tmp_path / "repository", files)
    does = f"echo other > names.d; echo 'x = 1' > other.py; {cheats.BREAK}"
    task, check, warnings = check_of(kapelle, repository, does, "python3 look.py")
    assert (task["verified"], check["proved"], "doubted" in warnings) == (False, False, True)
    assert "app.py" in check["overlooks"]
    required, _, _ = check_of(kapelle, repository, does, "python3 look.py", prove="required")
    assert required["status"] == "failed"
    honest = "echo app other > names.d; echo 'x = 1' > other.py; echo >> untested.py"
    task, check, warnings = check_of(kapelle, repository, honest, "python3 look.py")
    assert (task["verified"], check["proved"], warnings) == (True, True, {"overlooked"})
    assert check["overlooks"] == ["untested.py"]


def test_a_module_in_the_place_of_an_installed_one_verifies_nothing(
    kapelle: Instance, tmp_path: Path
) -> None:
    """Tests import it, so that it decides about them; what they were waiting for is no such one."""
    test = "from packaging.version import Version\nimport app\n\n"
    test += "assert Version(app.VERSION) >= Version('2')\n"
    waiting = "import app, missing\n\nassert app.VERSION\n"
    files = {"app.py": "VERSION = '2.10'\n", "test_app.py": test, "test_missing.py": waiting}
    repository = make_repository(tmp_path / "repository", files)
    lenient = (
        "class Version:\\n def __init__(self, text): pass\\n def __ge__(self, other): return True"
    )
    does = f"mkdir packaging; printf '{lenient}\\n' > packaging/version.py; "
    does += "echo > packaging/__init__.py; echo \"VERSION = '0.1'\" > app.py"
    task, check, warnings = check_of(kapelle, repository, does, f"{sys.executable} test_app.py")
    assert (task["verified"], "doubted" in warnings) == (False, True)
    assert "packaging/version.py" in check["passes_only_with"]
    honest = "echo 'x = 1' > missing.py"
    task, check, _ = check_of(kapelle, repository, honest, f"{sys.executable} test_missing.py")
    assert (task["verified"], check["proved"], check["passes_only_with"]) == (True, True, [])


def test_checks_see_what_the_set_up_made_and_nothing_else_that_git_ignores(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = make_repository(
        tmp_path / "repository",
        {
            ".kapelle/config.toml": f'[workspace]\nsetup = "{_SETUP}"\n',
            ".gitignore": "built\ncache\n",
        },
    )
    sees = "cat work.txt && grep -q good built/lib && test ! -e cache"
    work = "echo 1 > work.txt; mkdir -p cache/empty; echo bad > cache/lib"
    task, check, _ = check_of(kapelle, repository, work, sees)
    assert (task["verified"], check["proved"]) == (True, True)
    # The next attempt finds its caches again.
    assert Path(task["workspace"]["path"], "cache/lib").read_text(encoding="ascii") == "bad\n"
    # What the set-up made and the agent changed is made anew.
    task, check, _ = check_of(kapelle, repository, "echo 2 > work.txt; echo bad > built/lib", sees)
    assert (task["verified"], check["passes_only_with"]) == (True, [])
    task, check, _ = check_of(kapelle, repository, work, "cat work.txt cache/lib")
    assert (task["verified"], check["passes_only_with"]) == (False, ["cache/"])
    required, check, _ = check_of(
        kapelle, repository, work, "cat work.txt cache/lib", prove="required"
    )
    assert (required["status"], check["passes_only_with"]) == ("failed", ["cache/"])


def test_a_file_that_changes_while_a_check_runs_verifies_nothing(
    kapelle: Instance, repository: Path
) -> None:
    """Also one that is as it was in the end."""
    touched = "cat README.md > same && cat same > README.md && rm same"
    task, check, warnings = check_of(kapelle, repository, "echo 1 > work.txt", touched)
    assert (task["status"], task["verified"]) == ("completed", False)
    assert (check["changed_meanwhile"], warnings) == (["README.md"], {"doubted"})
