"""The right environment and the right tree: the shell's variables, never the checkout's code."""

import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git, make_repository

_BREAK = '[[do]]\nwrite = "src/sample/__init__.py"\ncontent = "raise RuntimeError(1)\\n"'
_MEND = '[[do]]\nwrite = "src/sample/more.py"\ncontent = "x = 1\\n"'


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("environment") / "home")
    # The shell that started the daemon had its own ideas.
    instance.start(JAVA_HOME="/of/the/daemon", VIRTUAL_ENV="/of/the/daemon")
    try:
        yield instance
    finally:
        instance.destroy()


def run(
    kapelle: Instance, repository: Path, part: str, *options: str, **shell: str
) -> dict[str, Any]:
    """A task asked for on the command line in a shell with these variables, when it has ended."""
    before = dict(kapelle.env)
    kapelle.env |= shell
    try:
        prompt = f"Play.\n```rehearsal\n{part}\n```\n"
        done = kapelle.cli("run", prompt, "-a", "rehearsal", *options, cwd=repository)
    finally:
        kapelle.env = before
    assert done.returncode == 0, done.stderr
    task: dict[str, Any] = kapelle.wait(done.stdout.strip())
    return task


def checks_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = task["checks"]
    return found


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A package with an editable install of itself in a virtual environment beside it."""
    repository = make_repository(
        tmp_path / "sample",
        {
            "src/sample/__init__.py": "",
            "tests/test_sample.py": "import sample\n\n\ndef test_it():\n    assert sample\n",
            ".gitignore": ".venv\n__pycache__\n",
        },
    )
    make_venv(repository)
    return repository


def make_venv(top: Path) -> Path:
    """What `python -m venv .venv` and `pip install -e . pytest` leave, without the network."""
    import venv

    place = top / ".venv"
    venv.create(place, symlinks=True)
    packages = next(place.glob("lib/python*/site-packages"))
    (packages / "__editable__.sample-1.pth").write_text(f"{top}/src\n")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    script = place / "bin" / "pytest"
    script.write_text(
        f"#!{place}/bin/python\nimport sys, pytest\nsys.exit(pytest.console_main())\n"
    )
    script.chmod(0o755)
    return place


def activated(place: Path) -> dict[str, str]:
    return {"VIRTUAL_ENV": str(place), "PATH": f"{place}/bin:{os.environ['PATH']}"}


def test_an_activated_editable_install_does_not_hide_a_broken_import(
    kapelle: Instance, sample: Path
) -> None:
    shell = activated(sample / ".venv")
    task = run(
        kapelle, sample, _BREAK, "--check", "pytest -q", "--check", "diff_not_empty", **shell
    )
    assert task["status"] == "failed", task
    output = checks_of(task)[0]["output"]
    assert f"PATH {sample}/.venv/bin" in output
    assert "workspace.setup" in output
    warned = [warning["text"] for warning in task["attempts"][-1]["warnings"]]
    assert any(f"VIRTUAL_ENV {sample}/.venv" in text for text in warned)


def test_the_worktrees_own_virtual_environment_stands_for_the_checkouts(
    kapelle: Instance, sample: Path
) -> None:
    (sample / ".kapelle").mkdir()
    make = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
    make += "from pathlib import Path; from tests.e2e.test_environment import make_venv; "
    make += "make_venv(Path.cwd())"
    setup = sample / ".kapelle" / "config.toml"
    setup.write_text(f"[workspace]\nsetup = '''{sys.executable} -c \"{make}\"'''\n")
    shell = activated(sample / ".venv")
    which = 'test "$VIRTUAL_ENV $(command -v pytest)" = "$PWD/.venv $PWD/.venv/bin/pytest"'
    good = run(kapelle, sample, _MEND, "--check", "pytest -q", "--check", which, **shell)
    assert good["status"] == "completed", checks_of(good)
    assert good["attempts"][-1]["warnings"] == []
    broken = run(kapelle, sample, _BREAK, "--check", "pytest -q", **shell)
    assert broken["status"] == "failed"
    assert "RuntimeError: 1" in checks_of(broken)[0]["output"]


@pytest.mark.parametrize("how", ["link", "copy"])
def test_a_linked_or_copied_virtual_environment_that_leads_back_is_not_used(
    kapelle: Instance, sample: Path, how: str
) -> None:
    (sample / ".kapelle").mkdir()
    (sample / ".kapelle" / "config.toml").write_text(f'[workspace]\n{how} = [".venv"]\n')
    task = run(kapelle, sample, _BREAK, "--check", ".venv/bin/python -m pytest -q")
    assert task["status"] == "failed", checks_of(task)
    warned = [warning["text"] for warning in task["attempts"][-1]["warnings"]]
    assert any(".venv" in text and how in text for text in warned)


def test_a_virtual_environment_elsewhere_that_imports_the_checkout_is_left_out(
    kapelle: Instance, sample: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "envs"
    elsewhere.mkdir()
    (sample / ".venv").rename(elsewhere / ".venv")
    shell = activated(elsewhere / ".venv")
    task = run(kapelle, sample, _BREAK, "--check", 'test -z "$VIRTUAL_ENV"', **shell)
    assert task["status"] == "completed", checks_of(task)


def test_what_the_shell_has_reaches_commands_and_not_what_the_daemon_had(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository")
    check = 'test "$JAVA_HOME" = /jdk && test -z "$VIRTUAL_ENV" && test "$CI" = true'
    check += ' && test -z "$SSH_AUTH_SOCK" && test "$NODE_PATH" = "/lib:$PWD/lib"'
    (repository / "lib").mkdir()
    (repository / "lib" / "index.js").touch()
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=lib")
    shell = {
        "JAVA_HOME": "/jdk", "CI": "true", "SSH_AUTH_SOCK": "/agent",
        "NODE_PATH": f"/lib:{repository}/lib:{repository}/gone",
    }  # fmt: skip
    task = run(kapelle, repository, _MEND, "--check", check, **shell)
    assert task["status"] == "completed", checks_of(task)
    shell |= {"PASSED": "1"}
    kapelle.cli("config", "set", "environment.pass", '["PASSED", "SSH_AUTH_SOCK"]', check=True)
    check = 'test "$PASSED" = 1 && test "$SSH_AUTH_SOCK" = /agent'
    task = run(kapelle, repository, _MEND, "--check", check, **shell)
    kapelle.cli("config", "reset", "environment.pass", check=True)
    assert task["status"] == "completed", checks_of(task)


def test_a_failed_check_says_what_was_dropped_that_it_mentions(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository")
    shell = {"DATABASE_URL": "postgres://me:hidden-word@db", "GITHUB_TOKEN": "hidden-too"}
    task = run(kapelle, repository, _MEND, "--check", 'test -n "$DATABASE_URL"', **shell)
    output = checks_of(task)[0]["output"]
    assert "Set in your shell but not passed on: DATABASE_URL. Add --env DATABASE_URL" in output
    assert "GITHUB_TOKEN" not in output
    kept = "".join(path.read_text() for path in kapelle.home.secrets.glob("shell_*.json"))
    assert "DATABASE_URL" in kept
    assert "hidden" not in kept
    (repository / ".kapelle").mkdir()
    setup = "[workspace]\nsetup = 'test -n \"$DATABASE_URL\"'\n"
    (repository / ".kapelle" / "config.toml").write_text(setup)
    task = run(kapelle, repository, _MEND, **shell)
    assert "not passed on: DATABASE_URL" in task["reason"]


def test_doctor_says_what_is_dropped_and_what_worktrees_do_not_use(
    kapelle: Instance, sample: Path
) -> None:
    before = dict(kapelle.env)
    kapelle.env |= {**activated(sample / ".venv"), "DATABASE_URL": "x", "JAVA_HOME": "/jdk"}
    try:
        found = json.loads(kapelle.cli("doctor", "--json", cwd=sample).stdout)["findings"]
    finally:
        kapelle.env = before
    told = [one["text"] for one in found if one["name"] == "environment"]
    assert "DATABASE_URL" in told[0]
    assert "JAVA_HOME" not in told[0]
    assert told[1] == f"{sample}/.venv belongs to this checkout, so worktrees do not use it"


def test_the_program_of_an_agent_is_looked_for_on_the_callers_path(
    kapelle: Instance, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was started without it, as by cron, an editor or another terminal."""
    program = tmp_path / "tools" / "elsewhere"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat > /dev/null\necho done by elsewhere\n")
    program.chmod(0o755)
    kapelle.cli("config", "set", "agents.mine.command", '["elsewhere"]')
    refused = kapelle.cli("run", "work", "--agent", "mine", cwd=repository)
    assert refused.returncode == 2
    assert "elsewhere is not on the PATH of your shell" in refused.stderr
    monkeypatch.setitem(kapelle.env, "PATH", f"{program.parent}:{os.environ['PATH']}")
    done = kapelle.cli("run", "work", "--agent", "mine", "-f", cwd=repository)
    assert done.returncode == 0, done.stderr
    run = kapelle.cli("loop", "work", "--until", "true", "--agent", "mine", "-f", cwd=repository)
    assert run.returncode == 0, run.stderr
    run_id = kapelle.get("/runs?limit=1")["runs"][0]["id"]
    again = kapelle.cli("continue", run_id, "more", "-f", cwd=repository)
    assert again.returncode == 0, again.stderr
    # The page and other clients without a shell get that of the run.
    later = kapelle.wait(kapelle.post(f"/runs/{run_id}/follow_up", {"message": "more"})["id"])
    assert later["status"] == "completed", later["reason"]
    (checked,) = json.loads(kapelle.cli("agents", "check", "mine", "--json").stdout)
    assert (checked["usable"], checked["agent"]["installed"]) == (True, str(program))
    listed = json.loads(kapelle.cli("agents", "--json").stdout)
    assert {one["name"]: one["installed"] for one in listed}["mine"] == str(program)


