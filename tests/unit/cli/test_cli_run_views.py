"""Runs as people see them: lists, one run, its history, and what to type next."""

from typing import Any

import pytest

from kapelle.cli.passages import event_line, event_passage, timed_event_passage
from kapelle.cli.progress import describe_progress, describe_progress_event
from kapelle.cli.run_view import describe_run
from kapelle.cli.states import describe_end, exit_code, exit_code_of_all, is_settled
from kapelle.cli.tasks import rows as lines
from kapelle.cli.text import cut_title
from kapelle.domain.report import next_commands

RUN: Any = {
    "id": "run_1",
    "pattern": "loop",
    "title": "Mend \x1b[31mit",
    "status": "completed",
    "reason": "the condition holds after iteration 2",
    "waiting_for": None,
    "questions": [],
    "directory": "/w",
    "project": "P",
    "parent_id": None,
    "schedule_id": None,
    "workspace": {
        "kind": "worktree", "path": "/w", "branch": "kapelle/run_1", "base": "main",
        "base_commit": "aaa", "commit": "bbb", "owner": None,
    },
    "spec": {"agent": "claude", "model": "big", "max_iterations": 5},
    "progress": {},
    "result": None,
    "spent": {"seconds": 65.0, "agent_calls": 2, "cost_usd": 0.5},
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:01:05Z",
    "archived_at": None,
    "merged_at": None,
}  # fmt: skip
STEP = {
    "position": "0001",
    "kind": "task",
    "label": "Mend it (iteration 1)",
    "subject": "task_1",
    "result": {"status": "failed", "reason": "A check\x1b[2J failed."},
    "error": None,
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:00:05Z",
}


def changed_run(changes: dict[str, Any]) -> Any:
    return {**RUN, **changes}


def shown(steps: Any = None, told: Any = (), **changes: Any) -> str:
    return "\n".join(describe_run(changed_run(changes), steps or [], told))


def iteration(number: int, verdict: str, score: float | None = None, **more: Any) -> dict[str, Any]:
    return {"number": number, "verdict": verdict, "score": score, "commit": "c0ffee", **more}


def test_one_run_tells_what_a_person_needs() -> None:
    text = shown([STEP])
    assert "status     completed: the condition holds after iteration 2" in text
    assert "agents     claude with big" in text
    assert "under way 1m05s" in text
    assert "spent      2 agent calls, $0.5000" in text
    assert "✗ Mend it (iteration 1) 5.0s\n      task_1\n      A check failed." in text
    assert "branch     kapelle/run_1 (from main)" in text
    assert "kapelle merge run_1  merge it into main" in text
    assert "\x1b" not in text


def test_what_was_spent_stands_against_the_limits() -> None:
    limits = {"max_seconds": 600, "max_agent_calls": 10, "budget_usd": 5}
    assert "2 of 10 agent calls, $0.5000 of $5, 1m05s of 10m00s" in shown(spec=limits)
    unknown = {**RUN["spent"], "cost_usd": None}
    assert "cost unknown of $5" in shown(spec=limits, spent=unknown)


def test_the_iterations_of_an_optimising_loop() -> None:
    best = iteration(1, "keep", 12.5)
    iterations = [iteration(0, "start", 15), best, iteration(2, "fail", None, problem="boom\nbang")]
    text = shown(result={"iterations": iterations, "best": best})
    assert "#   VERDICT       SCORE  COMMIT  PROBLEM" in text
    assert "0   the start     15     c0ffee" in text
    assert "1*  better, kept  12.5   c0ffee" in text
    assert "2   failed        -      c0ffee  boom bang" in text
    assert "* the best" in text


def test_a_loop_that_runs_is_known_from_its_history() -> None:
    told = [
        {"iteration": 1, "failures": 0, "best": None},
        {"iteration": 1, "verdict": "progress", "score": None, "problem": "failed: make test"},
        {"iteration": 2, "failures": 0, "best": None},
    ]
    going: dict[str, Any] = {"status": "running", "ended_at": None, "reason": None}
    text = shown(told=told, progress={"iteration": 2}, **going)
    assert "progress   iteration 2 of 5" in text
    assert "1  not yet  failed: make test" in text
    assert "SCORE" not in text
    assert "kapelle runs pause run_1" in text


