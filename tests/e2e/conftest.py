"""A real daemon in a private home, driven from outside as a user or a program would."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import make_repository
from tests.e2e.support.run_commands import make_place
from tests.e2e.support.terminal import Terminal


@pytest.fixture
def kapelle(tmp_path: Path) -> Iterator[Instance]:
    """A running daemon; whatever it started is gone at the end of the test."""
    instance = Instance(tmp_path / "home")
    instance.start()
    try:
        yield instance
    finally:
        instance.destroy()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit on main."""
    return make_repository(tmp_path / "repository")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository in which runs are started from the command line."""
    return make_place(tmp_path / "repository")


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """What a test opens is closed at its end."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()
