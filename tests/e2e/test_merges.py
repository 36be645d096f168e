"""Merging into a base that has moved: verified as merged, in order, and never half."""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kapelle as api
from tests.e2e.support.ensembles import perform, rule, with_playbook
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git, make_repository

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
    task = kapelle.task(two)
    assert (task["merged_at"], task["merge_refused"]["exit_code"]) == (None, 1)
    shown = kapelle.cli("status", two, check=True).stdout
    assert "refused: echo looking; test ! -f only_a.txt fails on what main would be" in shown
    assert events[-1]["data"]["commit"][:12] in shown
    assert f"kapelle resume {two} --merge" in shown
    assert "kapelle merge" not in shown
    forced = kapelle.cli("merge", two, "--no-verify")
    assert forced.returncode == 0, forced.stderr
    assert kapelle.task(two)["merge_refused"] is None
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
    [made] = merged["checks"]
    assert made["passed"]
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
    with pytest.raises(ApiError, match="with other options"):
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


def test_ten_branches_in_one_command_those_that_pass_together_are_in(
    kapelle: Instance, repository: Path
) -> None:
    """The third and the seventh cannot stand beside the first; the eighth conflicts with it."""
    checks = {2: "test ! -f n0", 6: "echo no room; test ! -f n0"}
    names = [f"n{number}" for number in range(10)]
    names[7] = "n0"
    tasks = [
        kapelle.play(
            _WRITE.format(name=name, content=f"of {number}"),
            repository,
            checks=[checks.get(number, "true"), f"test $(ls n? | wc -l) -le {number + 1}"],
        )
        for number, name in enumerate(names)
    ]
    for task_id in tasks:
        assert kapelle.wait(task_id, 120)["status"] == "completed"
    result = kapelle.cli("merge", *tasks)
    assert result.returncode == 1
    assert "7 of 10 are merged." in result.stderr
    assert "no room\n[exit code 1]" in result.stderr
    assert f"`kapelle resume {tasks[7]} --merge` has its agent resolve it" in result.stderr
    wanted = [tasks[number] for number in (0, 1, 3, 4, 5, 8, 9)]
    order = git(repository, "log", "--reverse", "--first-parent", "--format=%b", "main")
    assert [line.removeprefix("Task: ") for line in order.split()[1::2]] == wanted
    assert git(repository, "show", "main:n0") == "of 0"
    assert git(repository, "status", "--porcelain") == ""
    assert [kapelle.task(task_id)["merged_at"] is not None for task_id in tasks] == [
        task_id in wanted for task_id in tasks
    ]
    assert result.stdout.split()[-1] == git(repository, "rev-parse", "main")
    nothing_is_left(kapelle, repository)


def test_several_clients_at_once_are_served_one_after_another(
    kapelle: Instance, repository: Path
) -> None:
    """Each check wants all that is on main to have been merged before it."""
    there = "git log --format=%b | grep Task: | sort -u | wc -l"
    check = f"test $(ls n? | wc -l) -eq $({there})"
    tasks = [done(kapelle, repository, f"n{number}", check) for number in range(3)]
    move_base(repository)
    threads = [
        threading.Thread(target=kapelle.post, args=(f"/tasks/{task_id}/merge?timeout_s=55",))
        for task_id in tasks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in repository.glob("n?")) == ["n0", "n1", "n2"]
    assert git(repository, "rev-list", "--count", "--merges", "main") == "3"


def conflicting(kapelle: Instance, repository: Path, agent: str, **spec: Any) -> str:
    """A completed task of a command agent whose branch conflicts with main."""
    task_id = kapelle.submit("Write", repository, agent=agent, **spec)
    task = kapelle.wait(task_id)
    assert task["status"] == "completed", task["reason"]
    move_base(repository, "same.txt")
    refused = kapelle.cli("merge", task_id)
    assert refused.returncode == 1
    assert "conflict in same.txt" in refused.stderr
    assert f"kapelle resume {task_id} --merge" in refused.stderr
    return task_id


def command_agent(kapelle: Instance, name: str, script: str) -> str:
    """An agent that writes its line at first, and does what the script says when it is resumed."""
    text = f"test -f same.txt || {{ echo theirs > same.txt; exit 0; }}\n{script}"
    (kapelle.home.root / f"{name}.sh").write_text(text, encoding="utf-8")
    command = json.dumps(["sh", str(kapelle.home.root / f"{name}.sh"), "{prompt}"])
    with kapelle.home.config.open("a", encoding="utf-8") as config:
        config.write(f'[agents.{name}]\ntype = "command"\ncommand = {command}\n')
    return name


