"""Output by offset: pages are the file's bytes, and a transcript goes on where it was left."""

import json
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.e2e.support.door import Door, open_door
from tests.e2e.support.instance import Instance
from tests.e2e.support.streams import Sent, Stream, everything

SLOW = "for i in $(seq 200); do head -c 700 /dev/urandom; echo $i >&2; sleep 0.005; done"
TALK = "".join(
    f'[[do]]\nsay = "line {number}"\n[[do]]\nstderr = "aside {number}"\n'
    f'[[do]]\ntool = "Read"\ninput = {{ path = "{number}" }}\nresult = "text"\n'
    for number in range(40)
)


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with open_door(tmp_path_factory.mktemp("door")) as opened:
        yield opened.instance


@pytest.mark.parametrize("stream", ["out", "err"])
def test_pages_are_the_bytes_of_the_file_while_the_agent_still_writes(
    kapelle: Instance, tmp_path: Path, stream: str
) -> None:
    task_id = kapelle.play(f"[[do]]\nrun = '{SLOW}'", tmp_path)
    pages, growing = _read_pages(kapelle, task_id, stream, random.Random(3))
    task = kapelle.wait(task_id)
    attempt_id = task["attempts"][0]["id"]
    file = kapelle.home.attempts / attempt_id / f"{stream}.log"
    assert b"".join(pages) == file.read_bytes()
    assert len(b"".join(pages)) > (100_000 if stream == "out" else 600)
    assert growing > 3, "the agent had ended before the pages were read"


def _read_pages(
    kapelle: Instance, task_id: str, stream: str, chance: random.Random
) -> tuple[list[bytes], int]:
    """Pages of odd sizes up to the one that says it is the last, and how many came before it."""
    pages: list[bytes] = []
    offset = growing = 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        limit = chance.randint(1, 5000)
        path = f"/tasks/{task_id}/output?stream={stream}&offset={offset}&limit={limit}"
        response, data = kapelle.request("GET", path)
        assert response.status == 200, data
        assert len(data) <= limit
        following = int(response.headers["X-Next-Offset"])
        assert following == offset + len(data)
        pages.append(data)
        offset = following
        if response.headers["X-Complete"] == "true":
            return pages, growing
        growing += 1
        if not data:
            time.sleep(0.02)
    raise AssertionError("the output never was complete")


