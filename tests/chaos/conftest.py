"""Daemons that start in a moment, and what the runs come to that nobody disturbs."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.nursery import Nursery, WarmInstance
from tests.chaos.peril import answer_if_asked, start_once
from tests.chaos.pieces import PIECES, hand_out_parts, make_place, wish
from tests.chaos.record import record
from tests.e2e.repositories import make_repository


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    opened = Nursery()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def kapelle(nursery: Nursery, tmp_path: Path) -> Iterator[WarmInstance]:
    """An instance whose daemon is not running yet; whatever it starts is gone at the end."""
    instance = WarmInstance(nursery, tmp_path / "home")
    hand_out_parts(instance)
    try:
        yield instance
    finally:
        instance.destroy()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture(scope="session")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The records of all pieces, played at once by one daemon that lives through it all."""
    directory = tmp_path_factory.mktemp("undisturbed")
    instance = WarmInstance(nursery, directory / "home")
    hand_out_parts(instance)
    instance.start()
    try:
        places = {name: make_place(directory / name) for name in PIECES}
        ids = {
            name: start_once(instance, wish(piece, places[name]), name)
            for name, piece in PIECES.items()
        }
        deadline = time.monotonic() + 100
        while not all(answer_if_asked(instance, ids[name]) == "completed" for name in PIECES):
            assert time.monotonic() < deadline, instance.log_tail()
            time.sleep(0.1)
        return {name: record(instance, places[name], ids[name]) for name in PIECES}
    finally:
        instance.destroy()
