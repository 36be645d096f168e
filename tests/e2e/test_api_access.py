"""Nobody comes in without a token, by another name, or from another web site."""

import random
import socket
import stat
from collections.abc import Iterator

import pytest
from docs.services import idle_services

from kapelle.api.app import openapi
from kapelle.domain.ids import make_attempt_token
from tests.e2e.support.door import OPEN, Door, every_route, open_door

GUARDED = [route for route in every_route() if route not in OPEN]
Routes = list[tuple[str, str]]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("door")) as opened:
        yield opened


def test_every_route_is_tried() -> None:
    hidden = {"/healthz", "/api/v1/openapi.json"}
    documented = sum(len(methods) for methods in openapi(idle_services())["paths"].values())
    assert len(every_route()) == documented + len(hidden)


@pytest.fixture
def some_routes(exhaustive: bool, sampling: random.Random) -> Routes:
    """Routes to try one of many values on; each test has others."""
    return every_route() if exhaustive else sampling.sample(every_route(), 12)


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_no_route_answers_without_the_right_token(
    door: Door, method: str, path: str, exhaustive: bool, sampling: random.Random
) -> None:
    forged = make_attempt_token("another secret", "attempt_1")
    wrong = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {door.token}x",
        f"Bearer {door.token[:-1]}",
        f"Basic {door.token}",
        f"Bearer {forged}",
        "Bearer kapelle-attempt.",
        "Bearer kapelle-attempt..",
        "Bearer \xff",
    ]
    tried = wrong if exhaustive or path == "/api/v1/tasks" else sampling.sample(wrong, 1)
    for headers in [[], *([("Authorization", value)] for value in tried)]:
        answer = door.ask(method, path, headers)
        assert (answer.status, answer.code) == (401, "unauthorized"), headers
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert door.ask(method, f"{path}?token={door.token}&access_token={door.token}").status == 401
    assert (
        door.ask(method, path, [("Cookie", f"kapelle_session_{door.port}={door.token}")]).status
        == 401
    )


def test_only_health_and_login_are_open(door: Door) -> None:
    assert door.ask("GET", "/healthz").json()["status"] == "ok"
    assert door.ask("GET", "/api/v1/healthz").json()["status"] == "ok"
    assert door.post_json("/api/v1/login", {"code": "guessed"}).status == 401
    for path in ("/healthz%2f..", "/healthz%3f", "/api/v1/login/", "/api/v1/tasks%23/healthz"):
        assert door.ask("GET", path).status == 401, path


def test_unknown_addresses_are_not_told_from_known_ones(door: Door) -> None:
    assert door.ask("GET", "/api/v1/nothing").status == 401
    assert door.ask("DELETE", "/api/v1/tasks").status == 401


HOSTS: list[list[str]] = [
    ["evil.com"],
    ["evil.com:{port}"],
    ["localhost.evil.com:{port}"],
    ["127.0.0.1.nip.io:{port}"],
    ["127.0.0.1:{other}"],
    ["127.0.0.1"],
    ["localhost"],
    ["localhost.:{port}"],
    ["127.0.0.2:{port}"],
    ["0.0.0.0:{port}"],
    ["[::2]:{port}"],
    ["[::1]"],
    ["user@127.0.0.1:{port}"],
    ["127.0.0.1:{port}, evil.com"],
    ["127.0.0.1:{port}/"],
    ["127.0.0.1:0{port}"],
    [""],
]


@pytest.mark.parametrize("hosts", HOSTS, ids=lambda hosts: hosts[0] or "empty")
def test_a_wrong_host_reaches_no_route(door: Door, hosts: list[str], some_routes: Routes) -> None:
    sent = [host.format(port=door.port, other=door.port + 1) for host in hosts]
    for method, path in every_route() if hosts == HOSTS[0] else some_routes:
        answer = door.ask(method, path, [door.bearer], hosts=sent)
        assert (answer.status, answer.code) == (421, "wrong_host"), (method, path)


def test_a_host_that_is_missing_or_given_twice_reaches_no_route(
    door: Door, some_routes: Routes
) -> None:
    for method, path in some_routes:
        for hosts in ([], [door.host, door.host], [door.host, "evil.com"]):
            answer = door.ask(method, path, [door.bearer], hosts=hosts)
            assert (answer.status, answer.code) == (400, "bad_request"), (method, path, hosts)
        old = f"{method} {path} HTTP/1.0\r\nAuthorization: Bearer {door.token}\r\n\r\n"
        assert door.send(old.encode()).startswith(b"HTTP/1.1 421 "), (method, path)