def test_complete_is_only_said_of_the_last_bytes_of_an_ended_attempt(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play('[[do]]\nprint = "0123456789"\n[[do]]\nexit = 0', tmp_path)
    kapelle.wait(task_id)
    size = kapelle.task(task_id)["attempts"][0]["output_bytes"]
    wanted = {
        (0, size - 1): (size - 1, "false"),
        (0, size + 1): (size, "true"),
        (size, 1): (size, "true"),
        (size + 5, 1): (size + 5, "true"),
        (3, 4): (7, "false"),
    }
    for (offset, limit), (following, complete) in wanted.items():
        path = f"/tasks/{task_id}/output?offset={offset}&limit={limit}"
        headers = kapelle.request("GET", path)[0].headers
        assert (headers["X-Next-Offset"], headers["X-Complete"]) == (str(following), complete)


def test_a_task_that_has_not_started_has_no_output_yet(kapelle: Instance, tmp_path: Path) -> None:
    hanging = kapelle.play("[[do]]\nhang = true", tmp_path)
    blocked = kapelle.play('[[do]]\nsay = "hi"', tmp_path, depends_on=[hanging])
    response, data = kapelle.request("GET", f"/tasks/{blocked}/output")
    assert (response.status, data, response.headers["X-Complete"]) == (200, b"", "false")
    assert kapelle.request("GET", f"/tasks/{blocked}/output?attempt=1")[0].status == 404
    kapelle.post(f"/tasks/{blocked}/cancel")
    response, _ = kapelle.request("GET", f"/tasks/{blocked}/output")
    assert response.headers["X-Complete"] == "true"
    kapelle.post(f"/tasks/{hanging}/cancel")


def test_a_transcript_left_at_any_event_goes_on_with_exactly_the_rest(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play(TALK, tmp_path)
    kapelle.wait(task_id)
    path = f"/tasks/{task_id}/transcript"
    whole = everything(kapelle, path)
    assert len([event for event in whole if event.kind == "text"]) == 40
    assert len([event for event in whole if event.kind == "stderr"]) == 40
    assert whole[-2].kind == "result", "what it complained of stands before the answer"
    assert len({event.id for event in whole[:-1]}) == len(whole) - 1
    for left in range(0, len(whole) - 1, 7):
        with Stream(kapelle, path, whole[left].id) as stream:
            assert list(stream) == whole[left + 1 :], f"left after event {left}"


def test_a_transcript_followed_through_many_connections_is_whole(
    kapelle: Instance, tmp_path: Path
) -> None:
    part = TALK.replace("[[do]]\nsay", "[[do]]\nsleep = 0.01\n[[do]]\nsay")
    task_id = kapelle.play(part, tmp_path)
    path, chance = f"/tasks/{task_id}/transcript", random.Random(4)
    seen: list[Sent] = []
    while not seen or seen[-1].kind != "end":
        last = seen[-1].id if seen else None
        with Stream(kapelle, f"{path}?follow=true", last) as stream:
            seen += islice(stream, chance.randint(1, 9))
    kapelle.wait(task_id)
    # The two streams of a process have no common order while it runs.
    whole = everything(kapelle, path)
    for aside in (True, False):
        told = [(e.kind, e.data) for e in seen if (e.kind == "stderr") == aside]
        assert told == [(e.kind, e.data) for e in whole if (e.kind == "stderr") == aside]


def test_a_transcript_of_several_attempts_is_continued_in_the_right_one(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play('[[do]]\nsay = "hello"', tmp_path, checks=["echo made", "true"])
    kapelle.wait(task_id)
    kapelle.post(f"/tasks/{task_id}/retry")
    kapelle.wait(task_id)
    path = f"/tasks/{task_id}/transcript"
    whole = everything(kapelle, path)
    assert [e.data for e in whole if e.kind == "attempt"] == [
        '{"number": 1, "agent": "rehearsal"}',
        '{"number": 2, "agent": "rehearsal"}',
    ]
    assert [json.loads(e.data)["name"] for e in whole if e.kind == "check"] == [
        "echo made",
        "true",
    ] * 2
    for left in range(len(whole) - 1):
        with Stream(kapelle, path, whole[left].id) as stream:
            assert list(stream) == whole[left + 1 :]
    for nonsense in ("x", "1:2", ":::", "1:-1:0:0", "²:0:0:0", f"1:{2**62}:0:0"):
        with Stream(kapelle, path, nonsense) as stream:
            assert list(stream) == whole


def test_what_agents_print_never_breaks_a_stream(kapelle: Instance, tmp_path: Path) -> None:
    lines = [
        '{"kind": "text", "text": "half \\\\ud800 a pair"}',
        '{"kind": "text\\\\nid: 999", "text": "x"}',
        '{"kind": "usage", "data": {"cost_usd": NaN}}',
        "data: forged",
        "id: 1:9:9",
    ]
    steps = "".join(
        f"[[do]]\nprint = '''{line.replace(chr(92) * 2, chr(92))}\n'''\n" for line in lines
    )
    task_id = kapelle.play(steps + '[[do]]\nprint = "\\u2028 \\u0085 \\r end\\n"', tmp_path)
    kapelle.wait(task_id)
    whole = everything(kapelle, f"/tasks/{task_id}/transcript")
    assert whole[-1].kind == "end"
    assert {event.kind for event in whole} <= {"attempt", "text", "usage", "result", "end", "error"}
    assert any("data: forged" in event.data for event in whole)


def test_a_slow_reader_of_much_output_costs_little_memory(
    kapelle: Instance, tmp_path: Path
) -> None:
    import psutil

    task_id = kapelle.play("[[do]]\nflood = 100000000\nline = 1000", tmp_path)
    kapelle.wait(task_id)
    assert kapelle.process is not None
    daemon = psutil.Process(kapelle.process.pid)
    before = daemon.memory_info().rss
    slow = [Stream(kapelle, f"/tasks/{task_id}/transcript") for _ in range(5)]
    try:
        for stream in slow:
            assert len(list(islice(stream, 50))) == 50
        time.sleep(1)
        assert daemon.memory_info().rss - before < 50_000_000
    finally:
        for stream in slow:
            stream.__exit__()


def test_no_address_leads_to_another_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    with open_door(tmp_path_factory.mktemp("paths")) as door:
        _assert_no_way_out(door)


def _assert_no_way_out(door: Door) -> None:
    for text in ("..%2f..%2ftoken", "%2e%2e", "..", "task_..%2f", "%2fetc%2fpasswd"):
        for path in ("/output", "/transcript", "/diff", ""):
            answer = door.ask("GET", f"/api/v1/tasks/{text}{path}", [door.bearer])
            assert answer.status == 404, (text, path)
            assert door.token.encode() not in answer.body


def test_a_transcript_is_read_backwards_to_its_very_beginning(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play(TALK, tmp_path, checks=["true"])
    kapelle.wait(task_id)
    kapelle.post(f"/tasks/{task_id}/retry")
    kapelle.wait(task_id)
    path = f"/tasks/{task_id}/transcript"
    whole = everything(kapelle, path)
    read = everything(kapelle, f"{path}?tail=10")[:-1]
    for _ in range(50):
        page = everything(kapelle, f"{path}?before={read[0].id}&limit=30")[:-1]
        if not page:
            break
        # The attempt is told with each page, and its beginning is that of the first one.
        same = json.loads(page[0].data) == json.loads(read[0].data)
        read = page + (read[1:] if same else read)
    for kinds in ({"stderr"}, {event.kind for event in whole} - {"stderr", "end"}):
        told = [(e.kind, e.data) for e in read if e.kind in kinds]
        assert told == [(e.kind, e.data) for e in whole if e.kind in kinds]


def test_json_over_several_lines_is_shown_from_its_end_and_backwards(
    kapelle: Instance, tmp_path: Path
) -> None:
    """A tail begins with a document, however many lines one takes, and so does a new connection."""
    documents = [
        {"usage": {"in": 1}, "items": list(range(40)), "say": f"answer {n}"} for n in range(9)
    ]
    text = "\n".join(json.dumps(one, indent=2) for one in documents)
    (tmp_path / "out.json").write_text(f"{text}\n", encoding="utf-8")
    agent = {
        "command": ["sh", "-c", "echo aside >&2; cat out.json; : {prompt}"],
        "output": "json",
        "read.text": "say",
        "read.input_tokens": "usage.in",
    }
    for name, value in agent.items():
        kapelle.cli("config", "set", f"agents.pretty.{name}", json.dumps(value), check=True)
    task_id = kapelle.submit("x", directory=str(tmp_path), agent="pretty", workspace="in_place")
    kapelle.wait(task_id)
    path = f"/tasks/{task_id}/transcript"
    whole = everything(kapelle, path)
    assert len([event for event in whole if event.kind == "text"]) == 9

    def said(events: list[Sent]) -> list[str]:
        return [json.loads(event.data)["text"] for event in events if event.kind == "text"]

    tail = everything(kapelle, f"{path}?tail=2")
    assert said(tail) == ["answer 7", "answer 8"]
    before = everything(kapelle, f"{path}?before={tail[0].id}&limit=3")
    assert said(before) == ["answer 4", "answer 5", "answer 6"]
    for left in range(len(whole) - 1):
        with Stream(kapelle, path, whole[left].id) as stream:
            assert list(stream) == whole[left + 1 :], f"left after event {left}"


def test_an_outline_tells_in_short_what_one_would_go_to(kapelle: Instance, tmp_path: Path) -> None:
    said = '[[do]]\nsay = "one"\n[[do]]\nsay = "two"\n'
    used = f'[[do]]\ntool = "Read"\ninput = {{ path = "{"x" * 500}" }}\nresult = "text"\n'
    task_id = kapelle.play(said + used, tmp_path, checks=["true"])
    kapelle.wait(task_id)
    path = f"/tasks/{task_id}/transcript"
    short = everything(kapelle, f"{path}?outline=true")
    assert [event.kind for event in short] == [
        "attempt",
        "text",
        "tool_call",
        "result",
        "check",
        "end",
    ]
    assert len(json.loads(short[2].data)["data"]["path"]) == 200
    assert {event.id for event in short} <= {event.id for event in everything(kapelle, path)}


def test_a_text_is_found_wherever_it_stands_in_an_output(kapelle: Instance, tmp_path: Path) -> None:
    # One of them lies across the end of what is read at once.
    steps = "[[do]]\nrun = 'head -c 1048570 /dev/zero; printf needle; printf NEEDLE; echo ünd'\n"
    task_id = kapelle.play(steps, tmp_path)
    kapelle.wait(task_id)
    data = kapelle.request("GET", f"/tasks/{task_id}/output?limit=16000000")[1]
    places = [data.index(b"needle"), data.index(b"NEEDLE")]
    path = f"/tasks/{task_id}/output/find?query="
    assert kapelle.get(path + "needle") == {"attempt": 1, "offsets": places, "next_offset": None}
    first = kapelle.get(path + "Needle&limit=1")
    assert first["offsets"] == places[:1]
    rest = kapelle.get(f"{path}needle&offset={first['next_offset']}")
    assert rest["offsets"] == places[1:]
    assert kapelle.get(path + "%C3%BCnd")["offsets"] == [data.index("ünd".encode())]
    assert kapelle.get(path + "needle&stream=err")["offsets"] == []
    assert kapelle.request("GET", path)[0].status == 422
