"""What an attempt may use: budget, turns and patience; each is warned of, and each ends it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import kinds, set_up, shared_instance, until

# Each step costs a cent and a turn, and the whole part would take half a minute and more.
SPENDING = (
    """
[[do]]
usage = { input = 100, output = 10, turns = 1, cost = 0.01 }
[[do]]
sleep = 0.3
"""
    * 120
)


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shared_instance(tmp_path_factory.mktemp("limits")) as instance:
        yield instance


def warned(task: Any, number: int = 1) -> list[str]:
    attempt = task["attempts"][number - 1]
    return sorted(warning["what"] for warning in attempt["warnings"])


def test_a_budget_ends_an_agent_soon_after_it_is_spent(kapelle: Instance, tmp_path: Path) -> None:
    task_id = kapelle.play(SPENDING, tmp_path, budget_usd=0.05, retry={"policy": "same"})
    task = kapelle.wait(task_id)
    attempt = task["attempts"][-1]
    assert (task["status"], len(task["attempts"])) == ("failed", 1), "a limit is not tried again"
    assert attempt["failure"] == "limit"
    assert 0.05 <= attempt["usage"]["cost_usd"] < 0.15
    assert task["reason"].startswith("stopped at its budget: $0.05")
    assert "of $0.05" in task["reason"]
    assert f"kapelle resume {task_id} --max-turns 200, or --budget 5" in task["reason"]
    shown = kapelle.cli("status", task_id).stdout
    assert "limits     $0.05 in all" in shown
    assert "failure limit: stopped at its budget" in shown


@pytest.mark.parametrize("amid", [True, False])
def test_an_agent_that_empties_its_log_is_ended_and_what_it_used_stands(
    kapelle: Instance, tmp_path: Path, amid: bool
) -> None:
    spend = "[[do]]\nusage = { turns = 4, cost = 4 }\n[[do]]\nsleep = 0.5\n"
    empty = "[[do]]\nrun = ': > \"$KAPELLE_RUN_DIR/out.log\"'\n"
    rest = "[[do]]\nhang = true" if amid else ""
    task_id = kapelle.play(spend + empty + rest, tmp_path, budget_usd=5)
    task = kapelle.wait(task_id)
    attempt = task["attempts"][0]
    assert (task["status"], attempt["failure"]) == ("failed", "tampered")
    assert attempt["exit"]["kind"] == "tampered"
    assert (attempt["usage"]["turns"], attempt["usage"]["cost_usd"]) == (4, 4)


def test_turns_end_an_agent_that_takes_one_more(kapelle: Instance, tmp_path: Path) -> None:
    task = kapelle.wait(kapelle.play(SPENDING, tmp_path, max_turns=3))
    assert task["status"] == "failed"
    assert task["reason"].startswith("stopped at its limit of 3 turns")
    assert "--max-turns" in task["reason"]
    assert 3 < task["attempts"][0]["usage"]["turns"] < 12


def test_a_limit_that_is_kept_ends_nothing(kapelle: Instance, tmp_path: Path) -> None:
    part = "[[do]]\nusage = { turns = 3, cost = 0.01 }\n[[do]]\nsleep = 1"
    task = kapelle.wait(kapelle.play(part, tmp_path, max_turns=3, budget_usd=0.02))
    assert task["status"] == "completed"
    assert warned(task) == ["turns"]


def test_a_raised_budget_lets_a_task_go_on_and_a_spent_one_does_not(
    kapelle: Instance, tmp_path: Path
) -> None:
    cheap = "[[rule.do]]\nusage = { cost = 0.03 }\n[[rule.do]]\nsleep = 1"
    part = f"[[rule]]\nattempt = 1\n{cheap}\n[[rule.do]]\nhang = true\n[[rule]]\n{cheap}"
    task_id = kapelle.play(part, tmp_path, budget_usd=0.02)
    assert kapelle.wait(task_id)["attempts"][0]["failure"] == "limit"
    kapelle.post(f"/tasks/{task_id}/resume")
    task = kapelle.wait(task_id)
    assert task["reason"].startswith("Budget of $0.02 reached.")
    assert task["attempts"][1]["failure"] == "limit"
    assert task["attempts"][1]["exit"]["kind"] == "not_started"
    done = kapelle.cli("resume", task_id, "--budget", "0.5", "--max-turns", "9")
    assert done.returncode == 0, done.stderr
    task = kapelle.wait(task_id)
    assert (task["status"], task["budget_usd"], task["max_turns"]) == ("completed", 0.5, 9)
    with pytest.raises(ApiError, match="422"):
        kapelle.post(f"/tasks/{task_id}/retry", {"budget_usd": -1})
    kapelle.post(f"/tasks/{task_id}/retry", {"budget_usd": 0.01})
    task = kapelle.wait(task_id)
    assert (task["status"], task["budget_usd"]) == ("failed", 0.01)


def test_each_limit_is_warned_of_once_also_across_a_crash_of_the_daemon(tmp_path: Path) -> None:
    part = """
