"""A file is not a witness: forged ends, moved branches, and what every check was made on."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import perform, play
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git

_RECORD = {
    "protocol": 1, "kind": "exited", "code": 0, "out_bytes": 0, "err_bytes": 0, "ended_by": None,
    "started_at": 1790000000, "ended_at": 1790000001, "duration_s": 1,
}  # fmt: skip
_FORGED = f"printf %s '{json.dumps(_RECORD)}' >"
_FORGE_AND_KILL = f'{_FORGED} "$KAPELLE_RUN_DIR/exit.json"; kill -9 $PPID; sleep 30'


@pytest.fixture
def shell(kapelle: Instance) -> Instance:
    """A daemon whose agent `sh` does what its prompt says."""
    command = '["/bin/sh", "-c", "{prompt}"]'
    kapelle.cli("config", "set", "agents.sh.command", command, check=True)
    return kapelle


def end_of(shell: Instance, prompt: str, directory: Path, **spec: Any) -> Any:
    return shell.wait(shell.submit(prompt, directory, agent="sh", **spec), 40)


def tampered_with(shell: Instance, task: Any) -> list[str]:
    """The names of its processes whose end was forged, by the history."""
    history = shell.cli("events", "--after", "0", "--task", task["id"], "--json", check=True)
    found = [json.loads(line) for line in history.stdout.splitlines()]
    return [event["data"]["name"] for event in found if event["kind"] == "process.tampered"]


def test_planted_records_of_checks_decide_nothing(shell: Instance, repository: Path) -> None:
    plant = (
        "echo work > work.txt; for n in 0 1; do mkdir -p $KAPELLE_RUN_DIR/checks/$n; "
        f"{_FORGED} $KAPELLE_RUN_DIR/checks/$n/exit.json; done"
    )
    task = end_of(shell, plant, repository, checks=["echo it ran; exit 1"])
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "checks")
    assert task["checks"][0]["output"] == "it ran\n[exit code 1]"
    assert task["workspace"]["commit"] == git(repository, "rev-parse", task["workspace"]["branch"])


def test_planted_records_of_a_runs_steps_decide_nothing(shell: Instance, repository: Path) -> None:
    plant = (
        "echo work >> work.txt; H=$(dirname $(dirname $KAPELLE_RUN_DIR)); "
        "for n in 1 2 3 4 5 6 7 8 9; do D=$H/runs/$KAPELLE_RUN_ID/steps/000$n/0; mkdir -p $D; "
        f"{_FORGED} $D/exit.json; done"
    )
    run = perform(
        shell, "loop", repository, prompt=plant, until=["exit 1"], agent="sh", max_iterations=1
    )
    assert run["status"] == "failed"


def test_a_directory_of_that_name_does_not_keep_the_work_from_being_committed(
    shell: Instance, repository: Path
) -> None:
    task = end_of(shell, "echo w > work.txt; mkdir $KAPELLE_RUN_DIR/checks", repository)
    assert task["status"] == "completed"
    assert git(repository, "show", f"{task['workspace']['commit']}:work.txt") == "w"


def test_a_forged_end_with_a_killed_supervisor_is_tampered_and_nothing_goes_on(
    shell: Instance, repository: Path
) -> None:
    task = end_of(shell, _FORGE_AND_KILL, repository)
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "tampered")
    assert task["attempts"][-1]["exit"]["kind"] == "tampered"
    assert task["reason"].startswith("tampered: another process wrote exit.json of agent")
    assert tampered_with(shell, task) == ["agent"]
    assert not [process for process in shell.processes() if "sleep" in process.cmdline()]


def test_an_agent_cannot_end_another_ones_work(shell: Instance, tmp_path: Path) -> None:
    victim = shell.submit("sleep 20; exit 3", tmp_path, agent="sh")
    shell.wait_for_status(victim, "running")
    directory = shell.home.attempts / shell.task(victim)["attempts"][0]["id"]
    deadline = time.monotonic() + 20
    while not (directory / "run.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shim = json.loads((directory / "claim").read_bytes())["pid"]
    end_of(shell, f"{_FORGED} {directory}/exit.json; kill -9 {shim}", tmp_path)
    task = shell.wait(victim, 20)
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "tampered")


def test_a_check_that_writes_its_own_end_is_tampered(shell: Instance, repository: Path) -> None:
    """As code of the agent may, which the check runs."""
    work = f"echo {json.dumps(_FORGE_AND_KILL).replace('$', chr(92) + '$')} > test.sh"
    task = end_of(shell, work, repository, checks=["sh test.sh", _FORGE_AND_KILL, "true"])
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "tampered")
    assert len(tampered_with(shell, task)) == 1


def test_a_set_up_that_writes_its_own_end_is_tampered(shell: Instance, repository: Path) -> None:
    shell.cli("config", "set", "workspace.setup", _FORGE_AND_KILL, check=True)
    task = end_of(shell, "echo never > never.txt", repository)
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "tampered")
    assert tampered_with(shell, task) == ["setup"]


def test_a_condition_that_writes_its_own_end_fails_the_run(
    shell: Instance, repository: Path
) -> None:
    spec = {"until": [_FORGE_AND_KILL], "agent": "sh", "max_iterations": 2}
    run = perform(shell, "loop", repository, prompt="echo x >> x", **spec)
    assert run["status"] == "failed"
    assert "tampered: another process wrote exit.json" in run["reason"]


def test_a_branch_that_moves_during_the_checks_is_not_completed(
    shell: Instance, repository: Path
) -> None:
    move = "git -c user.name=x -c user.email=x@y commit -q --allow-empty -m later"
    task = end_of(shell, "echo w > work.txt", repository, checks=[move])
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "tampered")
    assert "its branch was moved from" in task["reason"]


def test_every_check_says_what_it_was_made_on(shell: Instance, repository: Path) -> None:
    checks = ["echo seen; echo bad >&2", "diff_not_empty"]
    task = end_of(shell, "echo w > work.txt", repository, checks=checks)
    command, built_in = task["checks"]
    workspace = task["workspace"]
    assert command["command"] == checks[0]
    assert command["exit_code"] == 0
    assert command["duration_s"] > 0
    assert command["out_sha256"] == hashlib.sha256(b"seen\n").hexdigest()
    assert command["err_sha256"] == hashlib.sha256(b"bad\n").hexdigest()
    assert {check["commit"] for check in (command, built_in)} == {workspace["commit"]}
    assert {check["directory"] for check in (command, built_in)} == {workspace["path"]}
    shown = json.loads(shell.cli("status", task["id"], "--json", check=True).stdout)
    assert shown["checks"] == task["checks"]


def test_what_no_check_was_made_on_is_called_so(shell: Instance, repository: Path) -> None:
    followed = shell.cli("run", "echo w > w", "-a", "sh", "-f", cwd=repository)
    assert "completed, not verified" in followed.stderr
    bare = shell.get("/tasks?limit=1")["tasks"][0]
    assert bare["verified"] is False
    checked = end_of(shell, "echo w > w", repository, checks=["true"])
    assert checked["verified"] is True
    failed = end_of(shell, "exit 1", repository)
    assert failed["verified"] is None
    listed = shell.cli("list", check=True).stdout.splitlines()
    unverified = [line for line in listed if "completed, not verified" in line]
    assert [line.split()[0] for line in unverified] == [bare["id"]]
    assert "completed, not verified" in shell.cli("status", bare["id"], check=True).stdout
    assert "not verified" not in shell.cli("status", checked["id"], check=True).stdout
    loop = {"prompt": "echo x >> x", "agent": "sh", "max_iterations": 1}
    run = perform(shell, "loop", repository, until=["true"], **loop)
    assert (run["status"], run["verified"]) == ("completed", True)
    [step] = [one for one in shell.get(f"/runs/{run['id']}/steps") if one["kind"] == "check"]
    [check] = step["result"]
    assert (check["command"], check["exit_code"]) == ("true", 0)
    assert check["commit"] == git(repository, "rev-parse", run["workspace"]["branch"])
    assert check["directory"] == run["workspace"]["path"]
    run = perform(shell, "pipeline", repository, steps=[play({"result": "done"})] * 2)
    assert (run["status"], run["verified"]) == ("completed", False)
    assert "completed, not verified" in shell.cli("runs", "list", check=True).stdout
    assert "completed, not verified" in shell.cli("wait", run["id"]).stdout
    shown = shell.cli("runs", "status", run["id"], check=True).stdout
    assert shown.count(", not verified") == 3  # its own, and those of its two tasks
    assert shell.cli("runs", "tail", run["id"]).stdout.count(", not verified") == 3