def test_a_pipeline_shows_what_is_still_to_come() -> None:
    steps = [{"prompt": "design"}, {"prompt": "build\nall of it"}, {"name": "Test", "prompt": "x"}]
    begun = {**STEP, "label": "design (1/3)", "result": None, "ended_at": None}
    text = shown([begun], pattern="pipeline", spec={"steps": steps}, status="running",
                 ended_at=None)  # fmt: skip
    assert "▸ design (1/3)" in text
    assert "· build all of it" in text
    assert "· Test" in text


def test_a_task_that_a_run_waits_for_tells_what_it_is_at() -> None:
    begun: Any = {**STEP, "result": None, "ended_at": None}
    waiting = {"status": "waiting", "waiting_for": "input"}
    asking: Any = {"id": "task_1", **waiting, "reason": "It asks: x"}
    text = "\n".join(
        describe_run(changed_run({"status": "running"}), [begun], (), {"task_1": asking})
    )
    assert ", waiting\n" in text
    assert "It asks: x\n      kapelle answer task_1 " in text


def test_the_candidates_of_a_choice() -> None:
    candidates = [
        {"number": 1, "agent": "claude", "model": "big", "score": 3.0, "against_winner": ""},
        {"number": 2, "agent": "codex", "model": None, "score": 2.0, "against_winner": "a |\n b |"},
        {"number": 3, "agent": "gemini", "model": None, "score": None, "problem": "A check failed"},
    ]
    text = shown(pattern="best-of", result={"winner": 1, "candidates": candidates})
    assert "1*  claude  big    3\n" in text
    assert "3   gemini  -      -      A check failed" in text
    assert "2   codex   -      2\n      against winner:\n      a |\n       b |" in text
    assert "* the best" in text


def test_the_iterations_of_a_team() -> None:
    review = {"quality": True, "consistency": False, "goal_aligned": True, "goal_complete": False}
    item = {
        "number": 1,
        "outcomes": [
            {"title": "The core", "status": "merged", "reason": None},
            {"title": "The rest", "status": "conflict", "reason": "both changed a.txt"},
        ],
        "checks": [{"name": "t", "passed": True}],
        "review": {**review, "feedback": "Join them."},
        "problem": None,
    }
    result = {"iterations": [item], "success_criteria": ["it works"]}
    text = shown(pattern="team", result=result)
    assert "success criteria\n    - it works" in text
    assert "1 of 1 checks passed" in text
    assert "review: no to consistency, goal complete: Join them." in text
    assert "✓ The core\n" in text
    assert "✗ The rest (conflict): both changed a.txt" in text


def test_the_result_of_any_pattern_is_a_table_of_its_objects() -> None:
    files = [{"path": "a.py", "lines": 3}, {"path": "b.py", "lines": 14, "reason": "too\nlong"}]
    text = shown(pattern="mine", result={"read_files": files, "done": False})
    assert "read files\n    PATH  LINES  REASON\n    a.py  3\n    b.py  14     too long" in text


def test_a_long_result_is_shown_from_its_beginning() -> None:
    result = {"first": "x" * 400, "items": list(range(100)), "last": "\x1b[31mend"}
    lines = shown(pattern="mine", result=result).splitlines()
    begin = lines.index("  result") + 1
    assert lines[begin] == "    {"
    assert lines[begin + 1].startswith('      "first": "xxx')
    assert lines[begin + 1].endswith("…")
    assert lines[begin + 15] == "    … all of it: kapelle runs result run_1"
    assert "end" not in "\n".join(lines[begin : begin + 15])


def test_what_asks_is_told_in_the_list_instead_of_how_far_it_is() -> None:
    going = changed_run({"status": "running", "progress": {"iteration": 2}, "reason": "it works"})
    assert lines([going])[1].endswith("(iteration 2 of 5, it works)")
    asking: Any = {**going, "waiting_for": "input", "reason": "task_1 asks: y?"}
    assert lines([asking])[1].endswith("(task_1 asks: y?)")


def test_the_result_of_ones_own_pattern_is_json() -> None:
    text = shown(pattern="mine", result={"answer": 42})
    assert '"answer": 42' in text


