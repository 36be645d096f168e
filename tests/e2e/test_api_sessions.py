"""A browser's session: a code that works once becomes a cookie that other sites cannot use."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support.door import Door, open_door

BACKUP = "/api/v1/backup"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("door")) as opened:
        yield opened


def test_a_code_opens_one_session_once(door: Door) -> None:
    shown = door.instance.post("/login-codes")
    body = {"code": shown["code"]}
    first = door.post_json("/api/v1/login", body)
    assert (first.status, first.body) == (204, b"")
    again = door.post_json("/api/v1/login", body)
    assert (again.status, again.code) == (401, "unauthorized")
    assert "Set-Cookie" not in again.headers


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(door: Door) -> None:
    code = door.instance.post("/login-codes")["code"]
    answer = door.post_json("/api/v1/login", {"code": code})
    name, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert name.startswith(f"kapelle_session_{door.port}=")
    assert len(name) > 40
    assert sorted(attributes) == ["HttpOnly", "Max-Age=604800", "Path=/", "SameSite=strict"]


def test_a_session_reads(door: Door) -> None:
    cookie = door.log_in()
    assert door.ask("GET", "/api/v1/tasks", [cookie]).status == 200
    assert door.ask("GET", "/api/v1/tasks", [cookie, ("Origin", door.origin)]).status == 200
    assert door.ask("GET", "/api/v1/events?follow=false", [cookie]).status == 200


def test_a_session_writes_only_from_its_own_page(door: Door) -> None:
    cookie = door.log_in()
    assert door.ask("POST", BACKUP, [cookie]).status == 401
    assert door.ask("POST", BACKUP, [cookie, ("Origin", "http://evil.com")]).status == 403
    other = f"http://127.0.0.1:{door.port + 1}"
    assert door.ask("POST", BACKUP, [cookie, ("Origin", other)]).status == 403
    assert door.ask("POST", BACKUP, [cookie, ("Origin", door.origin)]).status == 200


def test_a_form_of_another_kind_than_json_writes_nothing(door: Door) -> None:
    cookie, origin = door.log_in(), ("Origin", door.origin)
    body = b'{"prompt": "x", "directory": "/tmp", "agent": "rehearsal", "workspace": "in_place"}'
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=a",
    ):
        answer = door.ask("POST", "/api/v1/tasks", [cookie, origin, ("Content-Type", kind)], body)
        assert (answer.status, answer.code) == (422, "invalid_input")
    assert door.ask("POST", "/api/v1/tasks", [cookie, origin], body).status == 422
    assert door.instance.get("/tasks")["tasks"] == []


def test_a_code_that_nobody_gave_opens_nothing(door: Door) -> None:
    for code in ("", "x", "\x7f", "é" * 100, door.token):
        answer = door.post_json("/api/v1/login", {"code": code})
        assert (answer.status, answer.code) == (401, "unauthorized")
    bodies: list[Any] = [
        {},
        [],
        {"code": None},
        {"code": 1},
        {"code": "a\0"},
        {"code": "a", "b": 1},
    ]
    for body in bodies:
        assert door.post_json("/api/v1/login", body).code == "invalid_input"


def test_a_forged_cookie_is_no_session(door: Door) -> None:
    name, value = door.log_in()
    for forged in (value + "x", value[:-1], f"{name}=", f"{name}=é", f"x{value}"):
        assert door.ask("GET", "/api/v1/tasks", [(name, forged)]).status == 401


def test_a_wrong_token_is_not_mended_by_a_session(door: Door) -> None:
    headers = [door.log_in(), ("Authorization", "Bearer wrong")]
    assert door.ask("GET", "/api/v1/tasks", headers).status == 401