@pytest.mark.parametrize("place", ["http://evil.com", "http://127.0.0.1:{port}", "evil.com", "*"])
def test_a_target_that_names_a_host_of_its_own_reaches_no_route(
    door: Door, place: str, some_routes: Routes
) -> None:
    for method, path in some_routes:
        target = place.format(port=door.port) + path
        request = f"{method} {target} HTTP/1.1\r\nHost: {door.host}\r\n"
        request += f"Authorization: Bearer {door.token}\r\nConnection: close\r\n\r\n"
        assert door.send(request.encode()).startswith(b"HTTP/1.1 421 "), target


def test_every_own_name_of_the_machine_is_answered(door: Door) -> None:
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        answer = door.ask("GET", "/api/v1/daemon", [door.bearer], hosts=[f"{host}:{door.port}"])
        assert answer.status == 200, host


ORIGINS = [
    "null",
    "",
    "http://evil.com",
    "https://127.0.0.1:{port}",
    "http://127.0.0.1",
    "http://127.0.0.1:{other}",
    "http://localhost:{port}",
    "http://127.0.0.1:{port}.evil.com",
    "http://127.0.0.1.nip.io:{port}",
    "http://evil.com:{port}",
    "http://user@127.0.0.1:{port}",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#",
    "HTTP://127.0.0.1:{port}",
    "ws://127.0.0.1:{port}",
    "127.0.0.1:{port}",
    "file://",
    "chrome-extension://abcdefgh",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_foreign_origin_may_neither_read_nor_write(
    door: Door, origin: str, some_routes: Routes
) -> None:
    tried = every_route() if origin == ORIGINS[0] else some_routes
    origin = origin.format(port=door.port, other=door.port + 1)
    for method, path in tried:
        answer = door.ask(method, path, [door.bearer, ("Origin", origin)])
        assert (answer.status, answer.code) == (403, "wrong_origin"), (method, path)
    twice = [door.bearer, ("Origin", door.origin), ("Origin", origin)]
    assert door.ask("GET", "/api/v1/tasks", twice).code == "wrong_origin"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_a_browser_that_says_the_request_is_foreign_is_believed(
    door: Door, site: str, some_routes: Routes
) -> None:
    headers = [door.bearer, ("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "no-cors")]
    for method, path in every_route() if site == "cross-site" else some_routes:
        assert door.ask(method, path, headers).code == "wrong_origin", (method, path)


def test_the_unix_socket_is_its_owners(door: Door) -> None:
    path = door.instance.home.socket
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert door.instance.get("/daemon")["url"] == f"http://{door.host}"


def test_a_web_page_may_not_use_the_unix_socket_either(door: Door) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(door.instance.home.socket))
        request = (
            f"GET /api/v1/tasks HTTP/1.0\r\nHost: {door.host}\r\nOrigin: http://evil.com\r\n\r\n"
        )
        connection.sendall(request.encode())
        assert connection.recv(4000).startswith(b"HTTP/1.1 403 ")


def test_every_answer_has_the_security_headers_and_none_allows_other_sites(door: Door) -> None:
    wanted = {
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    }
    for method, path in [*every_route(), ("GET", "/nothing"), ("OPTIONS", "/api/v1/tasks")]:
        if path.endswith("/events"):
            path += "?follow=false"
        if path.endswith("/watch"):
            path += "?timeout_s=0"
        for headers in ([door.bearer], [], [("Origin", "http://evil.com")]):
            if path.endswith("/daemon/stop") and headers == [door.bearer]:
                continue
            answer = door.ask(method, path, headers)
            for name, value in wanted.items():
                assert answer.headers.get_all(name) == [value], (method, path, name)
            names = {name.lower() for name in answer.headers}
            assert not {name for name in names if name.startswith("access-control-")}
            assert "server" not in names


def test_a_request_that_cannot_be_read_is_answered_like_any_other(door: Door) -> None:
    for garbage in (
        b"nonsense\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\r\n\r\n",
    ):
        head, _, body = door.send(garbage).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"\r\nx-content-type-options: nosniff" in head
        assert body.startswith(b'{"error":{"code":"bad_request"')


def test_the_token_is_never_in_the_log(door: Door) -> None:
    cookie = door.log_in()
    door.ask("GET", f"/api/v1/tasks?token={door.token}", [door.bearer])
    door.ask("GET", f"/api/v1/{door.token}", [door.bearer])
    door.ask("GET", "/api/v1/daemon", [cookie])
    log = door.instance.home.log.read_text(encoding="utf-8")
    assert door.token not in log
    assert cookie[1].partition("=")[2] not in log
