"""Generated requests to every operation: every answer is one that the document promises.

Run by test_api_schema.py; alone, for everything: pytest tests/e2e/support/api_schema.py"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from docs.services import idle_services
from hypothesis import HealthCheck, Phase, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from kapelle.api.app import openapi
from tests.e2e.support.door import Door, open_door

# To make up requests takes two seconds an operation: without SAMPLE, a seed, all have their turn.
SAMPLE_SIZE = 8
DOCUMENT = openapi(idle_services())


def _chosen() -> set[str]:
    operations = [
        f"{method.upper()} {path}"
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
        if path != "/api/v1/daemon/stop"
    ]
    sample = os.environ.get("SAMPLE")
    return set(random.Random(sample).sample(operations, SAMPLE_SIZE) if sample else operations)


CHOSEN = _chosen()
schema = schemathesis.openapi.from_dict(DOCUMENT).include(
    lambda context: context.operation.label in CHOSEN
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    ignored_auth,
]
EXAMPLES = 12


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("door")) as opened:
        yield opened


@pytest.fixture(scope="module")
def known(door: Door, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Tasks of several kinds, so that not every request is about one that is not there."""
    place = tmp_path_factory.mktemp("place")
    done = door.instance.play('[[do]]\nprint = "\\u00e9\\n"\n[[do]]\nstderr = "x"', place)
    failed = door.instance.play('[[do]]\nfail = "no"', place, checks=["true"], tags=["a"])
    hanging = door.instance.play("[[do]]\nhang = true", place)
    blocked = door.instance.play('[[do]]\nsay = "hi"', place, depends_on=[hanging])
    door.instance.wait(done)
    door.instance.wait(failed)
    return [done, failed, hanging, blocked]


@schema.parametrize()
@seed(20)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_promises(
    case: Any, door: Door, known: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    _make_likely(case, known, tmp_path_factory.getbasetemp())
    case.call_and_validate(
        base_url=door.origin,
        headers={"Authorization": f"Bearer {door.token}"},
        checks=CHECKS,
        timeout=30,
    )


def _make_likely(case: Any, known: list[str], directory: Path) -> None:
    """Leave the request as it was made up, but for what would make it pointless or endless."""
    odd = sum(str(case.path_parameters).encode()) % 2
    if "task_id" in (case.path_parameters or {}) and odd:
        case.path_parameters["task_id"] = known[len(str(case.query) + str(case.body)) % len(known)]
    if case.path.endswith(("/events", "/transcript")):
        case.query = {**(case.query or {}), "follow": "false"}
    waits = {field.name for field in case.operation.query if field.name == "timeout_s"}
    if waits and _is_number((case.query or {}).get("timeout_s", 0)):
        case.query = {**(case.query or {}), "timeout_s": 0.01}
    body = case.body
    if isinstance(body, dict) and _is_number(body.get("timeout_s", "")):
        body["timeout_s"] = 0.01
    if case.path.endswith("/tasks") and isinstance(body, dict) and "prompt" in body:
        case.body = body | {"agent": "rehearsal", "directory": str(directory)}


def _is_number(value: Any) -> bool:
    try:
        return float(value) >= 0
    except (TypeError, ValueError):
        return False
