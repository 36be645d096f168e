"""`kapelle batch`: so many at once, no item stops another, and what became of each."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

import kapelle as api
from tests.e2e.support.ensembles import (
    answer,
    cast,
    files_on_branch,
    perform,
    play,
    rest,
    rule,
    start,
    tasks_of,
    with_playbook,
)
from tests.e2e.support.instance import ApiError, Instance, pauses
from tests.e2e.support.repositories import git, make_repository

MANY = "[limits]\nmax_attempts = 20\n"


def progress_of(kapelle: Instance, run_id: str) -> list[dict[str, Any]]:
    """What an ended run told of its progress, in order."""
    history = kapelle.home.runs / run_id / "events.jsonl"
    for _ in pauses(10):
        events = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
        if events[-1]["kind"] in {"run.completed", "run.failed"}:
            break
    return [event["data"] for event in events if event["kind"] == "run.progress"]


def test_no_item_stops_another_and_each_says_what_became_of_it(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    def met(name: str, other: str) -> dict[str, Any]:
        wait = f"touch {tmp_path}/{name}; until test -e {tmp_path}/{other}; do sleep 0.05; done"
        return {"run": wait}

    used = {"usage": {"cost": 0.5}}
    items = [
        {"title": "left", "prompt": play(met("l", "r"), {"write": "same", "content": "l\n"}, used)},
        {"title": "right", "prompt": play(met("r", "l"), {"write": "same", "content": "r\n"})},
        {"title": "bad", "prompt": play({"fail": "no ideas"})},
        {
            "title": "unchecked",
            "prompt": play({"write": "c", "content": "c\n"}),
            "checks": ["false"],
        },
        {
            "title": "chosen",
            "prompt": play({"write": "b", "content": "b\n"}),
            "pattern": "best-of",
            "options": {"count": 2, "eval": "echo 1", "direction": "minimize"},
        },
        {"title": "a person", "prompt": play({"result": "I looked"})},
    ]
    run = perform(kapelle, "batch", repository, items=items, at_once=6, title="Ideas")
    assert run["status"] == "failed"
    assert run["reason"].startswith("3 of 6 items failed: ")
    found = {item["title"]: item for item in run["result"]["items"]}
    states = {title: (item["status"], item["merged"]) for title, item in found.items()}
    left, right = states.pop("left"), states.pop("right")
    assert {left, right} == {("completed", True), ("failed", False)}
    assert states == {
        "bad": ("failed", False), "unchecked": ("failed", False), "chosen": ("completed", True),
        "a person": ("completed", False),
    }  # fmt: skip
    clash = next(found[title] for title in ("left", "right") if not found[title]["merged"])
    assert "could not be merged" in clash["reason"]
    assert "no ideas" in found["bad"]["reason"]
    assert found["left"]["cost_usd"] == 0.5
    assert {"same", "b"} <= files_on_branch(repository, run)
    # All of it is found under the project of its repository.
    assert run["project"] is None
    inside = kapelle.get(f"/runs/{found['chosen']['id']}")
    children = [*tasks_of(kapelle, run["id"]), inside, *tasks_of(kapelle, inside["id"])]
    assert {child["project"] for child in children} == {run["project"]}
    done = [facts["done"] for facts in progress_of(kapelle, run["id"])]
    assert done == sorted(done)


def test_many_items_ten_at_once_and_the_daemon_dies_in_the_middle(
    kapelle: Instance, repository: Path, tmp_path: Path, exhaustive: bool
) -> None:
    count = 30 if exhaustive else 14
    inside, go, seen = tmp_path / "inside", tmp_path / "go", tmp_path / "seen"
    inside.mkdir()
    kapelle.home.config.write_text(MANY, encoding="utf-8")
    enter = f"touch {inside}/$$; ls {inside} | wc -l >> {seen}"
    wait = f"until test -e {go}; do sleep 0.1; done"

    def item(number: int) -> str:
        step = f"{enter}; {wait}; echo {number} > {number}.txt; rm {inside}/$$"
        return play({"run": step})

    items = [item(number) for number in range(count)]
    run_id = start(kapelle, "batch", repository, items=items, at_once=10)
    deadline = time.monotonic() + 120
    while len(list(inside.iterdir())) < 10:
        assert time.monotonic() < deadline, kapelle.log_tail()
        time.sleep(0.1)
    kapelle.kill()
    kapelle.start()
    go.touch()
    run = rest(kapelle, run_id, timeout_s=240)
    assert (run["status"], run["reason"]) == ("completed", f"all {count} items are done")
    assert {f"{number}.txt" for number in range(count)} <= files_on_branch(repository, run)
    assert [len(task["attempts"]) for task in tasks_of(kapelle, run_id)] == [1] * count
    assert max(map(int, seen.read_text().split())) == 10


def test_what_cannot_be_done_is_refused_before_anything_begins(
    kapelle: Instance, repository: Path
) -> None:
    def refused(*items: Any, **more: Any) -> str:
        with pytest.raises(ApiError) as error:
            start(kapelle, "batch", repository, items=list(items), **more)
        return str(error.value.body["error"]["message"])

    assert "item 2 (best-of)" in refused(
        "a", {"prompt": "b", "pattern": "best-of", "options": {"count": 1}}
    )
    assert "a batch holds no batches" in refused({"prompt": "a", "pattern": "batch"})
    assert "nobody" in refused({"prompt": "a", "agent": "nobody"})
    assert "the prompt is empty" in refused(" ")
    assert "no pattern 'debat'; did you mean debate?" in refused(
        {"prompt": "a", "pattern": "debat"}
    )
    absent = {"prompt": "a", "pattern": "best-of", "options": {"candidates": ["nobody", "x"]}}
    assert "nobody" in refused("b", absent)


def test_a_list_is_saved_changed_exported_and_worked_off(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    with_playbook(
        kapelle, rule("one", {"write": "1", "content": "1\n"}) + rule("two", {"result": "no"})
    )

    def cli(*words: str) -> str:
        done = kapelle.cli("batches", *words, cwd=repository)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    file = tmp_path / "night.md"
    file.write_text(
        "- Do one\n  - title: first\n  - check: test -s 1\n- Do two\n", encoding="utf-8"
    )
    assert cli("save", "night", str(file)) == "2 items\n"
    as_csv = tmp_path / "night.csv"
    as_csv.write_text(cli("show", "night", "--csv"), encoding="utf-8")
    assert cli("save", "copy", str(as_csv)) == "2 items\n"
    assert cli("show", "copy") == cli("show", "night")
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho '- Do one again' >> \"$1\"\n", encoding="utf-8")
    editor.chmod(0o755)
    kapelle.env["EDITOR"] = str(editor)
    assert cli("edit", "copy") == "3 items\n"
    assert [(b["name"], len(b["items"])) for b in kapelle.get("/batches")] == [
        ("copy", 3),
        ("night", 2),
    ]
    cli("delete", "copy")
    assert "There is no list 'copy'" in kapelle.cli("batches", "show", "copy").stderr
    listed = ("batch", "--list", "night", "-a", "rehearsal", "--at-once", "1")
    run = rest(kapelle, kapelle.cli(*listed, cwd=repository).stdout.strip())
    # It is verified when all of them are.
    assert (run["status"], run["verified"]) == ("completed", False), run["reason"]
    assert run["reason"] == "all 2 items are done, 1 not verified"
    assert [item["title"] for item in run["result"]["items"]] == ["first", "Do two"]
    # A schedule has what the list holds when it starts.
    plan = ("--cron", "0 3 1 1 *", "batch", "--list", "night", "-a", "rehearsal")
    made = kapelle.cli("schedule", "create", *plan, cwd=repository)
    assert made.returncode == 0, made.stderr
    kapelle.call("PUT", "/batches/night", {"text": "- Do one\n- Do two\n- Do two more\n"})
    begun = kapelle.post(f"/schedules/{made.stdout.strip()}/run")
    run = rest(kapelle, begun["subject"])
    assert [item["title"] for item in run["result"]["items"]] == ["Do one", "Do two", "Do two more"]
    assert "there is no item" in kapelle.cli("batch", "-a", "rehearsal", cwd=repository).stderr
    refused = kapelle.cli("batches", "save", "a/b", str(file))
    assert "'a/b' cannot be the name of a list" in refused.stderr
    file.write_text("- one\n- two\n  - priority: P9\n", encoding="utf-8")
    assert "item 2: priority must be" in kapelle.cli("batches", "save", "x", str(file)).stderr
    file.write_text("- one\n  - reviewer: ann\n  \\- note: meant so\n", encoding="utf-8")
    said = kapelle.cli("batches", "save", "x", str(file)).stderr
    assert "`- reviewer:` is no field, so it is part of the prompt." in said
    assert "note" not in said
    with pytest.raises(ApiError, match="line 2: 'two' belongs to no item"):
        kapelle.call("PUT", "/batches/night", {"text": "- one\ntwo\n"})


def test_items_stay_on_their_own_and_may_be_done_elsewhere(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    elsewhere = make_repository(tmp_path / "elsewhere")
    cast(kapelle, one=rule("Do", {"write": "by", "content": "one\n"}),
         two=rule("Do", {"write": "by", "content": "two\n"}))  # fmt: skip
    items = [
        "Do it", {"prompt": "Do it there", "directory": str(elsewhere), "agent": "two"},
        {"prompt": "Do it twice", "checks": ["false"], "max_attempts": 2},
    ]  # fmt: skip
    run = perform(
        kapelle, "batch", repository, agent="one", items=items, merge=False, checks=["test -f by"]
    )
    assert run["reason"].startswith("1 of 3 items failed: ")
    assert "by" not in files_on_branch(repository, run)
    done = [kapelle.task(item["id"]) for item in run["result"]["items"]]
    assert [(one["agent"], one["status"], len(one["attempts"])) for one in done] == [
        ("one", "completed", 1), ("two", "completed", 1), ("one", "failed", 2),
    ]  # fmt: skip
    assert not any(item["merged"] for item in run["result"]["items"])
    for place, task, who in ((repository, done[0], "one"), (elsewhere, done[1], "two")):
        assert git(place, "show", f"{task['workspace']['branch']}:by") == who


def test_a_key_means_the_list_as_it_was_first(kapelle: Instance, repository: Path) -> None:
    def begin(name: str) -> api.Run:
        with api.connect(home=kapelle.home.root, start=False) as client:
            where = {"directory": str(repository), "agent": "rehearsal", "saved": name}
            return client.runs.start("batch", idempotency_key="tonight", **where)

    for name in ("ideas", "others"):
        kapelle.call("PUT", f"/batches/{name}", {"text": "- Do one\n"})
    first = begin("ideas")
    kapelle.call("PUT", "/batches/ideas", {"text": "- Do two\n- Do three\n"})
    assert begin("ideas").id == first.id
    kapelle.call("DELETE", "/batches/ideas")
    assert begin("ideas").id == first.id
    with pytest.raises(api.Conflict, match=f"was used for another run, {first.id}"):
        begin("others")
    assert len(rest(kapelle, first.id)["result"]["items"]) == 1


def test_every_item_becomes_a_debate(kapelle: Instance, repository: Path) -> None:
    agrees = answer({"verdict": "agree", "position": "Use it", "reasons": []})
    cast(kapelle, left=rule("You are side", agrees), right=rule("You are side", agrees))
    spec = {
        "directory": str(repository), "agent": "left", "items": ["Use SQLite?", "Use tabs?"],
        "pattern": "debate", "options": {"sides": ["left", "right"], "rounds": 1},
    }  # fmt: skip
    run = rest(kapelle, kapelle.post("/runs", {"pattern": "batch", "spec": spec})["id"])
    assert (run["status"], run["reason"]) == ("completed", "all 2 items are done")
    debates = [kapelle.get(f"/runs/{item['id']}") for item in run["result"]["items"]]
    assert [one["reason"] for one in debates] == ["consensus in 1 round"] * 2
    assert {(one["pattern"], one["project"]) for one in debates} == {("debate", run["project"])}
