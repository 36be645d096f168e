"""The scripted model, and nothing that needs a real agent."""

from collections.abc import Iterator

import pytest

from tests.agents.model import ModelServer, serve


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model server without scripts; put one on a lane with `model.scripts.put`."""
    with serve() as server:
        yield server
