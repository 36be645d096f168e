import re
from pathlib import Path
from typing import Any

import pytest

from kapelle.cli.figures import (
    format_cost,
    format_seconds,
    format_size,
    format_usd,
    format_usd_limit,
)
from kapelle.cli.layout import format_table
from kapelle.cli.passages import PieceJoiner, event_line, transcript_passage
from kapelle.cli.states import (
    describe_delivery,
    exit_code,
    exit_code_of_all,
    is_settled,
    waiting_reason,
)
from kapelle.cli.task_view import describe_task
from kapelle.cli.tasks import rows
from kapelle.cli.text import cell_width, cut_text
from kapelle.cli.usage import usage_lines
from kapelle.client.protocol import ServerEvent
from kapelle.domain.report import next_commands

TASK: Any = {
    "id": "task_1",
    "title": "Mend \x1b[31mit",
    "agent": "claude",
    "model": "big",
    "status": "failed",
    "reason": "A check failed.",
    "waiting_for": None,
    "priority": "P1",
    "project": None,
    "directory": "/w",
    "tags": ["x"],
    "depends_on": [],
    "fallback_agents": [],
    "max_turns": None,
    "budget_usd": None,
    "timeout_s": None,
    "mcp": [],
    "not_before": None,
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
            "question": None,
            "mode": "fresh",
            "claimed": "success",
            "agent": "claude",
            "model": "big",
            "model_reason": None,
            "failure": "out_of_memory",
            "evidence": "killed by SIGKILL, which Kapelle did not send",
            "diagnosis": None,
            "warnings": [],
            "usage": None,
        }
    ],
    "checks": [
        {"name": "make test", "passed": False, "output": "boom\x07\n", "duration_s": 1.0},
        {"name": "diff_not_empty", "passed": True, "output": "", "duration_s": 0.1},
    ],
    "result": "I did it",
}


def changed_task(changes: dict[str, Any]) -> Any:
    return {**TASK, **changes}


def test_time_between_attempts_is_no_time_that_it_ran() -> None:
    again = {"started_at": "2026-01-01T01:00:00Z", "ended_at": "2026-01-01T01:00:05Z"}
    attempts = [*TASK["attempts"], {**TASK["attempts"][0], **again, "number": 2}]
    text = "\n".join(
        describe_task(changed_task({"attempts": attempts, "ended_at": again["ended_at"]}))
    )
    assert "ran 1m10s" in text


def test_what_was_seen_of_another_task_is_told_as_that() -> None:
    check = {"name": "make test", "passed": True, "output": "", "proved": True}
    for is_earlier, words in ((False, "✓ make test, proved\n"), (True, ", proved earlier\n")):
        made = {**check, "proof": "It fails.", "proved_earlier": is_earlier}
        assert words in "\n".join(describe_task(changed_task({"checks": [made]})))


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_what_did_not_complete_has_no_delivery_to_come(status: str) -> None:
    told: Any = {"mode": "pr", "status": "pending", "reason": None, "state": None, "ci": None}
    told["url"] = None
    assert describe_delivery(told, status) == "pull request, not delivered"
    assert describe_delivery(told, "completed") == "pull request, pending"


def test_claim_and_verdict_stand_apart() -> None:
    text = "\n".join(describe_task(TASK))
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
    ("status", "waiting_for", "settles", "code"),
    [
        ("completed", None, True, 0),
        ("failed", None, True, 1),
        ("cancelled", None, True, 1),
        ("waiting", "input", True, 3),
        ("waiting", "rate_limit", False, 3),
        ("running", None, False, 1),
    ],
)
def test_what_a_state_means(status: str, waiting_for: str | None, settles: bool, code: int) -> None:
    task = changed_task({"status": status, "waiting_for": waiting_for})
    assert is_settled(task) is settles
    assert exit_code(task) == code
    assert all(command.startswith("kapelle ") for command, _ in next_commands(task))