def test_an_agent_resolves_the_conflict_and_the_task_is_merged(
    kapelle: Instance, repository: Path
) -> None:
    script = 'echo "$1" > told.txt\nprintf "mine\\ntheirs\\n" > same.txt'
    agent = command_agent(kapelle, "resolver", script)
    task_id = conflicting(kapelle, repository, agent, checks=["grep theirs same.txt"])
    seen = json.loads(kapelle.cli("merge", task_id, "--preview", "--json", check=True).stdout)
    assert (seen["ahead"], seen["behind"], seen["conflicts"]) == (1, 1, ["same.txt"])
    resumed = kapelle.cli("resume", task_id, "--merge", "Keep both lines.")
    assert resumed.returncode == 0, resumed.stderr
    task = kapelle.wait(task_id)
    assert task["status"] == "completed", task["reason"]
    assert len(task["attempts"]) == 2
    diff = kapelle.get(f"/tasks/{task_id}/diff")
    assert diff["files"] == ["same.txt", "told.txt"]
    assert "+theirs" in diff["patch"]
    assert "-mine" not in diff["patch"]
    merged = kapelle.cli("merge", task_id)
    assert merged.returncode == 0, merged.stderr
    assert (repository / "same.txt").read_text(encoding="utf-8") == "mine\ntheirs\n"
    told = (repository / "told.txt").read_text(encoding="utf-8")
    assert "- same.txt" in told
    assert "Keep both lines." in told


def test_the_base_is_taken_in_by_the_attempt_and_once(tmp_path: Path) -> None:
    """Not by the request: until an attempt is claimed the branch stays, and a death amid it leaves
    an attempt that goes on."""
    repository = make_repository(tmp_path / "repository")
    kapelle = Instance(tmp_path / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="1")
    try:
        kapelle.start()
        script = 'printf "%s" "$1" > told.txt\nprintf "mine\\ntheirs\\n" > same.txt'
        task_id = conflicting(kapelle, repository, command_agent(kapelle, "resolver", script))
        branch = kapelle.task(task_id)["workspace"]["branch"]
        before = git(repository, "rev-parse", branch)
        other = kapelle.play("[[do]]\nsleep = 60", tmp_path)  # in place
        kapelle.wait_for_status(other, "running")
        kapelle.post(f"/tasks/{task_id}/resume", {"merge": True})
        with pytest.raises(ApiError, match="is queued; it cannot be resumed"):
            kapelle.post(f"/tasks/{task_id}/resume", {"merge": True})
        assert git(repository, "rev-parse", branch) == before
        kapelle.kill()
        kapelle.start(KAPELLE_FAILPOINT="prepare_after_workspace@1")
        kapelle.post(f"/tasks/{other}/cancel")
        kapelle.await_death()
        assert git(repository, "rev-parse", f"{branch}^1") == before
        kapelle.start()
        task = kapelle.wait(task_id)
        assert (task["status"], len(task["attempts"])) == ("completed", 2), task["reason"]
        assert task["attempts"][1]["mode"] == "resume"
        assert git(repository, "rev-list", "--count", "--merges", f"main..{branch}") == "1"
        told = git(repository, "show", f"{branch}:told.txt")
        assert told.count("It was merged into your branch") == 1
        assert kapelle.get(f"/tasks/{task_id}/diff")["files"] == ["same.txt", "told.txt"]
    finally:
        kapelle.destroy()


def test_an_agent_that_leaves_markers_behind_has_not_completed(
    kapelle: Instance, repository: Path
) -> None:
    agent = command_agent(kapelle, "sloppy", "cp same.txt other.txt; echo more >> same.txt")
    task_id = conflicting(kapelle, repository, agent)
    with api.connect(home=kapelle.home.root, start=False) as client:
        client.tasks.resume(task_id, merge=True)
        task = client.tasks.wait(task_id)
        assert (task.status, task.reason) == ("failed", "conflicts are not resolved: same.txt")
        with pytest.raises(api.Conflict, match="only verified work"):
            client.tasks.merge(task_id)
        # One who does nothing at all has not resolved it either.
        (kapelle.home.root / "sloppy.sh").write_text("true", encoding="utf-8")
        client.tasks.resume(task_id, merge=True)
        assert client.tasks.wait(task_id).status == "failed"
    assert git(repository, "show", "main:same.txt") == "mine"


