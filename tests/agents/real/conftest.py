"""A scene for each agent; one that is not installed is skipped with the reason."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.agents.model import ModelServer
from tests.agents.real.recording import keep
from tests.agents.real.scene import Scene, scene
from tests.agents.setup import Unavailable

Open = Callable[..., Scene]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="Keep the streams for `make test`.")


@pytest.fixture
def open_scene(model: ModelServer) -> Iterator[Open]:
    """Opens scenes by agent's name and settings; all are closed at the end."""
    with ExitStack() as stack:

        def opened(agent: str, more: str = "", **settings: Any) -> Scene:
            try:
                return stack.enter_context(scene(agent, model, more, **settings))
            except Unavailable as reason:
                pytest.skip(str(reason))

        yield opened


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[Scene, Any, str], None]:
    """Keeps an ended attempt's streams when the suite was asked to record."""

    def recorded(played: Scene, task: Any, scenario: str) -> None:
        if request.config.getoption("--record"):
            keep(played, task, scenario)

    return recorded
