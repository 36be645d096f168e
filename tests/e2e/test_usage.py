"""What attempts used, through REST and the command line: known prices and unknown ones."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import ApiError, Instance

CONFIG = '''
[prices.known]
input = 2
output = 10
cached = 0.5

[agents.priced]
type = "rehearsal"
model = "known"

[agents.mystery]
type = "rehearsal"
model = "a-model-nobody-has-a-price-for"

[agents.reticent]
type = "command"
output = "events"
command = ["sh", "-c", """
cat > /dev/null
echo '{"kind": "session", "text": "one-session"}'
test -n "$1" || echo '{"kind": "model", "text": "known"}'
echo '{"kind": "usage", "data": {"input_tokens": 1000000}}'
echo '{"kind": "result", "text": "done"}'
""", "agent", "{session}"]

[agents.silent]
type = "command"
command = ["cat"]
'''
TOLD = "[[do]]\nusage = { input = 1200, output = 300, cached = 1000, turns = 2, cost = 0.02 }"
COUNTED = "[[do]]\nusage = { input = 1000000, output = 100000, cached = 400000, turns = 3 }"
# 600,000 tokens at $2, 400,000 at $0.5 and 100,000 at $10 per million.
PRICE = 1.2 + 0.2 + 1.0


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("usage") / "home")
    instance.home.root.mkdir(parents=True)
    instance.home.config.write_text(CONFIG, encoding="utf-8")
    instance.start()
    try:
        yield instance
    finally:
        instance.destroy()


@pytest.fixture(scope="module")
def used(kapelle: Instance, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One ended task of each kind."""
    place = tmp_path_factory.mktemp("place")
    empty = kapelle.cli("usage")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "there are no such attempts" in empty.stderr
    kapelle.post("/templates", {"name": "mending", "guidelines": "Mend the cause."})
    tasks = {
        "told": kapelle.play(TOLD, place, project="alpha", title="Tell it", template="mending"),
        "priced": kapelle.play(COUNTED, place, agent="priced", project="alpha"),
        "mystery": kapelle.play(COUNTED, place, agent="mystery"),
        "silent": kapelle.submit("hello", place, agent="silent"),
    }
    for task_id in tasks.values():
        assert kapelle.wait(task_id)["status"] == "completed"
    return tasks


def rows(kapelle: Instance, query: str = "") -> dict[str | None, Any]:
    return {row["key"]: row for row in kapelle.get(f"/usage?{query}")["rows"]}


def test_an_attempt_has_its_price_from_the_agent_from_the_settings_or_from_nobody(
    kapelle: Instance, used: dict[str, str]
) -> None:
    usage = {kind: kapelle.task(used[kind])["attempts"][0]["usage"] for kind in used}
    assert usage["told"] == {
        "input_tokens": 1200, "output_tokens": 300, "cached_tokens": 1000, "turns": 2,
        "cost_usd": 0.02,
    }  # fmt: skip
    assert usage["priced"]["cost_usd"] == pytest.approx(PRICE)
    assert usage["mystery"]["cost_usd"] is None
    assert usage["silent"] is None


def test_usage_by_agent_keeps_what_is_unknown_apart(
    kapelle: Instance, used: dict[str, str]
) -> None:
    report = kapelle.get("/usage")
    assert report["by"] == "agent"
    assert [row["key"] for row in report["rows"]] == ["priced", "rehearsal", "mystery", "silent"]
    found = rows(kapelle)
    assert found["rehearsal"]["cost_usd"] == pytest.approx(0.02)
    assert (found["mystery"]["cost_usd"], found["mystery"]["unknown_cost"]) == (None, 1)
    assert (found["silent"]["unknown_cost"], found["silent"]["unreported"]) == (0, 1)
    total = report["total"]
    assert total["cost_usd"] == pytest.approx(0.02 + PRICE)
    assert (total["attempts"], total["unknown_cost"], total["unreported"]) == (4, 1, 1)
    assert (total["input_tokens"], total["turns"]) == (2_001_200, 8)


