"""Locks between agents and people on one checkout, and the hook that keeps an agent from a file."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kapelle.agents.base import AgentRequest
from kapelle.agents.tools import list_written_paths
from kapelle.domain.ids import make_attempt_token
from kapelle.domain.lock import LockSpec, has_conflict
from kapelle.settings import AgentSettings
from tests.e2e.support.instance import Instance
from tests.e2e.test_mcp import answer, connected, refusal


def working(kapelle: Instance, place: Path) -> tuple[str, str]:
    """A task that works in place, and the token of its attempt."""
    task = kapelle.play("[[do]]\nhang = true", place, workspace="in_place")
    attempt = kapelle.wait_for_status(task, "running")["attempts"][0]["id"]
    return task, make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)


class Hook:
    """The hook as an agent is configured to run it."""

    def __init__(self, kapelle: Instance, place: Path, token: str, form: str) -> None:
        url = json.loads(kapelle.home.info.read_text(encoding="utf-8"))["url"]
        beside = kapelle.home.root.parent / "prompt"
        where = {"url": url, "token": token}
        request = AgentRequest("", place, beside, AgentSettings(), daemon=where)
        for name, text in request.daemon_file.items():
            beside.with_name(name).write_text(text, encoding="utf-8")
        [entry] = request.hooks("PreToolUse", "Edit", form)["PreToolUse"]
        self.command, self.place = entry["hooks"][0]["command"], place
        self.env = {"KAPELLE_RUN_DIR": str(beside.parent)}

    def ask(self, **given: Any) -> Any:
        event = {"tool_name": "x", "tool_input": given, "cwd": str(self.place)}
        done = subprocess.run(
            ["/bin/sh", "-c", self.command], input=json.dumps(event), text=True,
            capture_output=True, check=True, env=self.env, timeout=60,
        )  # fmt: skip
        return json.loads(done.stdout) if done.stdout else None


async def test_agents_share_a_checkout_without_stepping_on_each_other(
    kapelle: Instance, repository: Path
) -> None:
    (first, token), (second, other) = working(kapelle, repository), working(kapelle, repository)
    hook = Hook(kapelle, repository, other, "claude")
    async with (
        connected(kapelle, repository, "http", "auto", token) as one,
        connected(kapelle, repository, "http", "auto", other) as two,
    ):
        taken = await answer(one, "lock_take", paths=["src/", "a.txt"], reason="a rename")
        assert [lock["path"] for lock in taken["locks"]] == ["src", "a.txt"]
        told = hook.ask(file_path=str(repository / "src" / "x.py"))["hookSpecificOutput"]
        assert told["permissionDecision"] == "deny"
        assert f"src is locked by {first} (a rename)" in told["permissionDecisionReason"]
        assert hook.ask(file_path="b.txt") is None
        assert hook.ask(command="cat a.txt") is None
        for command in (
            "echo x > a.txt",
            "sed -i s/x/y/ b.txt a.txt",
            "git reset --hard",
            "rm -r .",
        ):
            assert hook.ask(command=command), command
        assert (
            Hook(kapelle, repository, other, "gemini").ask(command="rm a.txt")["decision"] == "deny"
        )
        assert Hook(kapelle, repository, token, "claude").ask(file_path="a.txt") is None
        waits = await answer(two, "lock_take", paths=["a.txt"], timeout_s=0.1)
        assert (waits["held"], waits["waiting_for"][0]["task_id"]) == (False, first)
        (repository / "link").symlink_to("a.txt")
        assert not (await answer(two, "lock_take", paths=["link"], timeout_s=0))["held"]
        assert "not in" in await refusal(two, "lock_take", paths=["../x"])
        await answer(two, "lock_take", paths=["b.txt"])
        shown = kapelle.cli("locks", cwd=repository, check=True).stdout
        assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
            ["src", "held"], ["a.txt", "held"], ["b.txt", "held"], ["a.txt", "waiting"],
        ]  # fmt: skip
        assert "Deadlock" in await refusal(one, "lock_take", paths=["b.txt"])
        kapelle.kill()
        gone = hook.ask(file_path="b.txt")["hookSpecificOutput"]["permissionDecisionReason"]
        assert "cannot check the locks" in gone
        kapelle.start()
    held = {lock["path"]: lock["task_id"] for lock in kapelle.get(f"/locks?directory={repository}")}
    assert held == {"src": first, "a.txt": first, "b.txt": second}
    gone = kapelle.cli("locks", "release", "src", cwd=repository, check=True)
    assert gone.stderr == f"Released: src ({first}: a rename).\n"
    for task in (first, second):
        kapelle.cli("cancel", task, check=True)
        kapelle.wait(task)
    assert kapelle.cli("locks", "take", ".", "--no-wait", cwd=repository).returncode == 0
    assert [lock["path"] for lock in kapelle.get("/locks")] == ["**"]
    # The bridge says where its client is; who renews keeps the reason and the time.
    async with connected(kapelle, repository, "stdio", "auto") as person:
        await answer(person, "lock_take", paths=["x"], reason="mine", ttl_s=3000)
        [again] = (await answer(person, "lock_take", paths=["x"], ttl_s=5))["locks"]
        assert again["reason"] == "mine"
        assert again["left_s"] > 5
        assert {one["path"] for one in (await answer(person, "lock_list"))["items"]} == {"**", "x"}
    gone = json.loads(kapelle.cli("locks", "release", "--json", cwd=repository, check=True).stdout)
    assert [(one["status"], one["left_s"]) for one in gone] == [("released", 0)] * 2


def test_what_got_past_is_reported(kapelle: Instance, repository: Path) -> None:
    """A rehearsal has no hook: it writes what a person holds, and its attempt says so."""
    kapelle.cli("locks", "take", "held.txt", cwd=repository, check=True)
    write = '[[do]]\ntool = "write_file"\ninput = {{file_path = "{0}"}}\n[[do]]\nwrite = "{0}"\n'
    for name, warned in (("held.txt", ["lock"]), ("free.txt", [])):
        task = kapelle.wait(kapelle.play(write.format(name), repository, workspace="in_place"))
        assert [warning["what"] for warning in task["attempts"][0]["warnings"]] == warned


def test_an_acp_agent_writes_through_a_file_system_that_knows_the_locks(
    kapelle: Instance, repository: Path
) -> None:
    program = Path(__file__).parents[1] / "integration" / "acp_agent.py"
    log = kapelle.home.root.parent / "acp.log"
    kapelle.home.config.write_text(
        f'[agents.small]\ntype = "acp"\ncommand = ["{sys.executable}", "{program}"]\n'
        f'[agents.small.env]\nACP_LOG = "{log}"\n',
        encoding="utf-8",
    )
    (repository / "held.txt").write_text("mine", encoding="utf-8")
    kapelle.cli("locks", "take", "held.txt", cwd=repository, check=True)
    files = [str(repository / name) for name in ("held.txt", "new/free.txt")]
    steps = [*(["write", name, "theirs"] for name in files), ["say", "done"]]
    task = kapelle.submit(
        json.dumps({"do": steps}), repository, agent="small", workspace="in_place"
    )
    ended = kapelle.wait(task)
    assert ended["status"] == "completed", ended["reason"]
    assert [Path(name).read_text(encoding="utf-8") for name in files] == ["mine", "theirs"]
    assert "held.txt is locked by a person" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"file_path": "/x/a"}, ["/x/a"]),
        ({"command": "*** Begin Patch\n*** Update File: a b\n@@\n*** Move to: c\n"}, ["a b", "c"]),
        ({"command": ["bash", "-lc", "echo x >> log.txt 2>&1"]}, ["log.txt"]),
        ({"command": "make && cat a | tee -a b; FOO=1 sudo rm -rf 'c' d"}, ["b", "c", "d"]),
        ({"command": "git -C x status; git log > /dev/null"}, ["/dev/null"]),
        ({"command": "cd x && git -c a.b=c checkout -- ."}, ["**"]),
        ({"command": "sed -n p a; perl -pi -e s/a/b/ b"}, ["s/a/b/", "b"]),
        ({"changes": [{"path": "a", "kind": "update"}]}, ["a"]),
        ({"command": f"git {'-c ' * 5000}"}, []),
        ({"paths": [f"{n}" for n in range(101)]}, ["**"]),
        ({"paths": ["*a" * 11]}, ["**"]),
        ({"pattern": "x"}, []),
        ({"command": "python x.py"}, []),
    ],
    ids=lambda value: shlex.join(map(str, value.values()))[:60] if isinstance(value, dict) else "",
)
def test_what_a_tool_would_write(given: dict[str, object], paths: list[str]) -> None:
    assert list_written_paths(given) == paths


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("a", "a", True), ("a", "b", False), ("src", "src/a.py", True), ("src", "srcs", False),
        ("src/*.py", "src/a*", True), ("src/*.py", "lib/*.py", False), ("*.py", "src/a.py", False),
        ("**/x.py", "x.py", True), ("**/x.py", "a/b/x.py", True), ("**", "any/thing", True),
        ("src/?.py", "src/ab.py", False), ("a?b", "a/b", False), ("a/*/c", "a/b", True),
        ("[id].ts", "[id].ts", True), ("[id].ts", "i.ts", False), ("a*b", "*ab*", True),
        ("*a" * 249, "*b" * 249, False), ("**b", "a", True), ("*/c", "a/b/c", False),
    ],
)  # fmt: skip
def test_paths_that_meet(one: str, other: str, meet: bool) -> None:
    assert has_conflict([one], [other]) is meet
    assert has_conflict([other], [one]) is meet


def test_globs_beyond_measure_are_refused() -> None:
    for paths in (["*a" * 11], ["a" * 200 + "*"], [f"{n}*" for n in range(21)], ["a"] * 101):
        with pytest.raises(ValidationError):
            LockSpec(paths=paths)
