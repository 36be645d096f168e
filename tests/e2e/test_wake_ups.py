"""What is to move is taken up because the queue is told, not because it looks around: the daemon of
these tests sweeps once an hour."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kapelle.engine.tasks.queue import SWEEP_VARIABLE
from tests.e2e.ensembles import play, rest, start, write_pattern
from tests.e2e.instance import Instance

# What waits for a sweep would take an hour; a busy machine may need some seconds.
SOON_S = 20


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    home = tmp_path_factory.mktemp("wake-ups") / "home"
    instance = Instance(home, KAPELLE_LIMITS__MAX_ATTEMPTS="1", **{SWEEP_VARIABLE: "3600"})
    instance.start()
    try:
        yield instance
    finally:
        instance.destroy()


def test_a_run_and_a_run_inside_it_begin_at_once(kapelle: Instance, repository: Path) -> None:
    inner = {"prompt": play({"result": "done"}), "until": ["true"]}
    body = f"""
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    inner = await ctx.run("loop", {inner!r}, workspace="run")
    return {{"status": inner.status}}
"""
    write_pattern(repository, body)
    run = rest(kapelle, start(kapelle, "own", repository), SOON_S)
    assert run["result"] == {"status": "completed"}, run["reason"]