def test_usage_by_every_other_property(kapelle: Instance, used: dict[str, str]) -> None:
    assert set(rows(kapelle, "by=model")) == {"known", "a-model-nobody-has-a-price-for", None}
    projects = rows(kapelle, "by=project")
    # Work without a project belongs to the one of its repository.
    assert sorted(row["attempts"] for row in projects.values()) == [2, 2]
    assert ("alpha" in projects, None in projects) == (True, False)
    templates = rows(kapelle, "by=template")
    assert {key: row["attempts"] for key, row in templates.items()} == {"mending": 1, None: 3}
    tasks = rows(kapelle, "by=task")
    assert list(tasks) == sorted(used.values())
    assert tasks[used["told"]]["title"] == "Tell it"
    assert sum(row["attempts"] for row in rows(kapelle, "by=day").values()) == 4


def test_usage_by_filters(kapelle: Instance, used: dict[str, str]) -> None:
    assert set(rows(kapelle, "agent=priced&model=known&project=alpha")) == {"priced"}
    assert set(rows(kapelle, f"task={used['mystery'][:-2]}")) <= {"mystery"}
    assert rows(kapelle, "agent=nobody") == {}
    now = datetime.now(UTC)
    today, yesterday = now.date(), now.date() - timedelta(days=1)
    assert len(rows(kapelle, f"since={yesterday}&until={today}")) == 4
    assert rows(kapelle, f"until={yesterday - timedelta(days=1)}") == {}
    assert rows(kapelle, f"since={now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}") == {}
    assert len(rows(kapelle, "since=0001-01-01&until=9999-12-31")) == 4


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        (
            "by=colour",
            422,
            "'agent', 'model', 'project', 'task', 'run', 'template', 'outcome' or 'day'",
        ),
        ("since=yesterday", 422, "neither a date nor a time"),
        ("until=2026-13-01", 422, "neither a date nor a time"),
        ("task=task_zzzz", 404, "is not the id of a task"),
    ],
)
def test_a_query_that_means_nothing_is_refused(
    kapelle: Instance, query: str, status: int, words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        kapelle.get(f"/usage?{query}")
    assert caught.value.status == status
    assert words in caught.value.body["error"]["message"]


def test_the_command_line_shows_a_table(kapelle: Instance, used: dict[str, str]) -> None:
    done = kapelle.cli("usage", "--since", "1d", check=True)
    table = [line.split() for line in done.stdout.splitlines()]
    assert table[0] == ["AGENT", "ATTEMPTS", "INPUT", "CACHED", "OUTPUT", "TURNS", "COST"]
    assert table[1] == ["priced", "1", "1,000,000", "400,000", "100,000", "3", "$2.4000"]
    assert table[3][-1] == "unknown"
    assert table[4] == ["silent", "1", "-", "-", "-", "-", "unknown"]
    assert done.stdout.splitlines()[-1].endswith("≥ $2.4200 (2 attempts unknown)")
    assert "1 attempt reported no usage." in done.stderr


def test_the_command_line_filters_and_has_json(kapelle: Instance, used: dict[str, str]) -> None:
    done = kapelle.cli("usage", "--by", "task", "--task", used["told"], "--json", check=True)
    report = json.loads(done.stdout)
    assert [row["key"] for row in report["rows"]] == [used["told"]]
    none = kapelle.cli("usage", "--agent", "nobody", check=True)
    assert (none.stdout, none.stderr) == ("", "Nothing was used: there are no such attempts.\n")
    wrong = kapelle.cli("usage", "--by", "colour")
    assert wrong.returncode == 2
    assert "Use agent, model, project, task, run, template, outcome or day." in wrong.stderr


def test_status_tells_what_each_attempt_used(kapelle: Instance, used: dict[str, str]) -> None:
    shown = {kind: kapelle.cli("status", used[kind], check=True).stdout for kind in used}
    assert "used 1,200 tokens in (1,000 cached), 300 out, 2 turns, $0.0200" in shown["told"]
    assert "by priced with known" in shown["priced"]
    assert "cost unknown" in shown["mystery"]
    assert "used" not in shown["silent"]


def test_limits_and_fallback_agents_come_from_the_command_line(
    kapelle: Instance, tmp_path: Path
) -> None:
    options = ["--fallback", "priced", "--max-turns", "5", "--budget", "0.5", "--retry", "analyze"]
    run = ["run", "hello", "-a", "rehearsal", "-C", str(tmp_path)]
    task = kapelle.task(kapelle.cli(*run, *options, check=True).stdout.strip())
    assert (task["fallback_agents"], task["retry"]["policy"]) == (["priced"], "analyze")
    assert (task["max_turns"], task["budget_usd"]) == (5, 0.5)
    for wrong, words in (
        (["--fallback", "nobody"], "nobody"),
        (["--mcp", "docs=server"], "cannot be given a MCP server"),
        (["--budget", "-1"], "--budget must be more than 0"),
        (["--max-turns", "0"], "max-turns"),
        (["--fork"], "--continue-from"),
    ):
        refused = kapelle.cli(*run, *wrong)
        assert (refused.returncode, refused.stdout) == (2, ""), wrong
        assert words in refused.stderr


def test_a_follow_up_goes_on_and_a_fork_is_a_new_task(kapelle: Instance, tmp_path: Path) -> None:
    first = kapelle.play('[[do]]\nresult = "one"', tmp_path, max_turns=7)
    kapelle.wait(first)
    done = kapelle.cli("continue", first, "and more", "-f", "--max-turns", "9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        first, "── attempt 2 by rehearsal ──", "You: and more", "Result: one"
    ]  # fmt: skip
    task = kapelle.task(first)
    assert [attempt["mode"] for attempt in task["attempts"]] == ["fresh", "resume"]
    assert task["max_turns"] == 9
    forked = kapelle.cli("continue", first, "-", "--fork", input="and yet more", check=True)
    second = kapelle.wait(forked.stdout.strip())
    assert (second["continue_from"], second["fork_session"]) == (first, True)
    assert (second["prompt"], second["max_turns"]) == ("and yet more", 9)
    assert second["directory"] == str(tmp_path)


def test_a_follow_up_needs_something_to_say_and_a_task_that_has_ended(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play("[[do]]\nhang = true", tmp_path)
    assert "is empty" in kapelle.cli("continue", task_id, " ").stderr
    assert "There is no message" in kapelle.cli("continue", task_id).stderr
    nothing = kapelle.cli("continue", task_id, "-", input="")
    assert nothing.returncode == 2
    assert "kapelle continue" in nothing.stderr
    refused = kapelle.cli("continue", task_id, "more")
    assert refused.returncode == 2
    assert "before it has ended" in refused.stderr
    kapelle.post(f"/tasks/{task_id}/cancel")


@pytest.mark.parametrize("body", [{"budget_usd": 0}, {"max_turns": 0}, {"max_turns": "x"}])
@pytest.mark.parametrize("action", ["resume", "retry"])
def test_a_limit_that_is_none_is_refused(
    kapelle: Instance, used: dict[str, str], action: str, body: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as caught:
        kapelle.post(f"/tasks/{used['told']}/{action}", body)
    assert caught.value.status == 422
    assert kapelle.task(used["told"])["status"] == "completed"


def test_it_is_added_up_by_two_properties_at_once(
    kapelle: Instance, used: dict[str, str], tmp_path: Path
) -> None:
    rows = kapelle.get("/usage?by=agent&across=outcome")["rows"]
    found = {(row["key"], row["across"]): row["attempts"] for row in rows}
    assert found[("priced", "completed")] == 1
    checked = kapelle.play(TOLD, tmp_path, agent="priced", checks=["true"])
    kapelle.wait(checked)
    [row] = kapelle.get(f"/usage?by=outcome&task={checked}")["rows"]
    assert (row["key"], row["verified"]) == ("verified", 1)
    days = kapelle.get("/usage?by=project&across=day&project=alpha")["rows"]
    assert {(row["key"], len(row["across"])) for row in days} == {("alpha", 10)}
    shown = kapelle.cli("usage", "--by", "agent", "--across", "day").stdout.splitlines()
    assert shown[0].split()[:2] == ["AGENT", "DAY"]
    assert "total" in shown[-1]


def test_a_resumed_session_has_the_price_of_the_model_that_it_named_before(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.submit("hello", tmp_path, agent="reticent")
    assert kapelle.wait(task_id)["status"] == "completed"
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "go on"})
    first, second = kapelle.wait(task_id)["attempts"]
    assert second["session_id"] == first["session_id"]
    assert [attempt["usage"]["cost_usd"] for attempt in (first, second)] == [2, 2]