def test_many_tasks_do_not_fill_the_screen() -> None:
    text = shown([{**STEP, "position": f"{n:04}", "subject": f"task_{n}"} for n in range(30)])
    assert "… 18 earlier ones: kapelle runs steps run_1" in text
    assert "task_17\n" not in text
    assert "task_18\n" in text


QUESTIONS = [
    {"token": "run_1:0001", "text": "Which\x07 one?", "default": "the first"},
    {"token": "run_1:0002", "text": "When?", "default": None},
]


def test_open_questions_and_how_to_answer_them() -> None:
    waiting: dict[str, Any] = {"status": "waiting", "waiting_for": "input", "ended_at": None}
    text = shown(questions=QUESTIONS, **waiting)
    assert "? Which one? [the first]\n      kapelle answer run_1:0001 " in text
    assert "? When?\n      kapelle answer run_1:0002 " in text
    [first, *_] = next_commands(changed_run({"questions": QUESTIONS[:1], **waiting}))
    assert first[0] == 'kapelle answer run_1 "…"'


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        ({"status": "queued"}, ["tail", "pause", "cancel"]),
        ({"status": "running"}, ["tail", "pause", "cancel"]),
        ({"status": "paused"}, ["resume", "cancel"]),
        ({"status": "completed"}, ["diff", "merge"]),
        ({"status": "completed", "merged_at": "x"}, ["diff", "archive"]),
        ({"status": "completed", "archived_at": "x"}, ["steps", "diff"]),
        ({"delivery": {"mode": "pr", "status": "failed"}}, ["pr run_1", "diff"]),
        ({"status": "failed"}, ["steps", "diff", "--force"]),
        ({"status": "cancelled", "workspace": {**RUN["workspace"], "commit": "aaa"}},
         ["steps", "result"]),
        ({"workspace": {**RUN["workspace"], "owner": "run_0"}}, ["steps"]),
    ],
)  # fmt: skip
def test_what_to_type_next(changes: dict[str, Any], commands: list[str]) -> None:
    found = [command for command, _ in next_commands(changed_run(changes))]
    assert len(found) == len(commands)
    for command, word in zip(found, commands, strict=True):
        assert command.startswith("kapelle ")
        assert word in command


@pytest.mark.parametrize(
    ("status", "rests", "code"),
    [
        ("queued", False, 1),
        ("running", False, 1),
        ("waiting", True, 3),
        ("paused", True, 3),
        ("completed", True, 0),
        ("failed", True, 1),
        ("cancelled", True, 1),
    ],
)
def test_what_a_state_means(status: str, rests: bool, code: int) -> None:
    run = changed_run({"status": status, "waiting_for": "input" if status == "waiting" else None})
    assert is_settled(run) is rests
    assert exit_code(run) == code
    assert exit_code_of_all([RUN, run]) == code


def test_the_list_tells_how_far_a_run_is_and_what_it_waits_for() -> None:
    going = changed_run(
        {"status": "running", "progress": {"iteration": 2, "best": 3.0}, "reason": None}
    )
    asking = changed_run({"status": "waiting", "reason": "Which one?"})
    away = changed_run({"archived_at": "x"})
    _, first, second, third = lines([going, asking, away])
    assert first.endswith("Mend it (iteration 2 of 5, best 3)")
    assert second.endswith("Mend it (Which one?)")
    assert third.endswith("(archived) Mend it")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"iteration": 1, "failures": 0, "best": None}, "iteration 1"),
        ({"iteration": 2, "verdict": "keep", "score": 3.5, "best": 3.5},
         "iteration 2: score 3.5, better, kept"),
        ({"iteration": 2, "verdict": "discard", "score": 4, "best": 3},
         "iteration 2: score 4, not better, put back, best 3"),
        ({"iteration": 2, "verdict": "keep", "score": 4, "best": 4, "feedback": "more"},
         "iteration 2: score 4, better, kept (more)"),
        ({"iteration": 2, "verdict": "fail", "score": None, "problem": "x\ny"},
         "iteration 2: failed (x y)"),
        ({"step": 2, "steps": 3, "doing": "test"}, "step 2 of 3: test"),
        ({"iteration": 1, "phase": "not done", "lack": "no tests", "merged": 1},
         "iteration 1, not done: no tests"),
        ({"winner": 2, "agent": "b", "score": 7.0}, "score 7, candidate 2 (b) wins"),
        ({"candidates": 3, "eligible": 2}, "2 of 3 candidates passed"),
        ({"items": 20, "ended": 3, "done": 2, "failed": 1}, "2 of 20 done, 1 failed"),
        ({"phase": "assess", "cycles": 10, "cycle": 0, "done": 0, "milestones": []}, "assess"),
        ({"phase": "implement", "cycles": 10, "cycle": 3, "done": 1, "milestones": [{}, {}]},
         "implement, cycle 3 of 10, 1 of 2 milestones done"),
        ({"phase": "talk", "loop": 1, "loops": 1, "round": 1, "rounds": 2}, "talk, round 1 of 2"),
        ({"files_read": 3, "ok": True, "share": 0.5}, "files read 3, ok yes, share 0.5"),
        ({}, "goes on"),
    ],
)  # fmt: skip
def test_progress_in_words(facts: dict[str, Any], words: str) -> None:
    assert describe_progress_event(facts) == words


