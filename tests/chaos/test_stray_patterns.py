"""Patterns whose own code goes astray: it waits where no step is, or ends the daemon."""

from contextlib import suppress
from pathlib import Path

from tests.chaos.nursery import WarmInstance
from tests.chaos.test_run_control import own, progress
from tests.e2e.ensembles import rest, start
from tests.e2e.staging import until

WAITS = """
import asyncio
await ctx.progress(begun=True)
if spec.title == "stubborn":
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue
if spec.title == "beside":
    await ctx.gather(ctx.sleep(3600), asyncio.sleep(3600))
await asyncio.sleep(3600)
"""


def test_a_pattern_that_waits_outside_its_steps_can_be_ended(
    kapelle: WarmInstance, repository: Path
) -> None:
    kapelle.start()
    own(repository, WAITS)
    names = ["cancelled", "stubborn", "beside", "paused", "limited"]
    ids = {
        name: start(
            kapelle, "own", repository, title=name, max_seconds=2 if name == "limited" else None
        )
        for name in names
    }
    until(lambda: all(progress(kapelle, run_id) for run_id in ids.values()), "the beginning")
    for name in ("cancelled", "stubborn", "beside"):
        kapelle.post(f"/runs/{ids[name]}/cancel")
    kapelle.post(f"/runs/{ids['paused']}/pause")
    ended = {name: rest(kapelle, ids[name]) for name in names}
    assert {name: run["status"] for name, run in ended.items()} == {
        "cancelled": "cancelled", "stubborn": "cancelled", "beside": "cancelled",
        "paused": "paused", "limited": "failed",
    }  # fmt: skip
    assert ended["limited"]["reason"] == "Its 2 s are over."
    own(repository, "await ctx.progress(begun=True)\nreturn 'mended'")
    kapelle.post(f"/runs/{ids['paused']}/resume")
    run = rest(kapelle, ids["paused"])
    while run["status"] == "paused":
        run = rest(kapelle, ids["paused"])
    assert (run["status"], run["result"]) == ("completed", "mended")


def test_a_pattern_that_ends_the_daemon_every_time_is_set_aside(
    kapelle: WarmInstance, repository: Path
) -> None:
    own(repository, "import os\nawait ctx.progress(begun=True)\nos._exit(7)")
    kapelle.start()
    daemons = [kapelle.process]
    run_id = start(kapelle, "own", repository)

    def settled() -> bool:
        """Whether the run is out of the way; a daemon that it has ended is followed by another."""
        assert kapelle.process is not None
        if kapelle.process.poll() is not None:
            daemons.append(kapelle.spawn())
        with suppress(OSError):
            return bool(kapelle.get(f"/runs/{run_id}")["status"] == "paused")
        return False

    until(settled, "the run to be set aside")
    assert 5 < len(daemons) < 10
    assert "the daemon died again and again" in kapelle.get(f"/runs/{run_id}")["reason"]
    own(repository, "await ctx.progress(begun=True)\nreturn 'mended'")
    kapelle.post(f"/runs/{run_id}/resume")
    until(lambda: kapelle.get(f"/runs/{run_id}")["status"] == "completed", "the end")
