"""Daemons that start in a moment, and what the runs come to that nobody disturbs."""

import fcntl
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos.pieces import hand_out_parts
from tests.chaos.undisturbed import play_undisturbed
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import make_repository


@pytest.fixture
def kapelle(tmp_path: Path) -> Iterator[Instance]:
    """An instance whose daemon is not running yet; whatever it starts is gone at the end."""
    instance = Instance(tmp_path / "home")
    hand_out_parts(instance)
    try:
        yield instance
    finally:
        instance.destroy()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> dict[str, Any]:
    """They are played once, by the first worker that needs them."""
    shared = tmp_path_factory.getbasetemp().parent / f"undisturbed-{testrun_uid}"
    with shared.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if kept := file.read():
            return cast("dict[str, Any]", pickle.loads(kept))
        played = play_undisturbed(tmp_path_factory.mktemp("undisturbed"))
        file.write(pickle.dumps(played))
        return played
