"""A status says what happened: nothing ends as completed that was not."""

import signal
import time
from pathlib import Path

import pytest

from tests.e2e.support.instance import ApiError, Instance


def test_an_agent_that_reports_success_and_passes_its_checks_is_completed(
    kapelle: Instance, tmp_path: Path
) -> None:
    task = kapelle.wait(kapelle.play('[[do]]\nsay = "hello"', tmp_path, checks=["true"]))
    assert task["status"] == "completed"
    assert task["attempts"][0]["exit"] == {"kind": "exited", "code": 0, "signal": None}
    assert task["attempts"][0]["claimed"] == "success"
    assert task["checks"] == [task["checks"][0] | {"name": "true", "passed": True}]


def test_an_agent_killed_by_sigkill_is_failed_never_completed(
    kapelle: Instance, tmp_path: Path
) -> None:
    task = kapelle.wait(kapelle.play('[[do]]\ncrash = "KILL"', tmp_path))
    assert task["status"] == "failed"
    assert "SIGKILL" in task["reason"]
    exit = task["attempts"][0]["exit"]
    assert exit == {"kind": "signaled", "code": None, "signal": signal.SIGKILL}


def test_an_agent_that_says_done_but_fails_its_check_is_failed(
    kapelle: Instance, tmp_path: Path
) -> None:
    task = kapelle.wait(
        kapelle.play('[[do]]\nresult = "All done!"', tmp_path, checks=["echo broken; exit 3"])
    )
    assert task["status"] == "failed"
    assert task["attempts"][0]["claimed"] == "success"
    assert task["result"] == "All done!"
    assert task["checks"][0]["passed"] is False
    assert task["checks"][0]["output"] == "broken\n[exit code 3]"


def test_an_agent_that_changed_nothing_does_not_pass_diff_not_empty(
    kapelle: Instance, repository: Path
) -> None:
    lazy = kapelle.play('[[do]]\nresult = "done"', repository, checks=["diff_not_empty"])
    busy = kapelle.play(
        '[[do]]\nwrite = "new.txt"\ncontent = "x"', repository, checks=["diff_not_empty"]
    )
    assert kapelle.wait(lazy)["checks"][0]["output"] == "The agent changed nothing."
    assert kapelle.wait(lazy)["status"] == "failed"
    assert kapelle.wait(busy)["status"] == "completed"


def test_errors_in_the_output_fail_the_check_for_them(kapelle: Instance, tmp_path: Path) -> None:
    part = '[[do]]\nprint = "fine\\nError: it broke\\n"'
    task = kapelle.wait(kapelle.play(part, tmp_path, checks=["no_error_in_output"]))
    assert task["status"] == "failed"
    assert task["checks"][0]["output"] == "Error: it broke"
    clean = kapelle.play(
        '[[do]]\nprint = "no errors here\\n"', tmp_path, checks=["no_error_in_output"]
    )
    assert kapelle.wait(clean)["status"] == "completed"


def test_a_check_that_prints_5_mb_and_exits_0_passes(kapelle: Instance, tmp_path: Path) -> None:
    check = "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end"
    task = kapelle.wait(kapelle.play('[[do]]\nsay = "hi"', tmp_path, checks=[check]))
    assert task["status"] == "completed"
    assert task["checks"][0]["output"].endswith("the end")
    assert len(task["checks"][0]["output"]) < 50_000


def test_a_check_that_hangs_is_ended_by_its_own_timeout(kapelle: Instance, tmp_path: Path) -> None:
    check = {"command": "sleep 600", "timeout_s": 0.5}
    task = kapelle.wait(kapelle.play('[[do]]\nsay = "hi"', tmp_path, checks=[check]))
    assert task["status"] == "failed"
    assert "timed out after 0.5 s" in task["checks"][0]["output"]


def test_a_timeout_ends_the_agent_and_says_so(kapelle: Instance, tmp_path: Path) -> None:
    task = kapelle.wait(kapelle.play("[[do]]\nhang = true", tmp_path, timeout_s=0.5))
    assert task["status"] == "failed"
    assert task["reason"] == "timed out after 0.5 s"


