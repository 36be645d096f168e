"""What is to move is taken up because the queue is told, not because it looks around: the daemon of
these tests sweeps once an hour."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kapelle.engine.tasks.queue import SWEEP_VARIABLE
from tests.e2e.support.ensembles import play, rest, start, write_pattern
from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import set_up

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


LIMITED_ONCE = """
[[rule]]
match = "refused"
attempt = 1
do = [{ rate_limit = { reset_in_s = SECONDS } }]
[[rule]]
do = [{ result = "done" }]
"""


def test_a_wait_that_ends_by_time_or_by_a_person_ends_at_once(
    kapelle: Instance, tmp_path: Path
) -> None:
    short, long = (LIMITED_ONCE.replace("SECONDS", seconds) for seconds in ("2", "900"))
    set_up(tmp_path, short=short, long=long)
    by_time = kapelle.submit("be refused", tmp_path, agent="short")
    assert kapelle.wait(by_time, SOON_S)["status"] == "completed"
    refused = kapelle.submit("be refused", tmp_path, agent="long")
    kapelle.wait_for_status(refused, "waiting")
    other = kapelle.submit("work", tmp_path, agent="long")
    kapelle.wait_for_status(other, "waiting")
    # Who has one task go on lifts the limit for all.
    kapelle.post(f"/tasks/{refused}/retry")
    for task_id in (refused, other):
        assert kapelle.wait(task_id, SOON_S)["status"] == "completed"


def test_retry_dependency_and_a_freed_slot_are_taken_up_at_once(
    kapelle: Instance, tmp_path: Path
) -> None:
    """There is one slot."""
    first = kapelle.play('[[do]]\nresult = "done"', tmp_path)
    second = kapelle.play('[[do]]\nresult = "done"', tmp_path)
    third = kapelle.play('[[do]]\nresult = "done"', tmp_path, depends_on=[second])
    for task_id in (first, second, third):
        assert kapelle.wait(task_id, SOON_S)["status"] == "completed"
    kapelle.post(f"/tasks/{first}/retry")
    task = kapelle.wait(first, SOON_S)
    assert (task["status"], len(task["attempts"])) == ("completed", 2)
