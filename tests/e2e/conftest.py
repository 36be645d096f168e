"""A real daemon in a private home, driven from outside as a user or a program would."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.instance import Instance


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
    from tests.e2e.repositories import make_repository

    return make_repository(tmp_path / "repository")
