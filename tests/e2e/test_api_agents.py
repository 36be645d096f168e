"""Agents over REST: honest states, checks, and keys that never come back."""

import json
import os
import stat
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kapelle.domain.ids import make_attempt_token
from tests.e2e.support.door import Door
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.stub_agents import LIMITED, REFUSED, calls, environment, failing, install

KEY = "sk-test-0123456789abcdef"
HANG = "[[do]]\nhang = true"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory that is the only one on PATH in which agents can be found."""
    directory = tmp_path / "programs"
    install(directory, "codex", "0.999.0")
    return directory


@pytest.fixture
def kapelle(tmp_path: Path, programs: Path) -> Iterator[Instance]:
    instance = Instance(tmp_path / "home", **environment(programs))
    instance.start()
    yield instance
    instance.destroy()


def check(kapelle: Instance, name: str, *, live: bool) -> Any:
    return kapelle.post(f"/agents/{name}/check", {"live": live, "directory": "/tmp"})


def everything_kept(kapelle: Instance) -> bytes:
    """All that the daemon has written, but for the file that is there to keep keys."""
    kept = [path for path in kapelle.home.root.rglob("*") if path.is_file()]
    return b"".join(path.read_bytes() for path in kept if path != kapelle.home.credentials)


def test_what_is_installed_is_told_from_what_is_verified(kapelle: Instance) -> None:
    listed = {agent["name"]: agent for agent in kapelle.get("/agents?directory=/tmp")}
    codex, copilot = listed["codex"], listed["copilot"]
    assert codex["installed"].endswith("/programs/codex")
    assert codex["status"] == "installed, no login found"
    assert codex["login"]["source"] == "none"
    assert codex["tested"]
    assert codex["capabilities"]["resume"]
    assert copilot["status"] == "not installed"
    assert "npm install -g @github/copilot" in copilot["hint"]
    assert not {"acp", "openai", "anthropic", "command"} & set(listed)
    assert kapelle.get("/agents/codex") == codex


def test_a_login_of_the_program_itself_is_not_verified(kapelle: Instance) -> None:
    login = kapelle.user_home / ".codex" / "auth.json"
    login.parent.mkdir()
    login.write_text("{}", encoding="utf-8")
    codex = kapelle.get("/agents/codex")
    assert codex["login"]["source"] == "login"
    assert codex["status"] == "installed, login not verified"


def test_a_key_is_stored_used_and_removed_without_ever_being_shown(
    kapelle: Instance, programs: Path
) -> None:
    install(programs, "codex", output=failing(REFUSED), code=1)
    answers = [
        kapelle.call("PUT", "/agents/codex/credential", {"api_key": KEY}),
        kapelle.get("/agents/codex"),
        check(kapelle, "codex", live=True),
    ]
    assert answers[0]["login"]["source"] == "stored"
    assert answers[0]["status"] == "installed, login not verified"
    assert answers[2]["live"]["failure"] == "authentication"
    assert "[redacted]" in answers[2]["problem"]
    assert KEY not in json.dumps(answers)
    assert stat.S_IMODE(kapelle.home.credentials.stat().st_mode) == 0o600
    assert KEY.encode() not in everything_kept(kapelle)
    assert kapelle.call("DELETE", "/agents/codex/credential") == {"removed": True}
    assert kapelle.call("DELETE", "/agents/codex/credential") == {"removed": False}
    assert kapelle.get("/agents/codex")["login"]["source"] == "none"
    assert KEY not in kapelle.home.credentials.read_text(encoding="utf-8")


def test_the_environment_counts_more_than_a_stored_key(tmp_path: Path, programs: Path) -> None:
    kapelle = Instance(tmp_path / "home", **environment(programs), CODEX_API_KEY=KEY)
    kapelle.start()
    try:
        view = kapelle.call("PUT", "/agents/codex/credential", {"api_key": "another-key-000"})
        assert view["login"]["source"] == "environment"
        assert view["login"]["variable"] == "CODEX_API_KEY"
    finally:
        kapelle.destroy()


def test_a_check_compares_versions_and_calls_nobody(kapelle: Instance, programs: Path) -> None:
    found = check(kapelle, "codex", live=False)
    assert (found["version"], found["comparison"]) == ("0.999.0", "newer")
    assert (found["usable"], found["live"]) == (True, None)
    assert calls(programs / "codex") == 0
    assert found["agent"]["login"]["verified_at"] is None
    missing = check(kapelle, "copilot", live=True)
    assert not missing["usable"]
    assert "npm install" in missing["hint"]


def test_what_a_provider_tells_of_its_limits_is_shown(
    kapelle: Instance, programs: Path, tmp_path: Path
) -> None:
    soon = int(time.time()) + 3_700
    windows = {
        "five_hour": {"utilization": 0.85, "resetsAt": soon},
        "seven_day": {"resetsAt": soon + 86_400},
        "seven_day_opus": {"utilization": 0.5, "resetsAt": soon - 7_400},
    }
    said = {"type": "rate_limit_event", "rate_limit_info": {"unifiedWindows": windows}}
    done = {"type": "result", "subtype": "success", "result": "ok", "session_id": "a"}
    install(programs, "claude", output=f"{json.dumps(said)}\n{json.dumps(done)}")
    assert kapelle.get("/agents/claude")["windows"] == []
    kapelle.wait(kapelle.submit("hello", tmp_path, agent="claude"))
    told = {window["name"]: window for window in kapelle.get("/agents/claude")["windows"]}
    assert list(told) == ["5-hour", "weekly", "weekly opus"]
    # What was not told, or is over since, is unknown.
    assert [window["used"] for window in told.values()] == [0.85, None, None]
    assert datetime.fromisoformat(told["5-hour"]["resets_at"]).timestamp() == soon
    shown = kapelle.cli("agents", check=True).stderr
    assert "claude: 5-hour limit: 85% used, resets in 1h" in shown
    assert "claude: weekly limit: how much is used is unknown, resets in 1d" in shown
    assert "claude: weekly opus limit: how much is used is unknown, it was reset since" in shown


def test_a_live_check_makes_one_call_and_verifies(kapelle: Instance, programs: Path) -> None:
    found = check(kapelle, "codex", live=True)
    assert found["usable"]
    assert found["live"]["answer"] == "ok"
    assert found["agent"]["status"] == "verified just now"
    assert calls(programs / "codex") == 1
    assert list(kapelle.home.checks.iterdir()) == []
    assert list(kapelle.home.attempts.iterdir()) == []
    assert kapelle.get("/agents/codex")["login"]["verified_at"]


def test_a_login_that_is_refused_is_no_longer_verified(kapelle: Instance, programs: Path) -> None:
    check(kapelle, "codex", live=True)
    install(programs, "codex", output=failing(REFUSED), code=1)
    found = check(kapelle, "codex", live=True)
    assert not found["usable"]
    assert "401" in found["problem"]
    assert "kapelle agents config set codex api_key" in found["hint"]
    assert found["agent"]["login"]["verified_at"] is None


def test_only_a_live_check_that_succeeds_lifts_a_pause(
    kapelle: Instance, programs: Path, tmp_path: Path
) -> None:
    install(programs, "codex", output=failing(LIMITED), code=1)
    task_id = kapelle.submit("Go", tmp_path, agent="codex")
    kapelle.wait_for_status(task_id, "waiting", 90)
    paused = kapelle.get("/agents/codex")
    assert paused["paused_until"]
    assert "rate-limited" in paused["paused_reason"]
    assert check(kapelle, "codex", live=True)["live"]["failure"] == "rate_limit"
    install(programs, "codex")
    assert check(kapelle, "codex", live=False)["agent"]["paused_until"]
    lifted = check(kapelle, "codex", live=True)["agent"]
    assert (lifted["paused_until"], lifted["paused_reason"]) == (None, None)
    history = kapelle.request("GET", "/events?follow=false")[1]
    assert b"account.released" in history


def test_what_a_dead_daemon_left_of_a_check_is_removed(kapelle: Instance) -> None:
    left = kapelle.home.checks / "check_old"
    left.mkdir()
    os.utime(left, (1, 1))
    check(kapelle, "rehearsal", live=True)
    assert list(kapelle.home.checks.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "key", "code"),
    [
        ("codx", KEY, "agent_not_found"),
        ("rehearsal", KEY, "agent_misconfigured"),
        ("codex", "", "invalid_input"),
        ("codex", "short-1", "invalid_input"),
        ("codex", f"{KEY} and more", "invalid_input"),
        ("codex", f"{KEY}\n", "invalid_input"),
        ("codex", f"{KEY}\0", "invalid_input"),
        ("codex", "é" * 20, "invalid_input"),
        ("codex", KEY * 1000, "invalid_input"),
        ("codex", [KEY], "invalid_input"),
    ],
)
def test_what_cannot_be_a_key_is_refused_and_not_repeated(
    kapelle: Instance, name: str, key: Any, code: str
) -> None:
    with pytest.raises(ApiError) as caught:
        kapelle.call("PUT", f"/agents/{name}/credential", {"api_key": key})
    assert (caught.value.status, caught.value.body["error"]["code"]) == (422, code)
    assert KEY not in json.dumps(caught.value.body)
    assert not kapelle.home.credentials.exists()


def test_an_unknown_agent_is_not_found_anywhere(kapelle: Instance) -> None:
    for method, path in (
        ("GET", ""),
        ("POST", "/check"),
        ("DELETE", "/credential"),
    ):
        with pytest.raises(ApiError) as caught:
            kapelle.call(method, f"/agents/codx{path}")
        error = caught.value.body["error"]
        assert error["code"] == "agent_not_found"
        assert "did you mean codex?" in error["message"]


def test_an_attempt_may_not_touch_agents(kapelle: Instance, tmp_path: Path) -> None:
    task_id = kapelle.play(HANG, tmp_path)
    attempt = kapelle.wait_for_status(task_id, "running")["attempts"][0]["id"]
    door = Door(kapelle)
    token = ("Authorization", f"Bearer {make_attempt_token(door.token, attempt)}")
    body = json.dumps({"api_key": KEY}).encode()
    kind = ("Content-Type", "application/json")
    for method, path, content in (
        ("GET", "", None),
        ("GET", "/codex", None),
        ("POST", "/codex/check", b'{"live": true}'),
        ("PUT", "/codex/credential", body),
        ("DELETE", "/codex/credential", None),
    ):
        answer = door.ask(method, f"/api/v1/agents{path}", [token, kind], content)
        assert (answer.status, answer.code) == (403, "forbidden"), (method, path)
    assert not kapelle.home.credentials.exists()