def test_failed_work_is_the_worst_news() -> None:
    tasks = [changed_task({"status": status}) for status in ("completed", "waiting", "failed")]
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
        (ServerEvent("notice", {"text": "retries\x07"}, None), "Notice: retries"),
        (ServerEvent("plan", {"text": "1. look\n2. mend"}, None), "Plan:\n1. look\n2. mend"),
        (ServerEvent("question", {"text": "Which?"}, None), "Question: Which?"),
        (ServerEvent("stderr", {"text": "a\nb"}, None), "! a\n! b"),
        (ServerEvent("attempt", {"number": 2, "agent": "codex"}, None), "── attempt 2 by codex ──"),
    ],
)
def test_the_transcript_is_readable(event: ServerEvent, text: str) -> None:
    shown = transcript_passage(event)
    assert shown is not None
    assert shown.text == text


@pytest.mark.parametrize("kind", ["usage", "session", "model", "end"])
def test_some_events_say_nothing_to_a_person(kind: str) -> None:
    assert transcript_passage(ServerEvent(kind, {"text": "x"}, None)) is None


def test_columns_line_up_for_wide_letters() -> None:
    lines = format_table(["A", "B"], [["日本", "x"], ["a", "y"]])
    assert lines[1:] == ["日本  x", "a     y"]
    assert cell_width("日本") == 4
    assert cut_text("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4s"), (12, "12s"), (185, "3m05s"), (7800, "2h10m"), (97200, "1d03h"), (-1, "0.0s")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (2_000_000, "2.0 MB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_size(count) == text


def test_an_archived_task_says_so_and_names_no_removed_worktree(tmp_path: Path) -> None:
    gone = {**TASK["workspace"], "path": str(tmp_path / "gone")}
    task = changed_task({"archived_at": "2026-01-02T00:00:00Z", "workspace": gone})
    text = "\n".join(describe_task(task))
    assert "failed, archived" in text
    assert "workspace  removed" in text
    assert "kapelle archive" not in text
    assert "kapelle retry" not in text


def test_the_answer_of_a_daemon_that_knows_no_questions_is_shown() -> None:
    older = {name: value for name, value in TASK["attempts"][0].items() if name != "question"}
    lines = list(describe_task(changed_task({"attempts": [{**older, "status": "failed"}]})))
    assert any("attempt 1" in line for line in lines)


def test_an_attempt_that_asked_did_not_fail() -> None:
    ended = {"kind": "exited", "code": 0, "signal": None}
    question = {"question": "which one?", "reason": "It asks: which one?"}
    asked = {**TASK["attempts"][0], **question, "failure": None, "exit": ended}
    lines = [
        line for line in describe_task(changed_task({"attempts": [asked]})) if "attempt 1" in line
    ]
    assert "asked" in lines[0]
    assert "failed" not in lines[0]
    assert "exit code" not in lines[0]


USAGE = {
    "input_tokens": 12_345,
    "output_tokens": 678,
    "cached_tokens": 10_000,
    "turns": 3,
    "cost_usd": 0.0123,
}


def test_an_attempt_tells_who_made_it_what_it_used_and_why_it_failed() -> None:
    attempt = {
        **TASK["attempts"][0],
        "agent": "codex",
        "model": "small",
        "model_reason": "simple: a short prompt that says 'typo'",
        "warnings": [{"at": "2026-01-01T00:00:00Z", "what": "turns", "text": "4 of 5\x1b[2J"}],
        "usage": USAGE,
        "diagnosis": "It forgot the tests.\nRun them.",
    }
    text = "\n".join(describe_task(changed_task({"attempts": [attempt]})))
    assert "by codex with small (simple: a short prompt that says 'typo')" in text
    assert "failure out_of_memory: killed by SIGKILL" in text
    assert "warning: 4 of 5" in text
    assert "used 12,345 tokens in (10,000 cached), 678 out, 3 turns, $0.0123" in text
    assert "It forgot the tests.\n        Run them." in text
    assert "\x1b" not in text


def test_an_unknown_cost_is_not_shown_as_nothing() -> None:
    unpriced = {**TASK["attempts"][0], "usage": {**USAGE, "cost_usd": None}}
    assert "cost unknown" in "\n".join(describe_task(changed_task({"attempts": [unpriced]})))
    priced = {**unpriced, "number": 2, "usage": USAGE}
    text = "\n".join(describe_task(changed_task({"attempts": [unpriced, priced]})))
    assert "cost       ≥ $0.0123 (1 attempt unknown) in all" in text


def test_a_task_tells_its_limits_its_fallback_agents_and_its_servers() -> None:
    limited = {"max_turns": 5, "budget_usd": 2.5, "timeout_s": 600}
    task = changed_task({**limited, "fallback_agents": ["codex", "gemini"], "mcp": ["docs"]})
    text = "\n".join(describe_task(task))
    assert "agent      claude with big, then codex, gemini" in text
    assert "limits     $2.50 in all, 5 turns an attempt, 10m00s an attempt" in text
    assert "mcp        docs" in text


def test_a_waiting_task_tells_for_what_and_until_when() -> None:
    waiting = changed_task({"status": "waiting", "waiting_for": "rate_limit", "reason": "limited"})
    waiting["not_before"] = "2999-01-01T00:00:00Z"
    assert re.fullmatch(r"limited; goes on in \d+d\d\dh, at [\d-]+ [\d:]+", waiting_reason(waiting))
    asking = changed_task({"status": "waiting", "waiting_for": "input", "reason": None})
    assert waiting_reason(asking) == "waiting for your answer"
    assert "goes on in" in rows([waiting])[1]


def test_the_list_names_whoever_took_over() -> None:
    attempt = {**TASK["attempts"][0], "agent": "codex"}
    assert " codex " in rows([changed_task({"attempts": [attempt]})])[1]
    assert " claude " in rows([changed_task({"attempts": []})])[1]


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (
            "account.paused",
            {"account": "a:1", "agent": "a", "until": "2026-01-01T00:00:00Z", "reason": "limited"},
            "limited; it pauses until 202",
        ),
        ("attempt.warning", {"what": "turns", "text": "4 of 5 turns"}, "task_1 4 of 5 turns"),
        ("attempt.diagnosed", {"agent": "judge", "text": "a\nb"}, "by judge: a b"),
        ("attempt.failed", {"code": 1, "signal": None, "output_path": "/x"}, "task_1 code=1"),
    ],
)
def test_the_history_is_readable(kind: str, data: dict[str, Any], words: str) -> None:
    event: Any = {"seq": 1, "at": "2026-01-01T00:00:00Z", "kind": kind, "task_id": "task_1"}
    event["data"] = data
    assert words in event_line(event)