def test_how_a_merge_would_go_can_be_asked(kapelle: Instance, repository: Path) -> None:
    task_id = done(kapelle, repository, "README.md", "true", content="theirs")
    move_base(repository)
    (repository / "README.md").write_text("mine\n", encoding="utf-8")
    base = git(repository, "rev-parse", "main")
    with api.connect(home=kapelle.home.root, start=False) as client:
        seen = client.tasks.preview_merge(task_id)
        assert (seen.base, seen.ahead, seen.behind) == ("main", 1, 1)
        assert (seen.conflicts, seen.dirty, seen.check_again) == ([], ["README.md"], True)
        git(repository, "checkout", "README.md")
        shown = kapelle.cli("merge", task_id, "--preview")
        assert "main: 1 ahead of it, 1 behind" in shown.stdout
        assert git(repository, "rev-parse", "main") == base
        client.tasks.merge(task_id, style="squash", message="Say it")
        assert client.tasks.preview_merge(task_id).already is False
    assert git(repository, "log", "-1", "--format=%s|%P", "main") == f"Say it|{base}"
    assert git(repository, "branch", "--list", "kapelle/*") == ""
    assert kapelle.get(f"/tasks/{task_id}/diff")["files"] == ["README.md"]


@pytest.mark.parametrize(
    ("pattern", "spec"),
    [
        ("loop", {"prompt": "Write it", "until": ["test -f n0 -a ! -f meanwhile.txt"]}),
        ("pipeline", {"steps": ["Write it",
                                {"prompt": "Look", "checks": ["test ! -f meanwhile.txt"]}]}),
    ],
)  # fmt: skip
def test_what_decides_about_a_run_is_checked_on_the_result(
    kapelle: Instance, repository: Path, pattern: str, spec: dict[str, Any]
) -> None:
    with_playbook(kapelle, rule("Write it", {"write": "n0", "content": "x"}))
    run = perform(kapelle, pattern, repository, **spec)
    assert run["status"] == "completed", run["reason"]
    base = move_base(repository)
    refused = kapelle.cli("merge", run["id"])
    assert refused.returncode == 1
    assert "meanwhile.txt` fails on what main would be" in refused.stderr
    assert git(repository, "rev-parse", "main") == base
    nothing_is_left(kapelle, repository)
    assert kapelle.cli("merge", run["id"], "--rebase", "--no-verify").returncode == 0
    assert git(repository, "rev-list", "--count", "--merges", "main") == "0"


def test_a_persons_merge_is_signed_as_their_own_configuration_says(
    kapelle: Instance, repository: Path
) -> None:
    """Never by what the repository itself configures; what cannot be signed changes nothing."""
    home = kapelle.user_home
    key, program = home / "key", home / "never"
    keygen = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", str(key))
    subprocess.run(keygen, check=True)
    git(repository, "config", "commit.gpgsign", "true")
    git(repository, "config", "gpg.program", str(program))
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    hook.chmod(0o755)

    unsigned = kapelle.cli("merge", done(kapelle, repository, "a.txt"), "--json", check=True)
    facts = json.loads(unsigned.stdout)
    assert (facts["signed"], facts["signature_missing"]) == (False, True)
    assert facts["hooks_not_run"] == ["pre-commit"]

    config = home / ".gitconfig"
    config.write_text(
        "[user]\n\tname = Me\n\temail = me@localhost\n\tsigningkey = ~/key.pub\n"
        "[commit]\n\tgpgsign = true\n[gpg]\n\tformat = ssh\n",
        encoding="utf-8",
    )
    signed = json.loads(
        kapelle.cli("merge", done(kapelle, repository, "b.txt"), "--json", check=True).stdout
    )
    assert signed["signed"]
    signers = home / "signers"
    signers.write_text(f"me@localhost {key.with_suffix('.pub').read_text()}", encoding="utf-8")
    allowed = f"gpg.ssh.allowedSignersFile={signers}"
    shown = git(repository, "-c", allowed, "log", "-1", "--format=%G? %an", signed["commit"])
    assert shown == "G Me"
    kapelle.env |= {"HOME": str(home)}
    looked = kapelle.cli("doctor", "--json", cwd=repository)
    names = {finding["name"] for finding in json.loads(looked.stdout)["findings"]}
    assert {"signatures", "hooks"} <= names

    key.unlink()
    third, before = done(kapelle, repository, "c.txt"), git(repository, "rev-parse", "main")
    refused = kapelle.cli("merge", third)
    assert refused.returncode == 2
    assert "could not be signed" in refused.stderr
    assert "git.sign never" in refused.stderr
    assert git(repository, "rev-parse", "main") == before
    kapelle.cli("config", "set", "git.sign", "never", check=True)
    kapelle.cli("merge", third, check=True)
    assert git(repository, "log", "-1", "--format=%G?", "main") == "N"


