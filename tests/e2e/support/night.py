"""A night that nobody attends, by a moved clock, and whether the report of the morning is true."""

import json
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kapelle.store.tables import Instant, metadata
from tests.e2e.support.ensembles import cast
from tests.e2e.support.instance import Instance

RESTING = {"completed", "failed", "cancelled", "waiting"}
GROUPS = {
    "completed": "done", "failed": "needs", "cancelled": "failed", "running": "open",
    "queued": "open", "blocked": "open", "paused": "needs",
}  # fmt: skip


def pass_time(kapelle: Instance, passed: timedelta) -> None:
    """The machine sleeps: its daemon dies, and all that is stored is so much older afterwards."""
    kapelle.kill()
    shift = int(passed / timedelta(microseconds=1))
    with closing(sqlite3.connect(kapelle.home.database)) as connection:
        for table in metadata.sorted_tables:
            for column in table.columns:
                if isinstance(column.type, Instant):
                    change = f"UPDATE {table.name} SET {column.name} = {column.name} - {shift}"
                    connection.execute(change)
        connection.commit()
    kapelle.start()


def require_true(kapelle: Instance, since: str) -> Any:
    """The report of a time, every word of which that can be compared stands in the store."""
    report = kapelle.get(f"/report?since={since.replace('+', '%2B')}")
    moment = int(datetime.fromisoformat(since).timestamp() * 1_000_000)
    with closing(sqlite3.connect(kapelle.home.database)) as connection:
        connection.row_factory = sqlite3.Row

        def rows(query: str, *values: Any) -> list[sqlite3.Row]:
            return connection.execute(query, values).fetchall()

        tops = rows(
            "SELECT id, status, reason, waiting_for, merged_at, NULL AS pattern FROM tasks"
            " WHERE run_id IS NULL AND"
            " parent_task_id IS NULL AND (ended_at IS NULL OR ended_at >= ?) UNION ALL"
            " SELECT id, status, reason, waiting_for, merged_at, pattern FROM runs"
            " WHERE parent_id IS NULL AND parent_task_id IS NULL"
            " AND (ended_at IS NULL OR ended_at >= ?)",
            moment,
            moment,
        )
        stored = {row["id"]: row for row in tops}
        assert {entry["id"] for entry in report["entries"]} == set(stored)
        for entry in report["entries"]:
            row = stored[entry["id"]]
            waits = row["waiting_for"] is not None
            group = {True: "needs"}.get(waits) or GROUPS[row["status"]]
            group = "open" if row["waiting_for"] == "rate_limit" else group
            if entry["need"] == "look":
                group = "needs"
            assert (entry["status"], entry["group"]) == (row["status"], group)
            assert entry["merged"] == (row["merged_at"] is not None)
            if row["status"] not in {"running", "queued"}:
                assert entry["reason"] == row["reason"]
            if group in {"needs", "failed"} and entry["status"] != "completed":
                assert entry["reason"] or entry["question"]
                assert entry["id"] in entry["next"][0]["command"]
            inside = "SELECT id FROM tasks WHERE id = ? OR run_id = ?"
            tried = rows(
                f"SELECT cost_usd FROM attempts WHERE task_id IN ({inside})", *[entry["id"]] * 2
            )
            costs = [one["cost_usd"] for one in tried if one["cost_usd"] is not None]
            assert entry["attempts"] == len(tried)
            assert entry["cost_usd"] == (pytest.approx(sum(costs)) if costs else None)
            passed = rows(
                "SELECT 1 FROM checks JOIN attempts ON attempts.id = attempt_id"
                f" WHERE passed AND task_id IN ({inside})",
                *[entry["id"]] * 2,
            )
            made = rows("SELECT result FROM steps WHERE run_id = ? AND kind = 'check'", entry["id"])
            own = [one for step in made for one in json.loads(step["result"] or "[]")]
            proven = bool(passed) or any(one["passed"] for one in own)
            if row["pattern"] == "batch":
                each = rows(
                    "SELECT EXISTS (SELECT 1 FROM checks JOIN attempts ON attempts.id = attempt_id"
                    " WHERE passed AND task_id = tasks.id) AS seen FROM tasks WHERE run_id = ?",
                    entry["id"],
                )
                proven = all(one["seen"] for one in each)
            assert bool(entry["verified"]) == (row["status"] == "completed" and proven)
            below = rows("SELECT id, status FROM tasks WHERE run_id = ?", entry["id"])
            told = {part["id"]: part["status"] for part in entry["parts"]}
            if row["status"] in {"completed", "failed"}:
                assert told == {one["id"]: one["status"] for one in below}
        spent = rows("SELECT SUM(cost_usd), COUNT(*) FROM attempts WHERE started_at >= ?", moment)
        assert (report["cost"]["cost_usd"], report["cost"]["attempts"]) == tuple(spent[0])
    text = report["markdown"]
    assert set(re.findall(r"^- \*\*.*\(`(\w+)`\)", text, re.MULTILINE)) == set(stored)
    assert f"{len(stored)} submitted: " in text
    return report