def test_an_agent_that_asks_waits_for_a_person_and_goes_on_with_the_answer(
    kapelle: Instance, tmp_path: Path
) -> None:
    part = """
[[rule]]
attempt = 1
[[rule.do]]
ask = "Which colour?"
[[rule]]
match = "blue"
[[rule.do]]
result = "Painted it blue."
"""
    task_id = kapelle.play(part, tmp_path)
    task = kapelle.wait(task_id)
    assert (task["status"], task["waiting_for"]) == ("waiting", "input")
    assert "Which colour?" in task["reason"]
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "blue"})
    task = kapelle.wait_for_status(task_id, "completed")
    assert task["result"] == "Painted it blue."
    assert [attempt["mode"] for attempt in task["attempts"]] == ["fresh", "resume"]


def test_a_rate_limit_waits_for_its_reset_without_spending_a_try(
    kapelle: Instance, tmp_path: Path
) -> None:
    part = """
[[rule]]
attempt = 1
[[rule.do]]
rate_limit = { reset_in_s = 2 }
[[rule]]
[[rule.do]]
result = "done"
"""
    task_id = kapelle.play(part, tmp_path)
    task = kapelle.wait_for_status(task_id, "waiting")
    assert task["waiting_for"] == "rate_limit"
    assert task["not_before"]
    assert kapelle.wait(task_id)["status"] == "completed"
    assert len(kapelle.task(task_id)["attempts"]) == 2


def test_a_retry_policy_tries_again_with_backoff_and_then_gives_up(
    kapelle: Instance, tmp_path: Path
) -> None:
    retry = {"policy": "same", "max_attempts": 3, "delay_s": 0.1, "max_delay_s": 0.2}
    flaky = """
[[rule]]
attempt = [1, 2]
[[rule.do]]
fail = "not yet"
[[rule]]
[[rule.do]]
result = "third time lucky"
"""
    lucky = kapelle.play(flaky, tmp_path, retry=retry)
    never = kapelle.play('[[do]]\nfail = "never"', tmp_path, retry=retry)
    task = kapelle.wait(lucky)
    assert task["status"] == "completed"
    assert [a["status"] for a in task["attempts"]] == ["failed", "failed", "completed"]
    task = kapelle.wait(never)
    assert (task["status"], len(task["attempts"])) == ("failed", 3)
    assert "never" in task["reason"]


def test_an_agent_whose_program_is_missing_is_refused_with_what_to_do(kapelle: Instance) -> None:
    kapelle.cli("config", "set", "agents.ghost.command", '["no-such-program", "{prompt}"]')
    done = kapelle.cli("run", "hello", "--agent", "ghost")
    assert done.returncode == 2
    assert "no-such-program" in done.stderr or "not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_check_leaves_behind_is_not_the_agents_work(
    kapelle: Instance, repository: Path
) -> None:
    checks = ["touch junk", "diff_not_empty"]
    for workspace in ("worktree", "in_place"):
        task_id = kapelle.play(
            '[[do]]\nresult = "done"', repository, checks=checks, workspace=workspace
        )
        task = kapelle.wait(task_id)
        assert task["status"] == "failed"
        assert [check["passed"] for check in task["checks"]] == [True, False]


def test_an_agents_error_event_fails_the_check_for_errors(
    kapelle: Instance, tmp_path: Path
) -> None:
    task = kapelle.wait(
        kapelle.play('[[do]]\nsay = "Error: all broken"', tmp_path, checks=["no_error_in_output"])
    )
    assert task["status"] == "failed"
    assert task["checks"][0]["output"] == "Error: all broken"


