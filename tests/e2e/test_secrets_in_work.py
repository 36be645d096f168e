"""A secret that Kapelle knows and an agent wrote into a file: not shown, and not merged."""

import base64
import subprocess
from pathlib import Path

import pytest

from tests.e2e.support.instance import ApiError, Instance, pauses
from tests.e2e.test_children import Speaker

SECRET = "hunter2/hunter2+x"
WRITE = '[[do]]\nwrite = "settings.txt"\ncontent = "password = {}\\n"'


def _worked(kapelle: Instance, repository: Path, content: str) -> str:
    task_id = kapelle.play(
        WRITE.format(content), repository, workspace="worktree", env={"DB_PASSWORD": SECRET}
    )
    assert kapelle.wait(task_id)["status"] == "completed"
    return task_id


def test_a_secret_is_neither_shown_in_a_diff_nor_merged(
    kapelle: Instance, repository: Path
) -> None:
    encoded = base64.b64encode(SECRET.encode()).decode()
    task_id = _worked(kapelle, repository, f"{SECRET} or {encoded}")
    patch = kapelle.request("GET", f"/tasks/{task_id}/patch")[1].decode()
    for shown in (kapelle.get(f"/tasks/{task_id}/diff")["patch"], patch):
        assert "+password = [redacted] or [redacted]" in shown
        assert SECRET not in shown
    with pytest.raises(ApiError) as refused:
        kapelle.post(f"/tasks/{task_id}/merge")
    assert refused.value.status == 409
    assert "a secret that Kapelle knows into settings.txt" in str(refused.value.body)
    done = kapelle.cli("merge", task_id)
    assert done.returncode != 0
    assert "--force" in done.stderr
    head = ["git", "-C", str(repository), "show", "main:settings.txt"]
    assert subprocess.run(head, capture_output=True, check=False).returncode != 0
    kapelle.post(f"/tasks/{task_id}/merge", {"force": True})
    assert SECRET in subprocess.run(head, capture_output=True, text=True, check=True).stdout


def test_a_secret_may_be_taken_out_of_a_repository(kapelle: Instance, repository: Path) -> None:
    (repository / "settings.txt").write_text(f"password = {SECRET}\nlast\n", encoding="utf-8")
    for command in (
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    task_id = _worked(kapelle, repository, "ask somebody")
    assert SECRET not in kapelle.get(f"/tasks/{task_id}/diff")["patch"]
    assert kapelle.post(f"/tasks/{task_id}/merge")["base"] == "main"


def test_no_secret_that_an_agent_was_given_is_merged(kapelle: Instance, repository: Path) -> None:
    """From the settings or the client's shell, and in a file that git takes for a binary one."""
    names = ("SET_TOKEN", "AGENT_TOKEN", "SHELL_TOKEN")
    values = {name: f"{name.lower()}-0123456789" for name in names}
    own = kapelle.home.config.read_text(encoding="utf-8") if kapelle.home.config.exists() else ""
    kapelle.cli("config", "set", "environment.set.SET_TOKEN", values["SET_TOKEN"], check=True)
    kapelle.cli("config", "set", "agents.rehearsal.env.AGENT_TOKEN", values["AGENT_TOKEN"])
    try:
        for name, value in values.items():
            shell = {"variables": {"SHELL_TOKEN": values["SHELL_TOKEN"]}}
            script = f'[[do]]\nwrite = "a.bin"\ncontent = "\\u0000 {value}\\n"'
            task_id = kapelle.play(script, repository, workspace="worktree", shell=shell)
            assert kapelle.wait(task_id)["status"] == "completed"
            with pytest.raises(ApiError, match=r"a secret that Kapelle knows into a\.bin"):
                kapelle.post(f"/tasks/{task_id}/merge")
            assert value not in kapelle.get(f"/tasks/{task_id}/diff")["patch"], name
    finally:
        kapelle.home.config.write_text(own, encoding="utf-8")


def test_an_agent_cannot_hand_a_secret_on_in_names(kapelle: Instance, repository: Path) -> None:
    """In the title and prompt of a task it asks for, a commit's message, a key, a file's name."""
    word = "hunter2-hunter2-x"
    env = {"DB_PASSWORD": word}
    commit = f"git add . && git -c user.name=x -c user.email=x commit -qm 'seven {word}'"
    script = (
        f'[[do]]\nwrite = "{word}.txt"\ncontent = "x\\n"\n[[do]]\nrun = "{commit}"\n'
        '[[do]]\nrun = "while [ ! -e {gate} ]; do sleep 0.05; done"'
    )
    gate = repository.parent / "gate"
    task_id = kapelle.play(
        script.replace("{gate}", str(gate)), repository, workspace="worktree", env=env
    )
    kapelle.wait_for_status(task_id, "running")
    speaker = Speaker.attempt(kapelle, task_id, repository)
    child = speaker.create(f"Play.\nuse {word}", title=f"with {word}")
    assert child["title"] == "with [redacted]"
    assert "use [redacted]" in child["prompt"]
    speaker.refused("invalid_input", "POST", "/notes", {"key": word, "value": "x"})
    speaker.call("POST", "/locks", {"paths": [f"p/{word}"], "reason": f"for {word}"})
    told = kapelle.cli("events", "--task", task_id).stdout
    assert "for [redacted]" in told
    assert word not in told
    gate.touch()
    assert kapelle.wait(task_id)["status"] == "completed"
    diff = kapelle.get(f"/tasks/{task_id}/diff")
    assert diff["files"] == ["[redacted].txt"]
    assert word not in diff["stat"]
    hits = kapelle.get("/search?query=seven&kind=commit")["hits"]
    assert [hit["text"] for hit in hits if hit["id"] == task_id] == ["seven [redacted]"]


def test_no_check_tells_the_secret_of_an_agent(kapelle: Instance, repository: Path) -> None:
    """A check prints a file that the agent wrote, and Kapelle the name of one."""
    secret = "agent-token-0123456789"
    own = kapelle.home.config.read_text(encoding="utf-8") if kapelle.home.config.exists() else ""
    kapelle.cli("config", "set", "agents.rehearsal.env.AGENT_TOKEN", secret, check=True)
    # The name of an empty file alone keeps the work from being merged.
    script = "[[do]]\nrun = 'touch $AGENT_TOKEN.py; echo x $AGENT_TOKEN > z.py'\n"
    checks = [{"command": "grep x z.py"}, {"kind": "diff_not_empty"}]
    try:
        task = kapelle.wait(
            kapelle.play(
                script, repository, workspace="worktree", checks=checks, deliver="merge",
                prove="once", retry={"policy": "none"},
            )
        )  # fmt: skip
        for _ in pauses(20):
            task = kapelle.task(task["id"])
            if task["delivery"]["status"] != "pending":
                break
        printed, changed = task["checks"]
        assert (printed["passed"], printed["output"].strip()) == (True, "x [redacted]")
        assert printed["overlooks"] == ["[redacted].py"]
        assert "[redacted].py" in changed["output"]
        assert task["delivery"]["status"] == "failed"
        assert "into [redacted].py" in task["delivery"]["reason"]
        told = [task, kapelle.get("/work"), kapelle.get("/report")]
        events = kapelle.cli("events", "--task", task["id"], "--json").stdout
        assert secret not in f"{told}{events}"
    finally:
        kapelle.home.config.write_text(own, encoding="utf-8")
