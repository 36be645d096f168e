"""The documents for programs say what the code does."""

import re
from pathlib import Path

from docs.services import idle_router, idle_services

from kapelle.api.app import openapi
from kapelle.api.errors import DOOR_CODES
from kapelle.api.operation import WEBSOCKET, Operation
from kapelle.api.security import owner_only
from kapelle.domain.errors import KapelleError

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = (DOCS / "rest.md").read_text(encoding="utf-8")


def test_the_guide_names_every_route() -> None:
    listed = set(re.findall(r"^\| `([A-Z]+) ([^`]+)` \|", GUIDE, re.MULTILINE))
    paths = openapi(idle_services())["paths"]
    known = {(m.upper(), path) for path, methods in paths.items() for m in methods}
    assert listed == known | {("WEBSOCKET", row.path) for row in _sockets()}


def test_every_websocket_is_for_the_owner_alone() -> None:
    assert _sockets()
    for socket in _sockets():
        assert socket.access is owner_only, socket.path


def test_the_guide_lists_every_error_with_its_status() -> None:
    listed = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", GUIDE, re.MULTILINE)
    known = {(error.code, error.http_status) for error in _family(KapelleError)}
    assert sorted((code, int(status)) for code, status in listed) == sorted(
        known | set(DOOR_CODES.items())
    )


def test_every_operation_has_a_name_and_says_what_it_does() -> None:
    for path, methods in openapi(idle_services())["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert re.fullmatch(r"[a-z]+_[a-z_]+", operation["operationId"]), (method, path)


def test_only_health_and_login_are_documented_as_open() -> None:
    unguarded = {
        (method, path)
        for path, methods in openapi(idle_services())["paths"].items()
        for method, operation in methods.items()
        if "security" not in operation
    }
    assert unguarded == {("get", "/api/v1/healthz"), ("post", "/api/v1/login")}


def _family(error: type[KapelleError]) -> set[type[KapelleError]]:
    own = [child for child in error.__subclasses__() if child.__module__ == error.__module__]
    return {error}.union(*(_family(child) for child in own))


def _sockets() -> list[Operation]:
    return [one for one in idle_router().list_operations() if one.method == WEBSOCKET]