def test_amounts_for_people() -> None:
    assert [format_usd(amount) for amount in (0, 0.00001, 1.23456, 1234.5)] == [
        "$0.0000", "< $0.0001", "$1.2346", "$1,234.5000",
    ]  # fmt: skip
    assert [format_usd_limit(amount) for amount in (5, 0.25, 12.5)] == ["$5", "$0.25", "$12.50"]
    assert format_cost(None, 1) == "unknown"
    assert format_cost(0.5, 2) == "≥ $0.5000 (2 attempts unknown)"


def test_usage_is_a_table_with_a_total() -> None:
    sums = {
        **USAGE,
        "attempts": 2,
        "unknown_cost": 0,
        "unreported": 0,
        "title": None,
        "across": None,
    }
    silent = {**sums, **dict.fromkeys(USAGE, 0), "cost_usd": None, "unreported": 2}
    rows: Any = [{**sums, "key": "claude"}, {**silent, "key": None}]
    total: Any = {**sums, "attempts": 4, "unreported": 2}
    assert usage_lines({"by": "model", "across": None, "rows": rows, "total": total}) == [
        "MODEL      ATTEMPTS   INPUT  CACHED  OUTPUT  TURNS  COST",
        "claude            2  12,345  10,000     678      3  $0.0123",
        "(unknown)         2       -       -       -      -  unknown",
        "total             4  12,345  10,000     678      3  ≥ $0.0123 (2 attempts unknown)",
    ]


def test_a_text_that_comes_in_pieces_is_shown_as_one() -> None:
    shown: list[tuple[str, str]] = []
    show = PieceJoiner(lambda event: shown.append((event.kind, event.data.get("text", ""))))
    for text in ("The wri", "tten", " word\n"):
        show(ServerEvent("text", {"text": text, "data": {"delta": True}}, None))
    show(ServerEvent("tool_call", {"name": "Read"}, None))
    show(ServerEvent("text", {"text": "whole"}, None))
    show(ServerEvent("result", {"text": "whole"}, None))
    assert shown == [("text", "The written word\n"), ("tool_call", ""), ("text", "whole")]
    show(ServerEvent("result", {"text": "more"}, None))
    assert shown[-1] == ("result", "more")