BOOK = r'''
[[rule]]
match = "You prepare work"
attempt = 1
do = [{ usage = { cost = 0.5 } }, { rate_limit = { reset_in_s = 7200 } }]
[[rule]]
match = "You prepare work"
do = [{ result = """## Plan
- [ ] early is there, check: `test -s early.txt`
- [ ] late is there, check: `test -s late.txt`
## Contract
- Be brief.""" }]
[[rule]]
match = "You review work"
do = [{ result = '{"summary": "I looked."}' }]
[[rule]]
match = "## The milestone\\nearly"
do = [{ write = "early.txt", content = "early" }, { usage = { cost = 0.25 } }]
[[rule]]
match = "## The milestone\\nlate"
attempt = 1
do = [{ rate_limit = { reset_in_s = 7200 } }]
[[rule]]
match = "## The milestone\\nlate"
do = [{ write = "late.txt", content = "late" }, { usage = { cost = 0.125 } }]
[[rule]]
match = "^GOOD"
do = [{ run = "echo good >> good.txt" }]
[[rule]]
match = "^BAD"
do = [{ fail = "the model has no idea" }]
[[rule]]
match = "^ASKS"
do = [{ ask = "Which database?" }]
'''


def attend(
    kapelle: Instance, done: Callable[[], bool], disturb: Callable[[], None] = lambda: None
) -> None:
    """Wait for a state, whatever happens meanwhile."""
    deadline = time.monotonic() + 180
    while not done():
        assert time.monotonic() < deadline, kapelle.log_tail()
        disturb()
        time.sleep(0.1)


def night(
    kapelle: Instance, repository: Path, disturb: Callable[[], None] = lambda: None
) -> tuple[Any, str]:
    """The report of a night: a schedule starts a workflow, whose agent meets two limits and waits
    them out; the machine sleeps three times and its daemon dies each time; and the moment at which
    the night began."""
    cast(kapelle, worker=BOOK, other=BOOK)
    began = datetime.now(UTC)

    def task(prompt: str, **spec: Any) -> str:
        return kapelle.submit(prompt, repository, agent="other", **spec)

    before = {
        "proven": task("GOOD work", checks=["grep good good.txt"]), "claimed": task("GOOD words"),
        "failed": task("BAD idea"), "asks": task("ASKS something"),
    }  # fmt: skip
    for task_id in before.values():
        attend(kapelle, lambda t=task_id: kapelle.task(t)["status"] in RESTING, disturb)  # type: ignore[misc]
    kapelle.post(f"/tasks/{before['proven']}/merge")
    at = (began + timedelta(hours=4)).isoformat()
    work = {"task": "Be there early and late", "wait": False, "deliver": "merge"}
    spec = {"directory": str(repository), "agent": "worker", **work}
    schedule = {"kind": "workflow", "spec": spec, "at": at, "missed": "catchup"}
    schedule_id = kapelle.post("/schedules", schedule)["id"]
    pass_time(kapelle, timedelta(hours=4, minutes=5))

    def runs() -> list[Any]:
        return [r for r in kapelle.get("/runs")["runs"] if r["schedule_id"] == schedule_id]

    def is_limited(phase: str) -> bool:
        waiting = kapelle.get("/tasks?status=waiting")["tasks"]
        limited = [task for task in waiting if task["waiting_for"] == "rate_limit"]
        return any(task["title"].startswith(phase) for task in limited)

    asleep = timedelta(hours=2, minutes=5)
    for number, phase in enumerate(("Assess", "Implement (cycle 2)")):
        attend(kapelle, lambda p=phase: is_limited(p), disturb)  # type: ignore[misc]
        evening = began - timedelta(hours=5) - number * asleep
        entries = require_true(kapelle, evening.isoformat())["entries"]
        assert [e["group"] for e in entries if e["id"] == runs()[0]["id"]] == ["open"]
        pass_time(kapelle, asleep)
    attend(kapelle, lambda: runs()[0]["status"] in RESTING, disturb)
    attend(kapelle, lambda: runs()[0]["delivery"]["status"] == "delivered", disturb)
    since = (began - timedelta(hours=9)).isoformat()
    report = require_true(kapelle, since)
    groups = {entry["id"]: entry["group"] for entry in report["entries"]}
    assert groups == {
        before["proven"]: "done", before["claimed"]: "needs", before["failed"]: "needs",
        before["asks"]: "needs", runs()[0]["id"]: "done",
    }  # fmt: skip
    return report, since
