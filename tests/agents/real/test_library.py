"""The real agents through the library: they work, and can be kept from doing as they like."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kapelle import CliAgent, Request, Response
from kapelle.settings import AgentSettings
from tests.agents.bed import Bed, Unavailable, lay
from tests.agents.model import ModelServer
from tests.agents.real.agents import CLIS
from tests.e2e.repositories import make_repository

WRITE = {"write": {"path": "hello.txt", "content": "hello\n"}, "usage": [1000, 50]}
RUN = {"bash": """python3 -c "open('{outside}', 'w')" """, "usage": [2000, 60]}
ANSWER = {"text": "That was all.", "usage": [3000, 70]}
GUARDED = ("claude", "codex", "gemini", "qwen", "copilot")
_ABSOLUTE = "qwen"


@contextmanager
def _bed(
    agent: str, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Bed, Path]]:
    try:
        with lay(agent, model) as bed:
            # Gemini reads settings only where nobody else may write.
            monkeypatch.setattr(tempfile, "tempdir", str(bed.root))
            yield bed, make_repository(bed.root / "repository")
    except Unavailable as reason:
        pytest.skip(str(reason))


def _run(bed: Bed, place: Path, *, skip_permissions: bool) -> Response:
    write = WRITE
    if bed.agent == _ABSOLUTE:
        write = {**WRITE, "write": {"path": str(place / "hello.txt"), "content": "hello\n"}}
    tools = bed.agent != "aider"
    run = {**RUN, "bash": str(RUN["bash"]).format(outside=bed.root / "outside.txt")}
    bed.book.put(bed.lane, [write, run, ANSWER] if tools else [write])
    settings = AgentSettings.model_validate(bed.settings)
    agent = CliAgent(
        bed.agent,
        settings,
        env=bed.environment,
        timeout_s=120,
        skip_permissions=skip_permissions,
    )
    return agent.run(Request("Write hello.txt.", cwd=place))


@pytest.mark.parametrize("agent", CLIS)
def test_it_works_in_the_directory_and_answers(
    agent: str, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _bed(agent, model, monkeypatch) as (bed, place):
        response = _run(bed, place, skip_permissions=True)
        assert response.ok, response.reason
        assert (place / "hello.txt").read_text(encoding="utf-8") == "hello\n"
        assert response.usage is not None
        assert response.usage.output_tokens == (50 if agent == "aider" else 180)
        if agent != "aider":
            assert (bed.root / "outside.txt").exists()
            assert "That was all." in response.text


@pytest.mark.parametrize("agent", GUARDED)
def test_without_permissions_it_changes_files_in_its_place_and_nothing_beyond(
    agent: str, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _bed(agent, model, monkeypatch) as (bed, place):
        response = _run(bed, place, skip_permissions=False)
        assert response.ok, response.reason
        assert (place / "hello.txt").read_text(encoding="utf-8") == "hello\n"
        assert not (bed.root / "outside.txt").exists()