def test_the_present_in_words() -> None:
    facts = {"iteration": 3, "failures": 0, "best": 8.0, "verdict": "discard", "score": 9.0}
    assert describe_progress(facts, 10) == "iteration 3 of 10, best 8, last score 9"
    assert describe_progress(facts, 0) == "iteration 3, best 8, last score 9"


def event(kind: str, /, **data: Any) -> Any:
    task = "task_1" if kind.startswith(("task", "attempt")) else None
    at = "2026-01-01T00:00:00Z"
    return {"seq": 1, "at": at, "kind": kind, "task_id": task, "run_id": "run_1", "data": data}


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (event("run.created", title="T\x1b[2J"), "Created: T"),
        (event("run.running", title="T", reason=None), "Running"),
        (event("run.progress", iteration=1), "iteration 1"),
        (event("run.waiting", reason="Which?"), "It asks: Which?"),
        (event("run.answered", answer="this"), "Answered: this"),
        (event("run.failed", reason="no luck"), "Failed: no luck"),
        (event("run.completed", reason=None), "Completed"),
        (event("run.merged", base="main", commit="c"), "Merged into main"),
        (event("task.running", title="T"), "  ▸ T (task_1)"),
        (event("task.completed", title="T", reason="x"), "  ✓ T (task_1)"),
        (event("task.failed", title="T", reason="x"), "  ✗ T (task_1): x"),
        (event("task.waiting", title="T", reason="limited"), "  ? T (task_1): limited"),
        (
            event("task.waiting", title="T", reason="It asks: x", waiting_for="input"),
            '  ? T (task_1): It asks: x (answer with `kapelle answer task_1 "…"`)',
        ),
        (event("check.failed", name="make test"), "  ✗ check failed: make test"),
        (event("attempt.warning", what="x", text="slow"), "  ! slow"),
    ],
)
def test_the_history_of_a_run_is_readable(told: Any, text: str) -> None:
    found = event_passage(told)
    assert found is not None
    assert found.text == text
    timed = timed_event_passage(told)
    assert timed is not None
    assert timed.text.endswith(text)


@pytest.mark.parametrize(
    "kind", ["run.queued", "task.created", "task.queued", "attempt.started", "account.paused"]
)
def test_some_events_say_nothing_to_a_person(kind: str) -> None:
    assert event_passage(event(kind, title="T")) is None


def test_a_long_title_keeps_which_one_it_is() -> None:
    assert cut_title("Short (iteration 1)", 30) == "Short (iteration 1)"
    cut = cut_title("Make the slow function faster (iteration 12)", 30)
    assert cut == "Make the slow … (iteration 12)"
    assert len(cut) == 30
    assert cut_title("x" * 50, 30) == "x" * 29 + "…"


def test_the_verdict_in_a_sentence() -> None:
    assert describe_end(RUN) == "run_1 completed after 1m05s: the condition holds after iteration 2"


def test_an_event_of_a_run_names_it() -> None:
    assert "run.progress run_1 iteration=1" in event_line(event("run.progress", iteration=1))