@pytest.mark.parametrize("stated", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_no_reset_time_that_an_agent_states_upsets_the_daemon(
    kapelle: Instance, tmp_path: Path, stated: str
) -> None:
    line = f'{{"kind": "error", "name": "rate_limit", "data": {{"retry_at": "{stated}"}}}}'
    task_id = kapelle.play(f"[[do]]\nprint = '{line}'\n[[do]]\nexit = 1", tmp_path)
    kapelle.wait_for_status(task_id, "waiting")
    time.sleep(2.5)
    config = tmp_path / ".kapelle" / "config.toml"
    config.parent.mkdir()
    config.write_text('[agents.other]\ntype = "rehearsal"\n', encoding="utf-8")
    other = kapelle.play('[[do]]\nsay = "hi"', tmp_path, agent="other")
    assert kapelle.wait(other)["status"] == "completed"
    assert len(kapelle.task(task_id)["attempts"]) <= 3
    kapelle.post(f"/tasks/{task_id}/cancel")


def test_a_merge_is_not_claimed_any_more_after_further_work(
    kapelle: Instance, repository: Path
) -> None:
    part = """
[[do]]
append = "log.txt"
content = "line\\n"
[[do]]
result = "the answer is 42"
"""
    task_id = kapelle.play(part, repository)
    kapelle.wait(task_id)
    kapelle.post(f"/tasks/{task_id}/merge")
    assert kapelle.task(task_id)["merged_at"]
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "once more"})
    task = kapelle.wait(task_id)
    assert task["merged_at"] is None
    prompt = kapelle.home.attempts / task["attempts"][-1]["id"] / "prompt"
    assert "the answer is 42" in prompt.read_text(encoding="utf-8")


def test_a_broken_configuration_holds_new_work_and_says_why(
    kapelle: Instance, tmp_path: Path
) -> None:
    running = kapelle.play('[[do]]\nsleep = 2\n[[do]]\nresult = "done"', tmp_path)
    blocked = kapelle.play('[[do]]\nsay = "hi"', tmp_path, depends_on=[running])
    kapelle.wait_for_status(running, "running")
    kapelle.home.config.write_text("[limits\n", encoding="utf-8")
    assert kapelle.wait(running)["status"] == "completed"
    time.sleep(0.5)
    task = kapelle.task(blocked)
    assert task["status"] == "queued"
    assert "config.toml" in task["reason"]
    kapelle.home.config.unlink()
    assert kapelle.wait(blocked)["status"] == "completed"
    kapelle.home.config.write_text("[limits\n", encoding="utf-8")
    assert kapelle.cli("stop").returncode == 0


def _shell_agent(kapelle: Instance) -> None:
    command = '["/bin/sh", "-c", "{prompt}"]'
    kapelle.cli("config", "set", "agents.sh.command", command, check=True)


def test_an_agent_cannot_write_its_own_end(kapelle: Instance, tmp_path: Path) -> None:
    _shell_agent(kapelle)
    honest = kapelle.wait(kapelle.submit("exit 0", tmp_path, agent="sh"))
    record = kapelle.home.attempts / honest["attempts"][0]["id"] / "exit.json"
    forger = f'cp {record} "$KAPELLE_RUN_DIR/exit.json"; exit 9'
    task = kapelle.wait(kapelle.submit(forger, tmp_path, agent="sh"))
    assert (task["status"], task["attempts"][0]["exit"]["kind"]) == ("failed", "tampered")


def test_a_pipe_or_a_link_in_place_of_the_output_stops_nobody(
    kapelle: Instance, tmp_path: Path
) -> None:
    _shell_agent(kapelle)
    trick = 'cd "$KAPELLE_RUN_DIR"; rm out.log err.log; mkfifo out.log; ln -s /etc/passwd err.log'
    task_id = kapelle.submit(trick, tmp_path, agent="sh")
    assert kapelle.wait(task_id, 20)["status"] in {"completed", "failed"}
    assert kapelle.output(task_id) == b""
    assert kapelle.output(task_id, "err") == b""
    assert kapelle.cli("logs", task_id).returncode == 0
    other = kapelle.submit("echo fine", tmp_path, agent="sh")
    assert kapelle.wait(other, 20)["status"] == "completed"


def test_an_agent_that_deletes_its_process_directory_is_lost_with_the_reason(
    kapelle: Instance, tmp_path: Path
) -> None:
    _shell_agent(kapelle)
    task = kapelle.wait(kapelle.submit('rm -rf "$KAPELLE_RUN_DIR"', tmp_path, agent="sh"), 40)
    assert task["status"] == "failed"
    assert "internal error" not in task["reason"]


def test_a_model_is_refused_for_an_agent_that_takes_none(kapelle: Instance, tmp_path: Path) -> None:
    _shell_agent(kapelle)
    with pytest.raises(ApiError, match="cannot be given a model"):
        kapelle.submit("true", tmp_path, agent="sh", model="large")
