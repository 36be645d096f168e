"""Patterns whose own code goes astray: it waits where no step is, or ends the daemon."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.test_run_control import own, progress
from tests.e2e.support.ensembles import perform, play, rest, start
from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import until

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
    kapelle: Instance, repository: Path
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
    assert ended["limited"]["reason"] == "Time limit of 2 s reached."
    own(repository, "await ctx.progress(begun=True)\nreturn 'mended'")
    kapelle.post(f"/runs/{ids['paused']}/resume")
    run = rest(kapelle, ids["paused"])
    while run["status"] == "paused":
        run = rest(kapelle, ids["paused"])
    assert (run["status"], run["result"]) == ("completed", "mended")


def test_a_pattern_that_ends_the_daemon_every_time_is_set_aside(
    kapelle: Instance, repository: Path
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
    assert 10 < len(daemons) < 15
    assert "the daemon died again and again" in kapelle.get(f"/runs/{run_id}")["reason"]
    own(repository, "await ctx.progress(begun=True)\nreturn 'mended'")
    kapelle.post(f"/runs/{run_id}/resume")
    until(lambda: kapelle.get(f"/runs/{run_id}")["status"] == "completed", "the end")


def test_a_pattern_that_ends_the_daemon_beside_a_step_is_set_aside_too(
    kapelle: Instance, repository: Path
) -> None:
    body = "import os\nasync def bad():\n    os._exit(7)\nawait ctx.gather(ctx.sleep(3600), bad())"
    own(repository, body)
    kapelle.start()
    run_id = start(kapelle, "own", repository)

    def settled() -> bool:
        assert kapelle.process is not None
        if kapelle.process.poll() is not None:
            kapelle.spawn()
        with suppress(OSError):
            return bool(kapelle.get(f"/runs/{run_id}")["status"] == "paused")
        return False

    until(settled, "the run to be set aside", 120)


@pytest.mark.parametrize(
    "body",
    [
        "import asyncio\nother = asyncio.create_task(asyncio.sleep(60))\nother.cancel()\n"
        "await other",
        "import asyncio\ntry:\n    async with asyncio.timeout(0.2):\n        await ctx.sleep(600)\n"
        "except TimeoutError:\n    await ctx.progress(late=True)",
    ],
)
def test_a_pattern_that_cancels_itself_has_failed(
    kapelle: Instance, repository: Path, body: str
) -> None:
    kapelle.start()
    own(repository, body)
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert "The pattern's own code has cancelled" in run["reason"]


def test_a_limit_of_time_holds_for_commands_too(kapelle: Instance, repository: Path) -> None:
    kapelle.start()
    own(repository, "while True:\n    await ctx.check('true')\n    await ctx.progress(on=True)")
    run = perform(kapelle, "own", repository, max_seconds=1)
    assert (run["status"], run["reason"]) == ("failed", "Time limit of 1 s reached.")
    run = perform(
        kapelle, "loop", repository, prompt=play({"result": "x"}), until=["sleep 30"], max_seconds=2
    )
    assert (run["status"], run["result"]["stopped_by"]) == ("failed", "budget")


def test_an_answer_lets_the_others_go_on(kapelle: Instance, repository: Path) -> None:
    body = """
async def ask(name):
    answer = await ctx.ask(name)
    await ctx.progress(**{name: answer})
    return answer

async def work():
    for number in range(40):
        await ctx.sleep(0.2)
        await ctx.progress(count=number)

return await ctx.gather(ask("one"), ask("two"), work())
"""
    own(repository, body)
    kapelle.start()
    run_id = start(kapelle, "own", repository)
    until(lambda: len(kapelle.get(f"/runs/{run_id}")["questions"]) == 2, "both questions")
    kapelle.post(f"/runs/{run_id}/answer", {"answer": "1", "token": f"{run_id}:0001.1.0001"})
    until(lambda: progress(kapelle, run_id).get("one") == "1", "the answered one to go on")
    count = progress(kapelle, run_id).get("count", 0)
    until(lambda: progress(kapelle, run_id).get("count", 0) > count + 3, "the work to go on")
    assert kapelle.get(f"/runs/{run_id}")["status"] == "running"
    run = rest(kapelle, run_id)
    assert run["status"] == "waiting"
    kapelle.post(f"/runs/{run_id}/answer", {"answer": "2"})
    until(lambda: kapelle.get(f"/runs/{run_id}")["status"] == "completed", "the end")
    assert kapelle.get(f"/runs/{run_id}")["result"] == ["1", "2", None]


def test_a_repository_that_is_away_for_a_while_costs_no_run(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    kapelle.start()
    own(repository, "await ctx.commit('first')\nreturn await ctx.ask('Why?')")
    run = perform(kapelle, "own", repository)
    repository.rename(tmp_path / "away")
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "because"})
    until(lambda: kapelle.get(f"/runs/{run['id']}")["status"] == "paused", "the pause")
    (tmp_path / "away").rename(repository)
    kapelle.post(f"/runs/{run['id']}/resume")
    until(lambda: kapelle.get(f"/runs/{run['id']}")["status"] == "completed", "the end")
    assert kapelle.get(f"/runs/{run['id']}")["result"] == "because"


MISTAKES = {
    "import json; json.loads('{')": "JSONDecodeError",
    "await ctx.sleep('soon')": "TypeError",
    "await ctx.progress(run_id='mine')": "ctx.progress: run_id is the run itself",
    "await ctx.progress(files={1, 2})": "files is nothing for JSON",
    "await ctx.ask('How many?', default=5)": "the default is a text, not 5",
    "await ctx.commit(None)": "ctx.commit takes a text, not None",
    "await ctx.task('x', workspace='mine')": "workspace is run or own, not 'mine'",
}


def test_a_mistake_is_told_with_its_own_line(kapelle: Instance, repository: Path) -> None:
    names = {mistake: f"own{number}" for number, mistake in enumerate(MISTAKES)}
    for mistake, name in names.items():
        own(repository, f"await ctx.progress(begun=True)\n{mistake}", name)
    kapelle.start()
    ids = {mistake: start(kapelle, name, repository) for mistake, name in names.items()}
    for mistake, told in MISTAKES.items():
        reason = rest(kapelle, ids[mistake])["reason"]
        assert told in reason
        if "Error" in told:
            path = repository / ".kapelle" / "patterns" / f"{names[mistake]}.py"
            lines = path.read_text(encoding="utf-8").splitlines()
            line = 1 + next(n for n, text in enumerate(lines) if mistake in text)
            assert reason.endswith(f"{path.name}:{line})")
