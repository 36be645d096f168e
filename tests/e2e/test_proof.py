"""Blind checks are found out: one that passes where the work holds nonsense does not look at it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import perform, rule, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git, make_repository
from tests.e2e.test_environment import activated, make_venv, run

_WORK = '[[do]]\nwrite = "work.py"\ncontent = "x = 1\\n"'
_SEES = "python3 -c 'import work'"
_AGAIN = "python3 -B -c 'import work'"


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("proof") / "home", KAPELLE_TASKS__PROVE="once")
    instance.start()
    try:
        yield instance
    finally:
        instance.destroy()


def end_of(kapelle: Instance, place: Path, *checks: Any, **spec: Any) -> Any:
    return kapelle.wait(kapelle.play(_WORK, place, checks=[*checks], **spec))


def nothing_is_left(kapelle: Instance, repository: Path, task: Any) -> None:
    """No copy, no worktree or branch of git's but the task's own."""
    own = [task["workspace"]["path"]] if Path(task["workspace"]["path"]).exists() else []
    owned = {name for name in os.listdir(kapelle.home.root / "worktrees") if "." not in name}
    assert owned >= {Path(path).name for path in own}
    assert not [name for name in os.listdir(kapelle.home.root / "worktrees") if name[4:5] == "."]
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "branch", "--list", "--format=%(refname:short)").split() == [
        task["workspace"]["branch"], "main",
    ]  # fmt: skip


def test_a_check_that_looks_at_the_work_is_proved_and_one_that_does_not_is_named(
    kapelle: Instance, repository: Path
) -> None:
    task = end_of(kapelle, repository, _SEES, "true")
    seeing, blind = task["checks"]
    assert (task["status"], seeing["proved"], blind["proved"]) == ("completed", True, False)
    assert seeing["proof"] == "It fails where work.py holds nonsense."
    (warning,) = task["attempts"][0]["warnings"]
    assert warning["what"] == "blind"
    assert warning["text"] == (
        "true: This check also passes with garbage in work.py, so it does not test this change."
    )
    shown = kapelle.cli("status", task["id"], check=True).stdout
    assert "does not test this change" in shown
    assert git(repository, "show", f"{task['workspace']['branch']}:work.py") == "x = 1"
    assert Path(task["workspace"]["path"], "work.py").read_text(encoding="utf-8") == "x = 1\n"
    nothing_is_left(kapelle, repository, task)


def test_once_is_once_for_a_repository_and_command(kapelle: Instance, tmp_path: Path) -> None:
    repository, ledger = make_repository(tmp_path / "repository"), tmp_path / "ledger"
    check = f"echo x >> {ledger}; {_SEES}"
    told = []
    for prove, made in ((None, 3), (None, 4), ("never", 5), ("always", 8)):
        task = end_of(kapelle, repository, {"command": check, "prove": prove})
        told.append(task["checks"][0]["proved_earlier"])
        assert task["checks"][0]["proved"] is (None if prove == "never" else True)
        assert len(ledger.read_text(encoding="ascii").split()) == made
    # What was seen before is told as that.
    assert told == [False, True, False, False]
    task = end_of(kapelle, make_repository(tmp_path / "other"), check)
    assert len(ledger.read_text(encoding="ascii").split()) == 11


def test_a_remembered_proof_counts_only_for_the_files_that_it_saw(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository, ledger = make_repository(tmp_path / "repository"), tmp_path / "ledger"
    (repository / "work.py").write_text("x = 0\n", encoding="utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "work")
    check = f"echo x >> {ledger}; {_AGAIN}"
    unseen = '[[do]]\nwrite = "unseen.py"\ncontent = "y = 1\\n"'

    def finish(playbook: str) -> tuple[Any, Any, Any, int]:
        before = len(ledger.read_text(encoding="ascii").split()) if ledger.exists() else 0
        task = kapelle.wait(kapelle.play(playbook, repository, checks=[check]))
        (made,) = task["checks"]
        runs = len(ledger.read_text(encoding="ascii").split()) - before
        return task["verified"], made["proved"], made["overlooks"], runs

    assert finish(_WORK) == (True, True, [], 3)
    # The same file as before costs no second run.
    assert finish(_WORK) == (True, True, [], 1)
    # No check looks at this one, whatever was proved for another file; it is tried each time.
    assert finish(unseen) == (False, False, ["unseen.py"], 3)
    assert finish(unseen) == (False, False, ["unseen.py"], 3)
    # Beside a file that was proved, the other is named; the proved one is not tried again.
    verified, proved, overlooks, runs = finish(f"{_WORK}\n{unseen}")
    assert (verified, proved, overlooks) == (True, True, ["unseen.py"])
    assert runs <= 4
    assert finish(_WORK) == (True, True, [], 1)


@pytest.mark.parametrize("script", ["Makefile", "tools/check.sh"])
def test_what_was_proved_does_not_hold_for_a_command_that_now_does_something_else(
    kapelle: Instance, repository: Path, script: str
) -> None:
    """An agent that has `make test` do nothing is not believed for what another one was."""
    (repository / "tools").mkdir()
    (repository / "tools/check.sh").write_text(_AGAIN, encoding="utf-8")
    (repository / "Makefile").write_text("test:\n\tsh tools/check.sh\n", encoding="utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=Tests")
    prove = "always" if "/" in script else "once"
    honest = end_of(kapelle, repository, "make test", prove=prove)
    assert (honest["verified"], honest["checks"][0]["proved"]) == (True, True)
    text = r"test:\n\ttrue\n" if script == "Makefile" else "true"
    part = f'[[do]]\nwrite = "{script}"\ncontent = "{text}"\n{_WORK.replace("x = 1", "broken(")}'
    cheat = kapelle.wait(kapelle.play(part, repository, checks=["make test"], prove=prove))
    assert (cheat["status"], cheat["verified"]) == ("completed", False)
    assert cheat["checks"][0]["passes_only_with"] == [script]


def test_what_leads_a_check_is_no_work_that_proves_it(kapelle: Instance, repository: Path) -> None:
    """Nonsense in it makes any check fail, also one that does nothing."""
    idle = '[[do]]\nwrite = "makefile"\ncontent = "test:\\n\\ttrue\\n"\n'
    first = kapelle.wait(kapelle.play(idle, repository, checks=["make test"]))
    kapelle.cli("merge", first["id"], check=True)
    for part in (_WORK, idle + _WORK):
        later = kapelle.wait(kapelle.play(part, repository, checks=["make test"]))
        assert (later["status"], later["verified"]) == ("completed", False)


def test_a_check_known_to_be_blind_verifies_nothing_where_nothing_was_changed(
    kapelle: Instance, repository: Path
) -> None:
    blind = end_of(kapelle, repository, "true", "diff_not_empty")
    assert (blind["status"], blind["verified"]) == ("completed", False)
    idle = kapelle.wait(kapelle.play('[[do]]\nsay = "Done."', repository, checks=["true"]))
    assert (idle["status"], idle["verified"]) == ("completed", False)
    assert idle["checks"][0]["proved"] is False


def test_required_fails_what_is_not_proved(kapelle: Instance, repository: Path) -> None:
    task = end_of(kapelle, repository, _AGAIN, "true", prove="required")
    assert (task["status"], task["attempts"][0]["failure"]) == ("failed", "checks")
    assert task["reason"].startswith(
        "failed its check: true (This check also passes with garbage in work.py"
    )
    assert "--prove never" in task["checks"][1]["output"]
    unsure = end_of(
        kapelle, repository, 'case "$PWD" in */task_*) ;; *) exit 3; esac', prove="required"
    )
    assert (unsure["status"], unsure["checks"][0]["proved"]) == ("failed", None)
    assert "in a copy of the workspace it fails by itself (exit code 3)" in unsure["reason"]


def test_tests_and_configuration_are_left_whole_where_there_is_a_program(
    kapelle: Instance, repository: Path
) -> None:
    """Or a suite that reads the new test and not the new code would be thought to see both."""
    part = '[[do]]\nwrite = "tests/test_work.py"\ncontent = "assert True\\n"\n' + _WORK
    blind = kapelle.wait(kapelle.play(part, repository, checks=["python3 tests/test_work.py"]))
    assert "garbage in work.py" in blind["checks"][0]["proof"]
    assert blind["checks"][0]["proved"] is False
    only = part.removesuffix(_WORK)
    seen = kapelle.wait(kapelle.play(only, repository, checks=["python3 tests/test_work.py"]))
    assert seen["checks"][0]["proved"] is True


def test_the_copy_has_what_the_set_up_made_and_a_repository(
    kapelle: Instance, tmp_path: Path
) -> None:
    setup = "mkdir built && echo $PWD > built/place && ln -s $PWD/built link && chmod 500 built"
    repository = make_repository(
        tmp_path / "repository",
        {
            ".kapelle/config.toml": f'[workspace]\nsetup = "{setup}"\n',
            ".gitignore": "built\nlink\n",
        },
    )
    check = (
        'test "$(cat link/place)" = "$PWD" && test "$(readlink link)" = "$PWD/built" && '
        'git diff --quiet main -- README.md && test -z "$(git status --porcelain)"; '
        f"s=$?; {_AGAIN} && exit $s"
    )
    task = end_of(kapelle, repository, check)
    assert task["checks"][0]["proved"] is True, task["checks"]
    nothing_is_left(kapelle, repository, task)


@pytest.mark.parametrize(
    ("does", "check", "proved"),
    [
        ("echo d > d.txt", "test -f d.txt", True),
        ("mkdir -p a/b && echo d > a/b/c", "test -d a", True),
        ("git mv old.py new.py", "test -f new.py -a ! -f old.py", True),
        ("chmod +x app.py", "test -x app.py", True),
        ("echo a: 1 > conf.yaml", "grep -q a conf.yaml", True),
        ("git rm -q old.py", "test ! -f old.py", True),
        ("git rm -q old.py", "test -f app.py", None),
        ("git rm -q tests/test_app.py", "test ! -f tests/test_app.py", False),
        ("git rm -q tests/test_app.py; echo >> app.py", "test ! -f tests/test_app.py", False),
    ],
)
def test_a_check_that_fails_where_the_work_is_taken_back_is_not_blind(
    kapelle: Instance, tmp_path: Path, does: str, check: str, proved: bool | None
) -> None:
    names = ("app.py", "old.py", "tests/test_app.py")
    repository = make_repository(tmp_path / "repository", dict.fromkeys(names, "1\n"))
    part = f"[[do]]\nrun = {json.dumps(does)}"
    task = kapelle.wait(kapelle.play(part, repository, checks=[check], prove="required"))
    assert task["checks"][0]["proved"] is proved, task["checks"]
    assert task["status"] == ("completed" if proved else "failed")
    told = [warning["what"] for warning in task["attempts"][0]["warnings"]]
    assert ("doubted" in told) is (proved is False)
    if proved:
        assert Path(task["workspace"]["path"], "app.py").read_text(encoding="ascii") == "1\n"
        nothing_is_left(kapelle, repository, task)


@pytest.mark.parametrize(
    ("point", "passes"), [("proof_before_execute", 2), ("proof_before_removal", 1)]
)
def test_a_death_amid_a_proof_leaves_nothing(tmp_path: Path, point: str, passes: int) -> None:
    repository = make_repository(tmp_path / "repository")
    instance = Instance(tmp_path / "home", KAPELLE_TASKS__PROVE="always")
    try:
        instance.start(KAPELLE_FAILPOINT=f"{point}@{passes}")
        task_id = instance.play(_WORK, repository, checks=[_SEES])
        instance.await_death()
        instance.start()
        task = instance.wait(task_id)
        assert (task["status"], task["checks"][0]["proved"]) == ("completed", True)
        nothing_is_left(instance, repository, task)
    finally:
        instance.destroy()


def test_the_condition_of_a_loop_is_proved(kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, rule("Write it", {"write": "work.py", "content": "x = 1\n"}))
    spec = {"prompt": "Write it", "max_iterations": 1}
    run = perform(kapelle, "loop", repository, until=[_SEES, "true"], **spec)
    assert (run["status"], run["verified"]) == ("completed", True), run
    blind = perform(kapelle, "loop", repository, until=["true"], **spec)
    assert (blind["status"], blind["verified"]) == ("completed", False)
    found = [
        one
        for step in kapelle.get(f"/runs/{run['id']}/steps")
        if step["kind"] == "check"
        for one in step["result"]
    ]
    assert [one["proved"] for one in found] == [True, False]
    failed = perform(kapelle, "loop", repository, until=["true"], prove="required", **spec)
    assert failed["status"] == "failed"
    assert "does not test this change" in json.dumps(failed)


def test_an_editable_install_of_the_checkout_is_found_out_by_the_proof(
    kapelle: Instance, tmp_path: Path
) -> None:
    """With the rule off by which the check does not see that virtual environment."""
    repository = make_repository(
        tmp_path / "sample",
        {
            "src/sample/__init__.py": "",
            "tests/test_sample.py": "import sample\n\n\ndef test_it():\n    assert sample\n",
            ".gitignore": ".venv\n__pycache__\n.pytest_cache\n",
            ".kapelle/config.toml": '[workspace]\ncheckout_paths = "keep"\n',
        },
    )
    shell = activated(make_venv(repository))
    broken = '[[do]]\nwrite = "src/sample/__init__.py"\ncontent = "raise RuntimeError(1)\\n"'
    task = run(kapelle, repository, broken, "--check", "pytest -q", "--prove", "required", **shell)
    assert task["checks"][0]["exit_code"] == 0
    assert task["status"] == "failed"
    assert "garbage in src/sample/__init__.py" in task["reason"]
