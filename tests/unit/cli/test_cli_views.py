from pathlib import Path
from typing import Any

import pytest

from kapelle.cli.outcome import exit_code, exit_code_of_all, next_commands, settled
from kapelle.cli.sse import ServerEvent
from kapelle.cli.style import columns_of, fit, table
from kapelle.cli.task_view import describe
from kapelle.cli.times import short, size
from kapelle.cli.transcript import passage

TASK: dict[str, Any] = {
    "id": "task_1",
    "title": "Mend \x1b[31mit",
    "agent": "claude",
    "model": "big",
    "status": "failed",
    "reason": "A check failed.",
    "waiting_for": None,
    "priority": "P1",
    "project": None,
    "tags": ["x"],
    "depends_on": [],
    "workspace": {"path": "/w", "branch": "kapelle/1", "base": "main", "commit": "c0ffee"},
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:01:05Z",
    "merged_at": None,
    "attempts": [
        {
            "number": 1,
            "status": "failed",
            "exit": {"kind": "signaled", "code": None, "signal": 9},
            "started_at": "2026-01-01T00:00:00Z",
            "ended_at": "2026-01-01T00:01:05Z",
            "output_bytes": 1234,
            "reason": "killed",
            "mode": "fresh",
            "claimed": "success",
        }
    ],
    "checks": [
        {"name": "make test", "passed": False, "output": "boom\x07\n", "duration_s": 1.0},
        {"name": "diff_not_empty", "passed": True, "output": "", "duration_s": 0.1},
    ],
    "result": "I did it",
}


def test_claim_and_verdict_stand_apart() -> None:
    text = "\n".join(describe(TASK))
    assert "claimed    success" in text
    assert "verified   1 of 2 checks passed" in text
    assert "✗ make test" in text
    assert "boom" in text
    assert "killed by SIGKILL" in text
    assert "ran 1m05s" in text
    assert "kapelle retry task_1" in text
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize(
    ("status", "waiting_for", "is_settled", "code"),
    [
        ("completed", None, True, 0),
        ("failed", None, True, 1),
        ("cancelled", None, True, 1),
        ("waiting", "input", True, 3),
        ("waiting", "rate_limit", False, 3),
        ("running", None, False, 1),
    ],
)
def test_what_a_state_means(
    status: str, waiting_for: str | None, is_settled: bool, code: int
) -> None:
    task = {**TASK, "status": status, "waiting_for": waiting_for}
    assert settled(task) is is_settled
    assert exit_code(task) == code
    assert all(command.startswith("kapelle ") for command, _ in next_commands(task))


def test_failed_work_is_the_worst_news() -> None:
    tasks = [{**TASK, "status": status} for status in ("completed", "waiting", "failed")]
    assert exit_code_of_all(tasks) == 1
    assert exit_code_of_all(tasks[:2]) == 3
    assert exit_code_of_all(tasks[:1]) == 0


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ServerEvent("text", {"text": "hi\x1b[2J\n"}, None), "hi"),
        (ServerEvent("tool_call", {"name": "Bash", "data": {"c": 1}}, None), '→ Bash {"c": 1}'),
        (ServerEvent("tool_result", {"text": "a\nb"}, None), "← a b"),
        (ServerEvent("error", {"name": "rate_limit"}, None), "Error: rate_limit"),
        (ServerEvent("question", {"text": "Which?"}, None), "Question: Which?"),
        (ServerEvent("stderr", {"text": "a\nb"}, None), "! a\n! b"),
        (ServerEvent("attempt", {"number": 2}, None), "── attempt 2 ──"),
    ],
)
def test_the_transcript_is_readable(event: ServerEvent, text: str) -> None:
    shown = passage(event)
    assert shown is not None
    assert shown.text == text


@pytest.mark.parametrize("kind", ["usage", "session", "end"])
def test_some_events_say_nothing_to_a_person(kind: str) -> None:
    assert passage(ServerEvent(kind, {"text": "x"}, None)) is None


def test_columns_line_up_for_wide_letters() -> None:
    lines = table(["A", "B"], [["日本", "x"], ["a", "y"]])
    assert lines[1:] == ["日本  x", "a     y"]
    assert columns_of("日本") == 4
    assert fit("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4s"), (12, "12s"), (185, "3m05s"), (7800, "2h10m"), (97200, "1d03h"), (-1, "0.0s")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert short(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (2_000_000, "2.0 MB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text


def test_an_archived_task_says_so_and_names_no_removed_worktree(tmp_path: Path) -> None:
    gone = {**TASK["workspace"], "path": str(tmp_path / "gone")}
    task = {**TASK, "archived_at": "2026-01-02T00:00:00Z", "workspace": gone}
    text = "\n".join(describe(task))
    assert "failed, archived" in text
    assert "workspace  removed" in text
    assert "kapelle archive" not in text
    assert "kapelle retry" not in text


def test_an_attempt_that_asked_did_not_fail() -> None:
    ended = {"kind": "exited", "code": 0, "signal": None}
    asked = {**TASK["attempts"][0], "reason": "It asks: which one?", "exit": ended}
    lines = [line for line in describe({**TASK, "attempts": [asked]}) if "attempt 1" in line]
    assert "asked" in lines[0]
    assert "failed" not in lines[0]
    assert "exit code" not in lines[0]
