"""The real agents through the library: they work, and can be kept from doing as they like."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kapelle import CliAgent, Request, Response
from kapelle.settings import AgentSettings
from tests.agents.model import ModelServer
from tests.agents.real.agents import CLIS
from tests.agents.setup import AgentSetup, Unavailable, agent_setup
from tests.e2e.support.repositories import make_repository

WRITE = {"write": {"path": "hello.txt", "content": "hello\n"}, "usage": [1000, 50]}
RUN = {"bash": """python3 -c "open('{outside}', 'w')" """, "usage": [2000, 60]}
ANSWER = {"text": "That was all.", "usage": [3000, 70]}
GUARDED = ("claude", "codex", "gemini", "qwen", "copilot")
_ABSOLUTE = "qwen"


@contextmanager
def _setup(
    agent: str, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[AgentSetup, Path]]:
    try:
        with agent_setup(agent, model) as setup:
            # Gemini reads settings only where nobody else may write.
            monkeypatch.setattr(tempfile, "tempdir", str(setup.root))
            yield setup, make_repository(setup.root / "repository")
    except Unavailable as reason:
        pytest.skip(str(reason))


def _run(setup: AgentSetup, place: Path, *, skip_permissions: bool) -> Response:
    write = WRITE
    if setup.agent == _ABSOLUTE:
        write = {**WRITE, "write": {"path": str(place / "hello.txt"), "content": "hello\n"}}
    tools = setup.agent != "aider"
    run = {**RUN, "bash": str(RUN["bash"]).format(outside=setup.root / "outside.txt")}
    setup.scripts.put(setup.lane, [write, run, ANSWER] if tools else [write])
    settings = AgentSettings.model_validate(setup.settings)
    agent = CliAgent(
        setup.agent,
        settings,
        env=setup.environment,
        timeout_s=120,
        skip_permissions=skip_permissions,
    )
    return agent.run(Request("Write hello.txt.", cwd=place))


@pytest.mark.parametrize("agent", CLIS)
def test_it_works_in_the_directory_and_answers(
    agent: str, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _setup(agent, model, monkeypatch) as (setup, place):
        response = _run(setup, place, skip_permissions=True)
        assert response.ok, response.reason
        assert (place / "hello.txt").read_text(encoding="utf-8") == "hello\n"
        assert response.usage is not None
        assert response.usage.output_tokens == (50 if agent == "aider" else 180)
        if agent != "aider":
            assert (setup.root / "outside.txt").exists()
            assert "That was all." in response.text


@pytest.mark.parametrize("agent", GUARDED)
def test_without_permissions_it_changes_files_in_its_place_and_nothing_beyond(
    agent: str, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _setup(agent, model, monkeypatch) as (setup, place):
        response = _run(setup, place, skip_permissions=False)
        assert response.ok, response.reason
        assert (place / "hello.txt").read_text(encoding="utf-8") == "hello\n"
        assert not (setup.root / "outside.txt").exists()