def undo(kapelle: Instance, task_id: str) -> dict[str, Any]:
    """The view of an undone merge, by the command."""
    told = kapelle.cli("merge", "--undo", task_id, "--json")
    assert told.returncode == 0, told.stderr
    view: dict[str, Any] = json.loads(told.stdout)
    return view


@pytest.mark.parametrize("style", ["merge", "squash", "rebase"])
def test_a_merge_is_undone_and_can_be_made_again(
    kapelle: Instance, repository: Path, style: str
) -> None:
    start = git(repository, "rev-parse", "main")
    task_id = done(kapelle, repository, "new.txt")
    kapelle.post(f"/tasks/{task_id}/merge", {"style": style})
    assert (repository / "new.txt").exists()

    # An uncommitted change that the undoing would lose keeps it from that.
    (repository / "new.txt").write_text("mine\n", encoding="utf-8")
    refused = kapelle.cli("merge", "--undo", task_id)
    assert (refused.returncode, "new.txt" in refused.stderr) == (2, True)
    assert (repository / "new.txt").read_text(encoding="utf-8") == "mine\n"
    git(repository, "checkout", "--", "new.txt")
    (repository / "README.md").write_text("edited\n", encoding="utf-8")

    view = undo(kapelle, task_id)
    assert (view["how"], view["commit"]) == ("moved_back", start)
    assert git(repository, "rev-parse", "main") == start
    assert git(repository, "status", "--porcelain") == "M README.md"
    task = kapelle.task(task_id)
    assert (task["merged_at"], task["merge_undone_at"] is not None) == (None, True)
    assert "merge undone" in kapelle.cli("status", task_id).stdout
    twice = kapelle.cli("merge", "--undo", task_id)
    assert (twice.returncode, "undone already" in twice.stderr) == (2, True)

    kapelle.post(f"/tasks/{task_id}/merge", {"style": style})
    move_base(repository)
    git(repository, "checkout", "--", "README.md")
    view = undo(kapelle, task_id)
    assert view["how"] == "reverted"
    assert not (repository / "new.txt").exists()
    assert (repository / "meanwhile.txt").exists()
    again = kapelle.post(f"/tasks/{task_id}/merge", {"style": style})
    assert again["already"] is False
    assert (repository / "new.txt").exists()
    assert (repository / "meanwhile.txt").exists()
    assert kapelle.task(task_id)["merge_undone_at"] is None


def test_an_undoing_that_conflicts_changes_nothing(kapelle: Instance, repository: Path) -> None:
    task_id = done(kapelle, repository, "new.txt")
    too_early = kapelle.cli("merge", "--undo", task_id)
    assert (too_early.returncode, "git revert" in too_early.stderr) == (2, False)
    assert f"{task_id} is not merged" in too_early.stderr
    kapelle.cli("merge", task_id, check=True)
    (repository / "new.txt").write_text("another\n", encoding="utf-8")
    git(repository, "commit", "--quiet", "--all", "--message=Another")
    before = git(repository, "rev-parse", "main")
    refused = kapelle.cli("merge", "--undo", task_id)
    assert (refused.returncode, "new.txt" in refused.stderr) == (1, True)
    assert git(repository, "rev-parse", "main") == before
    assert kapelle.task(task_id)["merged_at"] is not None
    nothing_is_left(kapelle, repository)


def test_a_pushed_merge_is_undone_by_a_commit(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    task_id = done(kapelle, repository, "new.txt")
    kapelle.cli("merge", task_id, check=True)
    git(repository, "update-ref", "refs/remotes/origin/main", "main")
    assert undo(kapelle, task_id)["how"] == "reverted"
    subject = git(repository, "log", "-1", "--format=%s", "main")
    assert subject.startswith('Revert "Merge')


def test_the_changes_of_merged_work_that_goes_on_are_what_is_new(
    kapelle: Instance, repository: Path
) -> None:
    task_id = done(kapelle, repository, "first.txt")
    merged = kapelle.cli("merge", task_id)
    assert "Git knows no name for you" in merged.stderr
    more = 'Play.\n```rehearsal\n[[do]]\nwrite = "second.txt"\ncontent = "x"\n```'
    kapelle.post(f"/tasks/{task_id}/resume", {"message": more})
    assert kapelle.wait(task_id)["status"] == "completed"
    assert kapelle.get(f"/tasks/{task_id}/diff")["files"] == ["second.txt"]
    for number, name in ((1, "first.txt"), (2, "second.txt")):
        shown = kapelle.cli("diff", task_id, "--attempt", f"{number}", "--json")
        assert json.loads(shown.stdout)["files"] == [name]
    unknown = kapelle.cli("diff", task_id, "--attempt", "3")
    assert "no attempt 3" in unknown.stderr
