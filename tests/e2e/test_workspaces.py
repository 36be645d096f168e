"""Worktrees and merging as a user sees them, also in a repository that means harm."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import (
    YES,
    answer,
    files_on_branch,
    on_branch,
    play,
    rest,
    rule,
    start,
    with_playbook,
)
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git, make_repository

_WRITE = '[[do]]\nwrite = "{name}"\ncontent = "{content}"'


def _write(name: str, content: str = "x") -> str:
    return _WRITE.format(name=name, content=content)


def test_a_worktree_keeps_the_users_checkout_untouched_until_the_merge(
    kapelle: Instance, repository: Path
) -> None:
    (repository / "uncommitted.txt").write_text("mine", encoding="utf-8")
    task_id = kapelle.play(_write("new.txt", "theirs"), repository)
    task = kapelle.wait(task_id)
    assert task["workspace"]["kind"] == "worktree"
    assert task["workspace"]["branch"] == f"kapelle/{task_id}"
    assert not (repository / "new.txt").exists()
    assert git(repository, "status", "--porcelain") == "?? uncommitted.txt"
    diff = kapelle.get(f"/tasks/{task_id}/diff")
    assert diff["files"] == ["new.txt"]
    assert "+theirs" in diff["patch"]
    done = kapelle.cli("merge", task_id, "--json")
    assert done.returncode == 0, done.stderr
    merged = json.loads(done.stdout)
    assert merged["base"] == "main"
    assert git(repository, "merge-base", "--is-ancestor", merged["commit"], "main") == ""
    assert (repository / "new.txt").read_text(encoding="utf-8") == "theirs"
    assert (repository / "uncommitted.txt").read_text(encoding="utf-8") == "mine"


def test_only_completed_work_is_merged(kapelle: Instance, repository: Path) -> None:
    task_id = kapelle.play(_write("a.txt"), repository, checks=["false"])
    kapelle.wait(task_id)
    with pytest.raises(ApiError) as caught:
        kapelle.post(f"/tasks/{task_id}/merge")
    assert caught.value.status == 409
    assert "only verified work" in caught.value.body["error"]["message"]


def test_a_conflict_is_named_and_leaves_the_base_as_it_was(
    kapelle: Instance, repository: Path
) -> None:
    tasks = [kapelle.play(_write("same.txt", str(number)), repository) for number in range(2)]
    for task_id in tasks:
        assert kapelle.wait(task_id)["status"] == "completed"
    kapelle.post(f"/tasks/{tasks[0]}/merge")
    before = git(repository, "rev-parse", "main")
    with pytest.raises(ApiError) as caught:
        kapelle.post(f"/tasks/{tasks[1]}/merge")
    assert caught.value.body["error"]["code"] == "merge_conflict"
    assert "same.txt" in caught.value.body["error"]["message"]
    assert git(repository, "rev-parse", "main") == before
    assert git(repository, "status", "--porcelain") == ""


def test_files_are_copied_and_linked_in_and_a_setup_command_runs_first(
    kapelle: Instance, repository: Path
) -> None:
    (repository / ".env").write_text("A=1", encoding="utf-8")
    (repository / "node_modules").mkdir()
    (repository / "node_modules" / "left-pad.js").write_text("pad", encoding="utf-8")
    (repository / ".kapelle").mkdir()
    (repository / ".kapelle" / "config.toml").write_text(
        '[workspace]\ncopy = [".env"]\nlink = ["node_modules"]\nsetup = "echo ready > setup.txt"\n',
        encoding="utf-8",
    )
    part = '[[do]]\nrun = "cat .env node_modules/left-pad.js setup.txt"\n' + _write("w")
    task = kapelle.wait(kapelle.play(part, repository))
    assert task["status"] == "completed", task["reason"]
    assert sorted(kapelle.get(f"/tasks/{task['id']}/diff")["files"]) == ["setup.txt", "w"]


def test_a_failing_setup_command_fails_the_task_with_its_words(
    kapelle: Instance, repository: Path
) -> None:
    (repository / ".kapelle").mkdir()
    (repository / ".kapelle" / "config.toml").write_text(
        '[workspace]\nsetup = "echo no compiler >&2; exit 4"\n', encoding="utf-8"
    )
    task = kapelle.wait(kapelle.play(_write("a"), repository))
    assert task["status"] == "failed"
    assert "exit code 4" in task["reason"]
    assert "no compiler" in task["reason"]
    assert task["attempts"][0]["exit"]["kind"] == "not_started"


def test_names_that_look_like_options_or_shell_code_are_harmless(
    kapelle: Instance, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    evil = f"--upload-pack=touch${{IFS}}{canary}"
    repository = make_repository(
        tmp_path / f"$(touch {canary}) -rf", {"--help": "x", "-x y'\"": "z"}
    )
    git(repository, "update-ref", f"refs/heads/{evil}", "HEAD")
    task_id = kapelle.play(
        _write("--option; touch canary"),
        repository,
        base=evil,
        title=f"--title $(touch {canary}) `touch {canary}`",
        tags=["--tag", "; touch canary"],
    )
    task = kapelle.wait(task_id)
    assert task["status"] == "completed", task["reason"]
    assert task["workspace"]["base"] == evil
    kapelle.post(f"/tasks/{task_id}/merge")
    assert "--option; touch canary" in git(
        repository, "ls-tree", "--name-only", f"refs/heads/{evil}"
    )
    assert kapelle.cli("list", "--tag", "--tag").returncode in {0, 2}
    for wrong in ("--exec=touch canary", "no-such-branch", "main..main", "-"):
        with pytest.raises(ApiError, match="422"):
            kapelle.play(_write("a"), repository, base=wrong)
    assert not canary.exists()
    assert [path for path in tmp_path.rglob("canary") if ".git" not in path.parts] == []


def test_hooks_and_filters_in_the_repository_run_nothing_of_ours(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = make_repository(
        tmp_path / "repository",
        {".gitattributes": "* diff=evil\n*.key filter=evil\n", "a.key": "secret\n"},
    )
    canary = tmp_path / "canaries"
    canary.mkdir()
    plant = f"""
