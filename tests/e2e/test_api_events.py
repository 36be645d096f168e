"""The history as a stream: whoever comes back with the last number misses and repeats nothing."""

import http.client
import json
import random
import threading
import time
from itertools import islice
from pathlib import Path

from tests.e2e.support.instance import Instance
from tests.e2e.support.streams import Sent, Stream, everything

HISTORY = "/events?after=0&follow=false"


class Reader:
    """Follows the history through connections that it breaks off at random."""

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self.random = random.Random(seed)
        self.seen: list[Sent] = []
        self.connections = 0

    def read_some(self, most: int = 6) -> None:
        """Connect once, take some events, and hang up in the middle."""
        last = self.seen[-1].id if self.seen else None
        try:
            # A browser keeps the address it began with and adds the number only as a header.
            with Stream(self.instance, "/events?after=0", last, timeout_s=1) as stream:
                self.connections += 1
                for event in islice(stream, self.random.randint(0, most)):
                    self.seen.append(event)
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)  # there is no daemon at this moment, or nothing to tell

    def read_until(self, count: int) -> None:
        while len(self.seen) < count:
            self.read_some(min(6, count - len(self.seen)))


def test_a_reader_that_reconnects_50_times_misses_and_repeats_nothing(
    kapelle: Instance, tmp_path: Path
) -> None:
    reader = Reader(kapelle, seed=1)
    submitting = threading.Thread(target=_submit, args=(kapelle, tmp_path, 30))
    submitting.start()
    while reader.connections < 50:
        reader.read_some()
    submitting.join()
    _settle(kapelle)
    whole = everything(kapelle, HISTORY)
    reader.read_until(len(whole))
    assert reader.connections >= 50
    assert reader.seen == whole
    assert [int(event.id) for event in whole] == sorted({int(event.id) for event in whole})


def test_what_agents_do_is_told_while_they_do_it_and_kept_nowhere(
    kapelle: Instance, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    wait = f"until test -e {gate}; do sleep 0.05; done"
    used = "[[do]]\nusage = { input = 10, output = 7, turns = 3 }\n"
    said = '[[do]]\nsay = "I begin.\\nI wait."\n'
    then = '[[do]]\ntool = "Read"\ninput = { path = "a.txt", long = "' + "x" * 500 + '" }\n'
    waits = f'[[do]]\nrun = "{wait}"\n'
    task = kapelle.play(used + said + waits + then + '[[do]]\nrun = "sleep 60"\n', tmp_path)
    page = kapelle.get("/work?light=true")
    assert page["work"][0]["id"] == task
    assert len(page["work"][0]["prompt"]) <= 300 < len(kapelle.task(task)["prompt"])
    # Behind the number of a list comes all that the list does not tell; activity has no number.
    with Stream(kapelle, f"/events?after={page['last_event']}&activity=true") as stream:
        doing = (json.loads(e.data) for e in stream if e.kind == "attempt.activity")
        first = next(told for told in doing if told["text"] == "I wait.")
        assert (first["task_id"], first["kind"], first["usage"]["turns"]) == (task, "text", 3)
        gate.touch()
        called = next(told for told in doing if told["name"] == "Read")
        assert called["data"]["path"] == "a.txt"
        assert len(called["data"]["long"]) == 200
    with Stream(kapelle, "/events?activity=true") as late:
        assert json.loads(next(iter(late)).data)["name"] == "Read"
    kapelle.post(f"/tasks/{task}/cancel")
    kapelle.wait(task)
    assert "attempt.activity" not in {event.kind for event in everything(kapelle, HISTORY)}


def test_a_reader_misses_and_repeats_nothing_while_the_daemon_is_killed(
    kapelle: Instance, tmp_path: Path
) -> None:
    reader = Reader(kapelle, seed=2)
    goal = threading.Event()

    def follow() -> None:
        while not goal.is_set():
            reader.read_some()

    following = threading.Thread(target=follow)
    following.start()
    try:
        for _ in range(3):
            _submit(kapelle, tmp_path, 8)
            time.sleep(0.2)
            kapelle.kill()
            kapelle.start()
        _submit(kapelle, tmp_path, 1)
        _settle(kapelle)
    finally:
        goal.set()
        following.join()
    whole = everything(kapelle, HISTORY)
    reader.read_until(len(whole))
    assert reader.seen == whole
    numbers = [int(event.id) for event in whole]
    assert numbers == list(range(1, len(whole) + 1))


def test_without_a_number_only_what_comes_later_is_sent_and_the_headers_come_at_once(
    kapelle: Instance, tmp_path: Path
) -> None:
    earlier = kapelle.play('[[do]]\nsay = "early"', tmp_path)
    kapelle.wait(earlier)
    begun = time.monotonic()
    with Stream(kapelle, "/events") as stream:
        assert time.monotonic() - begun < 2
        assert stream.response.status == 200
        assert stream.response.headers["Content-Type"].startswith("text/event-stream")
        later = kapelle.play('[[do]]\nsay = "late"', tmp_path)
        kapelle.wait(later)
        first = next(iter(stream))
    assert first.kind == "task.created"
    assert json.loads(first.data)["task_id"] == later


def test_the_header_wins_over_the_address(kapelle: Instance, tmp_path: Path) -> None:
    kapelle.wait(kapelle.play('[[do]]\nsay = "hi"', tmp_path))
    whole = everything(kapelle, HISTORY)
    with Stream(kapelle, HISTORY, whole[1].id) as stream:
        assert list(stream) == whole[2:]
    for nonsense in ("x", "-1", "1.5", "²", "9" * 99):
        with Stream(kapelle, HISTORY, nonsense) as stream:
            assert list(stream) == ([] if nonsense.startswith("9") else whole)


def test_one_task_can_be_followed_alone(kapelle: Instance, tmp_path: Path) -> None:
    one, other = (kapelle.play('[[do]]\nsay = "hi"', tmp_path) for _ in range(2))
    kapelle.wait(one)
    kapelle.wait(other)
    whole = everything(kapelle, HISTORY)
    mine = [event for event in whole if json.loads(event.data)["task_id"] == one]
    assert everything(kapelle, f"{HISTORY}&task_id={one}") == mine
    assert mine[0].kind == "task.created"


def test_a_reader_that_never_reads_costs_nothing_and_delays_nobody(
    kapelle: Instance, tmp_path: Path
) -> None:
    lazy = [Stream(kapelle, "/events?after=0") for _ in range(20)]
    try:
        _submit(kapelle, tmp_path, 5)
        _settle(kapelle)
        begun = time.monotonic()
        kapelle.stop()
        assert time.monotonic() - begun < 3
    finally:
        for stream in lazy:
            stream.__exit__()
    assert "Traceback" not in kapelle.log_tail()


def _submit(kapelle: Instance, directory: Path, count: int) -> None:
    for _ in range(count):
        kapelle.play('[[do]]\nsay = "hi"', directory)


def _settle(kapelle: Instance) -> None:
    for task in kapelle.get("/tasks?limit=1000")["tasks"]:
        assert kapelle.wait(task["id"])["status"] == "completed"