[[do]]
usage = { turns = 8, cost = 0.08 }
[[do]]
sleep = 8
[[do]]
usage = { turns = 1, cost = 0.01 }
[[do]]
sleep = 2
"""
    instance = Instance(tmp_path / "home")
    instance.start()
    try:
        task_id = instance.play(part, tmp_path, max_turns=10, budget_usd=0.1)
        until(lambda: len(kinds(instance, task_id, "attempt.warning")) == 2, "both warnings")
        instance.kill()
        instance.start()
        task = instance.wait(task_id)
        assert (task["status"], len(task["attempts"])) == ("completed", 1), task["reason"]
        assert warned(task) == ["budget", "turns"]
        told = [event["text"] for event in kinds(instance, task_id, "attempt.warning")]
        assert sorted(told) == ["$0.0800 of $0.1 are spent", "8 of 10 turns are used"]
        shown = instance.cli("events", "--after", "0", "--task", task_id).stdout
        assert "attempt.warning" in shown
        assert "8 of 10 turns are used" in shown
    finally:
        instance.destroy()


def test_a_limit_reached_while_no_daemon_lived_is_enforced_by_the_next(tmp_path: Path) -> None:
    part = "[[do]]\nsleep = 3\n[[do]]\nusage = { cost = 1.0 }\n[[do]]\nhang = true"
    instance = Instance(tmp_path / "home")
    instance.start()
    try:
        task_id = instance.play(part, tmp_path, budget_usd=0.5)
        until(lambda: instance.task(task_id)["attempts"], "the attempt")
        until(lambda: list(instance.home.attempts.glob("*/run.json")), "the agent")
        instance.kill()
        time.sleep(4)
        instance.start()
        task = instance.wait(task_id)
        assert task["attempts"][0]["failure"] == "limit"
        assert "$1.0000 spent of $0.5" in task["reason"]
    finally:
        instance.destroy()


STUCK = """
[[rule]]
attempt = 1
[[rule.do]]
say = "I begin."
[[rule.do]]
sleep = {sleep_s}
[[rule]]
[[rule.do]]
result = "done after all"
"""


def stuck(kapelle: Instance, place: Path, on_stall: str, sleep_s: float = 600) -> str:
    set_up(place, f'[health]\nstall_s = 2\non_stall = "{on_stall}"\n')
    return kapelle.play(STUCK.replace("{sleep_s}", str(sleep_s)), place)


def test_a_stalled_agent_is_ended(kapelle: Instance, tmp_path: Path) -> None:
    task = kapelle.wait(stuck(kapelle, tmp_path, "end"))
    assert (task["status"], len(task["attempts"])) == ("failed", 1)
    assert task["attempts"][0]["failure"] == "stalled"
    assert task["reason"].startswith("stalled: no output and no work for ")
    assert warned(task) == ["stalled"]


def test_a_stalled_agent_is_nudged_and_goes_on(kapelle: Instance, tmp_path: Path) -> None:
    task = kapelle.wait(stuck(kapelle, tmp_path, "nudge"))
    assert (task["status"], task["result"]) == ("completed", "done after all")
    assert [attempt["mode"] for attempt in task["attempts"]] == ["fresh", "resume"]
    assert [attempt["failure"] for attempt in task["attempts"]] == ["stalled", None]


def test_an_agent_that_stalls_again_is_not_nudged_for_ever(
    kapelle: Instance, tmp_path: Path
) -> None:
    set_up(tmp_path, '[health]\nstall_s = 2\non_stall = "nudge"\n')
    task = kapelle.wait(kapelle.play("[[do]]\nhang = true", tmp_path))
    assert (task["status"], len(task["attempts"])) == ("failed", 2)
    assert task["attempts"][1]["failure"] == "stalled"


def test_a_stall_may_only_be_warned_about(kapelle: Instance, tmp_path: Path) -> None:
    task = kapelle.wait(stuck(kapelle, tmp_path, "warn", sleep_s=6))
    assert (task["status"], len(task["attempts"])) == ("completed", 1), task["reason"]
    assert warned(task) == ["stalled"]


def test_an_agent_that_works_in_silence_is_not_stalled(kapelle: Instance, tmp_path: Path) -> None:
    set_up(tmp_path, '[health]\nstall_s = 3\non_stall = "end"\n')
    busy = (
        "import time; end = time.time() + 7\n"
        "while time.time() < end: time.sleep(0.1); sum(range(2 * 10**6))"
    )
    task = kapelle.wait(kapelle.play(f"[[do]]\nrun = '''python3 -c \"{busy}\"'''", tmp_path))
    assert task["status"] == "completed", task["reason"]
    assert warned(task) == []