import os, pathlib
own = pathlib.Path(".git").absolute()
hooks = own / "evil-hooks"
hooks.mkdir()
for name in ("post-checkout", "pre-commit", "post-commit", "reference-transaction", "post-merge",
             "post-index-change", "pre-merge-commit", "commit-msg", "prepare-commit-msg"):
    hook = hooks / name
    hook.write_text("#!/bin/sh\\ntouch {canary}/hook-" + name + "\\n")
    hook.chmod(0o755)
for config in (own / "config", pathlib.Path("{repository}/.git/config")):
    config.write_text(config.read_text() + f'''
[core]
    hooksPath = {{hooks}}
    fsmonitor = touch {canary}/fsmonitor
    pager = touch {canary}/pager
    editor = touch {canary}/editor
[filter "evil"]
    clean = touch {canary}/clean; cat
    smudge = touch {canary}/smudge; cat
[diff]
    external = touch {canary}/external
[diff "evil"]
    textconv = touch {canary}/textconv; cat
[merge "evil"]
    driver = touch {canary}/driver
[commit]
    gpgSign = true
[gpg]
    program = touch {canary}/gpg
''')
pathlib.Path("work.txt").write_text("work")
"""
    script = tmp_path / "plant.py"
    script.write_text(plant, encoding="utf-8")
    task_id = kapelle.play(
        f'[[do]]\nrun = "python3 {script}"', repository, checks=["diff_not_empty"]
    )
    task = kapelle.wait(task_id)
    assert task["status"] == "completed", task["reason"]
    for path in canary.iterdir():
        path.unlink()  # the agent's own git may have run some
    kapelle.get(f"/tasks/{task_id}/diff")
    second = kapelle.play(_write("more.txt"), repository)
    assert kapelle.wait(second)["status"] == "completed"
    kapelle.post(f"/tasks/{second}/requeue")
    kapelle.wait(second)
    kapelle.post(f"/tasks/{task_id}/merge")
    kapelle.post(f"/tasks/{second}/merge")
    kapelle.post(f"/tasks/{task_id}/archive")
    assert list(canary.iterdir()) == []
    git(repository, "-c", "commit.gpgSign=false", "status")
    assert list(canary.iterdir()) != [], "the traps would have worked on a careless caller"


def test_what_the_setup_made_is_not_the_agents_work(kapelle: Instance, repository: Path) -> None:
    (repository / ".kapelle").mkdir()
    (repository / ".kapelle" / "config.toml").write_text(
        '[workspace]\nsetup = "echo ready > setup.txt"\n', encoding="utf-8"
    )
    lazy = kapelle.play('[[do]]\nresult = "done"', repository, checks=["diff_not_empty"])
    busy = kapelle.play(_write("a.txt"), repository, checks=["diff_not_empty"])
    assert kapelle.wait(lazy)["status"] == "failed"
    assert kapelle.wait(busy)["status"] == "completed"


def test_commits_that_nobody_verified_are_not_merged(kapelle: Instance, repository: Path) -> None:
    task_id = kapelle.play(_write("a.txt", "good"), repository, checks=["grep good a.txt"])
    worktree = Path(kapelle.wait(task_id)["workspace"]["path"])
    (worktree / "a.txt").write_text("bad", encoding="utf-8")
    git(worktree, "commit", "--quiet", "--all", "--message=Later")
    with pytest.raises(ApiError, match="unverified commits"):
        kapelle.post(f"/tasks/{task_id}/merge")
    kapelle.post(f"/tasks/{task_id}/merge", {"force": True})
    assert git(repository, "show", "main:a.txt") == "bad"


def test_force_merges_what_a_failed_task_left(kapelle: Instance, repository: Path) -> None:
    task_id = kapelle.play(_write("a.txt") + '\n[[do]]\nfail = "no"', repository)
    assert kapelle.wait(task_id)["status"] == "failed"
    kapelle.post(f"/tasks/{task_id}/merge", {"force": True})
    assert git(repository, "show", "main:a.txt") == "x"


def test_isolation_is_never_dropped_in_silence(kapelle: Instance, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    bare = tmp_path / "bare.git"
    bare.mkdir()
    git(bare, "init", "--quiet", "--bare")
    for directory in (empty, bare, empty / ".git"):
        done = kapelle.cli("run", "hi", "--agent", "rehearsal", "--directory", str(directory))
        assert done.returncode == 2, directory
        assert "--in-place" in done.stderr
    with_base = ("run", "hi", "--agent", "rehearsal", "--base", "no-such-branch")
    repository = make_repository(tmp_path / "repository")
    done = kapelle.cli(*with_base, "--directory", str(repository))
    assert done.returncode == 2
    assert "no-such-branch" in done.stderr
    assert kapelle.get("/tasks?status=&tag=&project=&limit=&cursor=")["tasks"] == []


def test_a_patch_survives_any_encoding(kapelle: Instance, repository: Path) -> None:
    part = "[[do]]\nrun = \"printf 'caf\\\\351\\\\n' > latin.txt\""
    task_id = kapelle.play(part, repository)
    assert kapelle.wait(task_id)["status"] == "completed"
    response, patch = kapelle.request("GET", f"/tasks/{task_id}/patch")
    assert response.status == 200
    assert b"+caf\xe9\n" in patch


# Edits, deletes, commits, makes and moves and removes branches, and cannot push.
VANDAL = {
    "run": "set -e; echo mine > README.md; rm kept; echo new > more; git add -A; "
    "git -c user.name=v -c user.email=v@v commit -qm mine; git branch made; git tag forged; "
    "git update-ref refs/heads/main HEAD; git update-ref -d refs/heads/other; "
    "for one in $(git for-each-ref --format='%(refname)' refs/heads/kapelle refs/kapelle); "
    "do git update-ref -d $one; done; "
    "! git push -q origin HEAD:refs/heads/pushed; echo left > uncommitted"
}


def _prepared(repository: Path, **files: str) -> tuple[str, str]:
    """The repository with what the vandal would spoil: what is to be the same afterwards."""
    for name, text in {"kept": "as it was\n", **files}.items():
        (repository / name).write_text(text, encoding="utf-8")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "before")
    git(repository, "branch", "other", "HEAD~1")
    git(repository, "remote", "add", "origin", str(repository))
    return _state(repository)


def _state(repository: Path) -> tuple[str, str]:
    refs = git(repository, "for-each-ref").splitlines()
    ours = [one for one in refs if "kapelle/" not in one and "heads/feature/" not in one]
    return "\n".join(ours), git(repository, "status", "--porcelain")


def test_who_only_reports_reaches_nothing(kapelle: Instance, repository: Path) -> None:
    """It edits, deletes, commits, pushes, moves and makes branches; only its answer is left."""
    before = _prepared(repository)
    prompt = play(VANDAL, {"result": "all is well"})
    ended = kapelle.wait(kapelle.submit(prompt, repository, read_only=True))
    assert (ended["status"], ended["result"]) == ("completed", "all is well"), ended["reason"]
    assert ended["workspace"]["commit"] is None
    [warning] = [found["text"] for found in ended["attempts"][-1]["warnings"]]
    assert "has no read-only mode" in warning
    worktree = Path(ended["workspace"]["path"])
    assert (worktree / "kept").read_text(encoding="utf-8") == "as it was\n"
    assert not any(path.name.startswith("task.") for path in worktree.parent.iterdir())
    assert _state(repository) == before


JUDGED: dict[str, dict[str, Any]] = {
    "loop": {"prompt": "WORK", "eval_mode": "agent"},
    "best-of": {"prompt": "WORK", "count": 2},
    "team": {"goal": "All"},
    "orchestrate": {"goal": "All", "judge": "rehearsal"},
    "debate": {
        "prompt": "This?", "sides": ["rehearsal", "rehearsal"], "action": "WORK", "verify": True,
    },
    "tracks": {},
    "workflow": {"task": "All"},
}  # fmt: skip


def test_who_judges_in_a_pattern_reaches_nothing(kapelle: Instance, repository: Path) -> None:
    """All of them at once in one repository, each with a planner, reviewer or judge that spoils
    whatever it can."""
    work = {"id": "a", "title": "part a", "task": "WORK"}
    feature = {"id": 1, "name": "It", "steps": ["it is there"], "status": "open"}
    before = _prepared(repository, **{"features.json": json.dumps([feature])})
    yes = {**YES, "done": True, "reached": True, "reason": "seen", "reasoning": "seen", "winner": 1}
    agrees = {"verdict": "agree", "position": "This", "reasons": ["seen"]}
    step = {"step": 1, "passed": True, "evidence": "seen"}
    reports = {
        "You review work": {"summary": "I looked.", "done": [1]},
        "You judge|You review|Several agents did": yes,
        "You plan the work": {"subgoals": [work]},
        r"You conduct coding agents[\s\S]*turn 1 of": {"parts": [work]},
        "You conduct coding agents": {"done": True},
        "You are side": agrees,
        "the other side has acted": {"holds": True},
        "Verify this": {"steps": [step]},
    }
    plan = "## Plan\n- [ ] it is there, check: `test -f work.txt`\n## Contract\n- Be brief.\n"
    book = [rule(match, VANDAL, answer(said)) for match, said in reports.items()]
    book += [rule("You prepare work", VANDAL, {"result": plan})]
    book += [rule(".", {"run": "echo done >> work.txt"}, {"result": "made"})]
    with_playbook(kapelle, "\n".join(book))
    started = {name: start(kapelle, name, repository, **spec) for name, spec in JUDGED.items()}
    for name, run_id in started.items():
        run = rest(kapelle, run_id, 240)
        assert run["status"] == "completed", (name, run["reason"])
        files = files_on_branch(repository, run)
        assert {"work.txt", "kept"} <= files, name
        assert not files & {"more", "uncommitted"}, name
        assert on_branch(repository, run, "README.md") != "mine\n", name
    assert _state(repository) == before


def test_in_place_nobody_can_be_trusted_to_only_report(kapelle: Instance, tmp_path: Path) -> None:
    with pytest.raises(ApiError) as caught:
        kapelle.submit("look", tmp_path, read_only=True)
    assert "has no read-only mode" in caught.value.body["error"]["message"]
    with pytest.raises(ApiError) as caught:
        kapelle.submit("look", tmp_path, tools=["Read"])
    assert "cannot be given a list of tools" in caught.value.body["error"]["message"]


def test_outside_of_a_repository_work_in_place_is_refused_where_much_can_be_lost(
    kapelle: Instance, tmp_path: Path
) -> None:
    """In the home, above it, and where repositories lie; elsewhere a warning is given."""
    home, plain = kapelle.user_home, tmp_path / "plain"
    plain.mkdir()
    make_repository(tmp_path / "sources" / "group" / "one")
    prompt = 'Play.\n```rehearsal\n[[do]]\nwrite = "new.txt"\n```'
    for place in (home, home.parent, Path("/"), tmp_path / "sources"):
        refused = kapelle.cli("run", prompt, "-a", "rehearsal", cwd=place)
        assert (refused.returncode, refused.stdout) == (2, ""), place
        assert "--in-place" in refused.stderr
        spec = {"prompt": prompt, "directory": str(place), "agent": "rehearsal"}
        schedule = {"kind": "task", "spec": spec, "every_s": 60}
        run = {"pattern": "loop", "spec": {**spec, "checks": ["true"]}}
        for path, body in (("/tasks", spec), ("/runs", run), ("/schedules", schedule)):
            with pytest.raises(ApiError) as error:
                kapelle.post(path, body)
            assert error.value.status == 422, path
    assert not list(home.glob("new.txt"))

    asked = kapelle.cli("run", prompt, "-a", "rehearsal", "--in-place", "-f", cwd=home)
    assert (home / "new.txt").exists(), asked.stderr
    assert kapelle.task(asked.stdout.split()[0])["attempts"][0]["warnings"] == []

    warned = kapelle.cli("run", prompt, "-a", "rehearsal", cwd=plain)
    assert "not in a git repository" in warned.stderr
    task = kapelle.wait(warned.stdout.strip())
    assert task["workspace"]["in_place_by_default"]
    assert [one["what"] for one in task["attempts"][0]["warnings"]] == ["in_place"]


def test_work_of_a_moved_repository_names_the_remedy(kapelle: Instance, repository: Path) -> None:
    task_id = kapelle.play(_write("new.txt"), repository)
    assert kapelle.wait(task_id)["status"] == "completed"
    moved = repository.rename(repository.with_name("moved"))
    lost = kapelle.cli("merge", task_id)
    assert lost.returncode != 0
    assert f"kapelle relocate {repository}" in lost.stderr
    kapelle.cli("relocate", str(repository), str(moved), check=True)
    kapelle.cli("merge", task_id, check=True)
    assert (moved / "new.txt").exists()


def test_what_a_check_leaves_behind_is_no_work_of_the_next_attempt(
    kapelle: Instance, repository: Path
) -> None:
    check = "mkdir -p out && date > out/report && date > report.out && test -f one.txt"
    task_id = kapelle.play(
        '[[rule]]\nattempt = 1\ndo = [{ write = "one.txt", content = "1" }]\n'
        '[[rule]]\ndo = [{ write = "two.txt", content = "2" }]',
        repository,
        workspace="worktree",
        checks=[check],
    )
    kapelle.wait(task_id)
    assert kapelle.get(f"/tasks/{task_id}/diff")["files"] == ["one.txt"]
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "and two"})
    task = kapelle.wait(task_id)
    assert (task["status"], task["verified"]) == ("completed", True)
    assert kapelle.get(f"/tasks/{task_id}/diff")["files"] == ["one.txt", "two.txt"]
    assert git(repository, "diff", "--name-only", "main", task["workspace"]["branch"]).split() == [
        "one.txt",
        "two.txt",
    ]
