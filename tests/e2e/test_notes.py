"""Notes between an agent, another client and a person, over every door and a daemon's death."""

import threading
from pathlib import Path

from kapelle.domain.ids import make_attempt_token
from tests.e2e.support.instance import Instance
from tests.e2e.test_mcp import answer, connected, refusal


async def test_agents_and_people_share_notes(kapelle: Instance, repository: Path) -> None:
    task = kapelle.play("[[do]]\nhang = true", repository, project="p")
    attempt = kapelle.wait_for_status(task, "running")["attempts"][0]["id"]
    token = make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    async with (
        connected(kapelle, repository, "http", "auto", token) as agent,
        connected(kapelle, repository, "stdio", "auto") as other,
    ):
        made = await answer(agent, "note_set", key="results/1", value="first")
        assert (made["scope"], made["author"], made["task_id"]) == (task, attempt, task)
        seen = await answer(other, "note_get", key="results/1", scope=task)
        assert (seen["value"], seen["version"]) == ("first", made["version"])
        listed = await answer(other, "note_list", prefix="results/", scope=task)
        assert [note["key"] for note in listed["notes"]] == ["results/1"]
        late = {"key": "results/1", "value": "late", "expected_version": made["version"]}
        told = kapelle.cli("notes", "set", "results/1", "of a person", "--scope", task, check=True)
        assert "not" in await refusal(agent, "note_set", **late)
        watched = await answer(agent, "note_watch", keys=["results/1"], after=made["version"])
        assert (watched["met"], watched["notes"][0]["value"]) == (True, "of a person")
        assert watched["notes"][0]["version"] == int(told.stdout)
        assert "An attempt" in await refusal(agent, "note_set", key="a", value="", scope="global")
        long = "x" * 100_001
        assert "100,000 characters" in await refusal(agent, "note_set", key="a", value=long)
        assert (await answer(agent, "note_delete", key="results/1"))["deleted"] is True
        kapelle.post(f"/tasks/{task}/cancel")
        assert kapelle.wait(task)["status"] == "cancelled"
        assert "has ended" in await refusal(agent, "note_list")
    assert "of a person" not in str(kapelle.request("GET", f"/events?task_id={task}&follow=false"))


def test_what_was_written_outlives_the_daemon_and_so_does_waiting(kapelle: Instance) -> None:
    kapelle.cli("notes", "set", "kept", "-", input="said\n", check=True)
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(kapelle.cli("notes", "watch", "kept", "--equals", "again"))
    )
    waiting.start()
    kapelle.kill()
    kapelle.start()
    assert kapelle.cli("notes", "get", "kept").stdout == "said\n\n"
    kapelle.cli("notes", "set", "kept", "again", check=True)
    waiting.join(60)
    assert found[0].returncode == 0
    assert found[0].stdout.startswith("kept  ")
    listed = kapelle.cli("notes", check=True).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["KEY", "kept"]
    assert kapelle.cli("notes", "watch", "never", "--timeout", "0.1s").returncode == 2