def test_runs_and_their_tasks_get_the_shell_too(kapelle: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    before = dict(kapelle.env)
    kapelle.env["GOPATH"] = "/go/of/mine"
    until = ["--until", 'test "$GOPATH" = /go/of/mine && test "$(cat seen)" = /go/of/mine']
    try:
        prompt = 'Play.\n```rehearsal\n[[do]]\nrun = "echo $GOPATH > seen"\n```\n'
        done = kapelle.cli("loop", prompt, *until, "-a", "rehearsal", "-f", "--json",
                           "--max-iterations", "1", cwd=repository)  # fmt: skip
    finally:
        kapelle.env = before
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "completed"


def test_init_proposes_what_tests_the_worktree(kapelle: Instance, tmp_path: Path) -> None:
    files = {"go.mod": "module x\n", ".gitattributes": "*.psd filter=lfs\n"}
    repository = make_repository(tmp_path / "repository", files)
    kapelle.env["DATABASE_URL"] = "x"
    try:
        done = kapelle.cli("init", "--agent", "rehearsal", "--yes", cwd=repository)
    finally:
        del kapelle.env["DATABASE_URL"]
    assert done.returncode == 0, done.stderr
    assert "Found: go." in done.stderr
    assert "git.filters '[\"lfs\"]'" in done.stderr
    assert "DATABASE_URL" in done.stderr
    config = (repository / ".kapelle" / "config.toml").read_text(encoding="utf-8")
    assert 'checks = ["go test ./..."]' in config.splitlines()
    again = json.loads(kapelle.cli("init", "--json", cwd=repository).stdout)
    assert (again["written"], again["proposal"]["setup"]) == (False, "go mod download")


def test_init_takes_over_prompts_only_with_consent_and_through_no_link(
    kapelle: Instance, tmp_path: Path
) -> None:
    files = {".orchestrator/fix.md": "Fix it.", ".orchestrator/config.json": '{"projectName": "x"}'}
    with_consent = make_repository(tmp_path / "with_consent", files)
    without = make_repository(tmp_path / "without", files)
    linked = make_repository(tmp_path / "linked", files)
    (tmp_path / "elsewhere").mkdir()
    (linked / ".kapelle").mkdir()
    (linked / ".kapelle" / "prompts").symlink_to(tmp_path / "elsewhere")
    ask = ("init", "--agent", "rehearsal", "--json")
    done = json.loads(kapelle.cli(*ask, "--yes", cwd=with_consent, check=True).stdout)
    assert done["proposal"]["prompt_files"] == {"tracks/fix": ".orchestrator/fix.md"}
    kapelle.cli(*ask, cwd=without, check=True)
    kapelle.cli(*ask, "--yes", cwd=linked, check=True)
    prompt = Path(".kapelle", "prompts", "tracks", "fix.md")
    assert (with_consent / prompt).read_text(encoding="utf-8") == "Fix it."
    assert kapelle.cli("prompts", "tracks/fix", cwd=with_consent).stdout.strip() == "Fix it."
    assert not (without / prompt).exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_task_that_changes_a_filtered_file_fails_and_says_what_to_type(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository", {".gitattributes": "*.bin filter=up\n"})
    write = '[[do]]\nwrite = "new.bin"\ncontent = "topsecret"'
    task = run(kapelle, repository, write)
    assert task["status"] == "failed"
    assert "new.bin needs the filter up" in task["reason"]
    assert "kapelle config set git.filters '[\"up\"]'" in task["reason"]
    assert git(repository, "branch", "--list", "kapelle/*") == ""


def test_what_is_configured_runs_where_that_lies_and_a_typed_check_where_it_was_typed(
    kapelle: Instance, tmp_path: Path
) -> None:
    """In a sub-directory, in a monorepo with a .kapelle in a package, in runs and in merges."""
    top = 'checks = ["./check.sh"]\n[workspace]\nsetup = "./setup.sh"\ncopy = [".env"]\n'
    inner = 'checks = [{command = "test -f ../b/.env && test -f here", directory = "deep"}]\n'
    repository = make_repository(
        tmp_path / "monorepo",
        {
            "setup.sh": "#!/bin/sh\ntouch made-by-setup\n",
            "check.sh": "#!/bin/sh\ntest -f made-by-setup && test -f .env\n",
            "packages/a/only-here": "",
            "packages/b/deep/here": "",
            ".gitignore": "made-by-setup\n.env\n",
            ".kapelle/config.toml": top,
            "packages/b/.kapelle/config.toml": inner.replace("../b", "..")
            + '[workspace]\nsetup = "test -f deep/here"\ncopy = [".env"]\n',
        },
    )
    for script in ("setup.sh", "check.sh"):
        (repository / script).chmod(0o755)
    git(repository, "commit", "--quiet", "--all", "--message=Executable")
    for place in (repository, repository / "packages/b"):
        (place / ".env").write_text("A=1\n")
    package, nested = repository / "packages/a", repository / "packages/b/deep"

    part = '[[do]]\nwrite = "new.txt"'
    configured = run(kapelle, package, part)
    assert configured["status"] == "completed", configured["reason"]
    worktree = configured["workspace"]["path"]
    assert [check["directory"] for check in checks_of(configured)] == [worktree]

    typed = run(kapelle, package, part, "--check", "test -f only-here")
    assert typed["status"] == "completed", typed["reason"]
    worktree = typed["workspace"]["path"]
    assert [check["directory"] for check in checks_of(typed)] == [f"{worktree}/packages/a"]
    shown = kapelle.cli("status", typed["id"]).stdout
    assert "test -f only-here in packages/a" in shown

    inside = run(kapelle, nested, part)
    assert inside["status"] == "completed", inside["reason"]
    worktree = inside["workspace"]["path"]
    assert [check["directory"] for check in checks_of(inside)] == [f"{worktree}/packages/b/deep"]

    # The base moves, so the set-up and the checks are made once more on the result of the merge.
    kapelle.cli("merge", inside["id"], check=True)
    merged = kapelle.post(f"/tasks/{configured['id']}/merge", {})
    # The set-up is not counted as a check.
    assert [(check["name"], check["passed"]) for check in merged["checks"]] == [
        ("./check.sh", True)
    ]

    loop = ("loop", "Play.\n```rehearsal\n" + part + "\n```", "--until", "test -f only-here")
    looped = kapelle.cli(*loop, "-a", "rehearsal", "-f", cwd=package)
    assert looped.returncode == 0, looped.stdout + looped.stderr


def test_a_check_may_name_a_directory_inside_of_the_repository(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository", {"sub/here": "", "README.md": "# x\n"})
    part = 'Play.\n```rehearsal\n[[do]]\nrun = "rm -r sub"\n```'
    check = {"command": "test -f here", "directory": "sub"}
    for wrong in ("..", "/sub", "missing"):
        with pytest.raises(ApiError):
            kapelle.submit("x", repository, checks=[{**check, "directory": wrong}])
    gone = kapelle.wait(kapelle.submit(part, repository, checks=[check]))
    assert [(check["passed"], "sub" in check["directory"]) for check in checks_of(gone)] == [
        (False, True)
    ], gone


def test_a_failed_command_shows_its_lines_without_the_noise_of_npm(
    kapelle: Instance, tmp_path: Path
) -> None:
    noise = "".join(f"npm error line {number}\n" for number in range(30))
    script = f"echo Cannot find module m\nprintf '{noise}'\nexit 1\n".replace("\n'", "\\n'")
    repository = make_repository(
        tmp_path / "web",
        {"package.json": "{}", "test.sh": script, ".gitignore": "node_modules\n"},
    )
    (repository / "node_modules").mkdir()
    failed = run(kapelle, repository, _MEND, "--check", "sh test.sh")
    shown = kapelle.cli("status", failed["id"]).stdout
    assert "Cannot find module m" in shown
    assert "npm error" not in shown
    assert "node_modules exists in your checkout" in checks_of(failed)[0]["output"]

    (repository / ".kapelle").mkdir()
    setup = 'workspace.setup = "printf \\"one\\\\ntwo\\\\n\\" >&2; exit 3"\n'
    (repository / ".kapelle" / "config.toml").write_text(setup, encoding="utf-8")
    unset = run(kapelle, repository, _MEND)
    assert unset["reason"].splitlines()[1:3] == ["one", "two"]
    assert "\n    one\n    two\n" in kapelle.cli("status", unset["id"]).stdout
