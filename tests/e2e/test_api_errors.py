"""Whatever is sent, an error has one shape and a stable code, and the daemon never breaks."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kapelle.api.parameters import MAX_BODY
from tests.e2e.support.door import Door, open_door

TASKS = "/api/v1/tasks"
JSON = ("Content-Type", "application/json")
GOOD: dict[str, Any] = {
    "prompt": "x", "directory": "/tmp", "agent": "rehearsal", "workspace": "in_place",
}  # fmt: skip


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("door")) as opened:
        yield opened


UNREADABLE = {
    "nothing": b"",
    "half": b'{"prompt": ',
    "a list": b"[]",
    "text": b'"prompt"',
    "null": b"null",
    "invalid UTF-8": b'{"prompt": "\xff"}',
    "NUL": b"\x00",
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "100,000 brackets": b"[" * 100_000,
    "half a surrogate pair as a key": b'{"\\ud800": 1}',
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_body_that_is_no_task_is_refused(door: Door, body: bytes) -> None:
    answer = door.ask("POST", TASKS, [door.bearer, JSON], body)
    assert (answer.status, answer.code) in [(422, "invalid_input"), (400, "bad_request")]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/tasks?staus=failed", "Did you mean status?"),
        ("/events?follow=false&runid=x", "Did you mean run_id?"),
        ("/daemon?x=1", "Known are: none."),
    ],
)
def test_a_query_that_would_be_ignored_is_refused(door: Door, path: str, hint: str) -> None:
    answer = door.ask("GET", f"/api/v1{path}", [door.bearer])
    assert (answer.status, answer.code) == (422, "invalid_input")
    assert hint in (answer.json()["error"]["hint"] or "")


WRONG = [
    {"prompt": ""},
    {"prompt": " \n"},
    {"prompt": "a\0b"},
    {"prompt": 1},
    {"prompt": "x" * 1_000_001},
    {"prompt": "é" * 600_000},
    {"directory": "relative"},
    {"directory": "/nowhere/at/all"},
    {"directory": "/\0"},
    {"title": "two\nlines"},
    {"title": "x" * 201},
    {"timeout_s": 0},
    {"timeout_s": -1},
    {"timeout_s": 1e300},
    {"timeout_s": 10**400},
    {"timeout_s": float("nan")},
    {"timeout_s": float("inf")},
    {"priority": "P9"},
    {"priority": 10**30},
    {"env": {"A B": "x"}},
    {"env": {"A": "\0"}},
    {"env": {"": "x"}},
    {"env": {"\ud800": "x"}},
    {"env": {"A": "\ud800"}},
    {"context": {"\udfff": "x"}},
    {"tags": ["a"] * 101},
    {"tags": ["\x1b[31m"]},
    {"checks": [{"kind": "command"}]},
    {"checks": [""]},
    {"retry": {"max_attempts": 10**9}},
    {"base": "\n"},
    {"agent": "nobody"},
    {"unknown": 1},
    {f"key{number}": 1 for number in range(50_000)},
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: json.dumps(change)[:40])
def test_a_value_that_cannot_be_used_is_refused_and_named(
    door: Door, change: dict[str, Any]
) -> None:
    answer = door.post_json(TASKS, GOOD | change, [door.bearer])
    assert answer.status == 422, answer.body
    assert answer.code in {"invalid_input", "agent_not_found"}
    assert len(answer.body) < 10_000


@pytest.mark.parametrize("text", ["task_0", "\0", "\ud800", "x" * 100_000, "", "../x"])
def test_a_dependency_that_is_no_task_is_not_found(door: Door, text: str) -> None:
    for change in ({"depends_on": [text]}, {"continue_from": text}):
        answer = door.post_json(TASKS, GOOD | change, [door.bearer])
        assert (answer.status, answer.code) == (404, "not_found")
        assert len(answer.body) < 10_000


def test_a_number_too_long_to_read_is_refused(door: Door) -> None:
    body = json.dumps(GOOD)[:-1].encode() + b', "timeout_s": ' + b"9" * 5000 + b"}"
    answer = door.ask("POST", TASKS, [door.bearer, JSON], body)
    assert (answer.status, answer.code) == (422, "invalid_input")


QUERIES = [
    f"{TASKS}?limit=0",
    f"{TASKS}?limit=1001",
    f"{TASKS}?limit=1e3",
    f"{TASKS}?limit={'9' * 5000}",
    f"{TASKS}?status=dead",
    f"{TASKS}?cursor=%00",
    f"{TASKS}?cursor=x",
    f"{TASKS}?tag=%00",
    f"{TASKS}?archived=perhaps",
    f"{TASKS}/task_0/wait?timeout_s=nan",
    f"{TASKS}/task_0/wait?timeout_s=inf",
    f"{TASKS}/task_0/wait?timeout_s=56",
    f"{TASKS}/task_0/wait?timeout_s=-1",
    f"{TASKS}/task_0/output?offset=-1",
    f"{TASKS}/task_0/output?offset={10**13 + 1}",
    f"{TASKS}/task_0/output?offset={2**63}",
    f"{TASKS}/task_0/output?limit=0",
    f"{TASKS}/task_0/output?stream=../../token",
    f"{TASKS}/task_0/output?attempt=0",
    f"{TASKS}/task_0/transcript?tail=-1",
    "/api/v1/events?after=-1",
    f"/api/v1/events?after={2**64}",
    "/api/v1/agents?directory=%00",
]


@pytest.mark.parametrize("path", QUERIES)
def test_a_question_that_makes_no_sense_is_refused(door: Door, path: str) -> None:
    answer = door.ask("GET", path, [door.bearer])
    assert (answer.status, answer.code) == (422, "invalid_input")


@pytest.mark.parametrize(
    "text", ["task_0", "%00", "%ff", "..%2f..", "%f0%9f%8e%bb", "-h", "x" * 9000]
)
def test_a_task_that_is_not_there_is_not_found(door: Door, text: str) -> None:
    for path in ("", "/wait", "/output", "/transcript", "/diff"):
        answer = door.ask("GET", f"{TASKS}/{text}{path}", [door.bearer])
        assert (answer.status, answer.code) == (404, "not_found"), path
    for action in ("cancel", "retry", "resume", "requeue", "archive", "merge"):
        answer = door.ask("POST", f"{TASKS}/{text}/{action}", [door.bearer])
        assert (answer.status, answer.code) == (404, "not_found"), action


def test_unknown_addresses_and_methods_have_the_same_shape(door: Door) -> None:
    for path in ("/x", "/api", "/api/v1/", "/api/v1/nothing", f"{TASKS}/", "/docs", "/redoc"):
        answer = door.ask("GET", path, [door.bearer])
        assert (answer.status, answer.code) == (404, "not_found"), path
    for method in ("DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        answer = door.ask(method, TASKS, [door.bearer])
        assert (answer.status, answer.code) == (405, "method_not_allowed"), method
        assert answer.headers["Allow"]
    assert door.ask("HEAD", TASKS, [door.bearer]).status == 405


def test_a_body_over_the_limit_is_refused_whether_it_says_so_or_not(door: Door) -> None:
    declared = door.ask("POST", TASKS, [door.bearer, JSON], b" " * (MAX_BODY + 1))
    assert (declared.status, declared.code) == (413, "too_large")
    head = f"POST {TASKS} HTTP/1.1\r\nHost: {door.host}\r\nAuthorization: Bearer {door.token}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    size = MAX_BODY // 4
    chunks = (f"{size:x}\r\n".encode() + b" " * size + b"\r\n") * 5 + b"0\r\n\r\n"
    answer = door.send(head.encode() + chunks)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in answer


def test_a_prompt_of_a_megabyte_fits_however_it_is_escaped(door: Door) -> None:
    prompt = "\\u0001" * 999_999 + "x"
    body = json.dumps(GOOD)[:-1] + f', "title": "long", "prompt": "{prompt}"}}'
    answer = door.ask("POST", TASKS, [door.bearer, JSON], body.encode())
    assert answer.status == 201
    assert len(answer.json()["prompt"]) == 1_000_000


def test_a_key_makes_submitting_twice_the_same_as_once(door: Door) -> None:
    key = ("Idempotency-Key", "only-once")
    first, second = (door.post_json(TASKS, GOOD, [door.bearer, key]).json() for _ in range(2))
    assert first["id"] == second["id"]
    for value in ("", "x" * 201):
        refused = door.post_json(TASKS, GOOD, [door.bearer, ("Idempotency-Key", value)])
        assert (refused.status, refused.code) == (422, "invalid_input")


def test_nothing_of_all_this_was_an_error_of_the_daemon(door: Door) -> None:
    log = door.instance.home.log.read_text(encoding="utf-8")
    assert "Traceback" not in log
    assert " ERROR " not in log
