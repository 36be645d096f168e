"""Patterns of one's own: what they may do, and how their mistakes are told."""

from pathlib import Path

import pytest

from tests.e2e.support.ensembles import perform, play, purposes_of, rest, start, write_pattern
from tests.e2e.support.instance import ApiError, Instance

OWN = '''
class Spec(PatternSpec):
    words: list[str]

@pattern("own", spec=Spec)
async def own(ctx: Context, spec: Spec) -> dict:
    """Says words, one task each, at the same time."""
    async def say(word: str) -> str:
        task = await ctx.task(
            f"Say it.\\n```rehearsal\\n[[do]]\\nresult = {word!r}\\n```\\n", workspace="own"
        )
        return task.text
    return {"said": await ctx.gather(*(say(word) for word in spec.words))}
'''


def test_a_pattern_of_ones_own(kapelle: Instance, repository: Path) -> None:
    write_pattern(repository, OWN)
    listed = kapelle.get(f"/patterns?directory={repository}")
    mine = next(item for item in listed if item["name"] == "own")
    assert mine["summary"] == "Says words, one task each, at the same time."
    assert "words" in mine["spec_schema"]["required"]
    run = perform(kapelle, "own", repository, words=["one", "two", "three"])
    assert run["status"] == "completed", run["reason"]
    assert run["result"] == {"said": ["one", "two", "three"]}
    with pytest.raises(ApiError, match="words is missing"):
        start(kapelle, "own", repository)
    with pytest.raises(ApiError, match="did you mean own"):
        start(kapelle, "owm", repository)


PURPOSE = """
@pattern("own", spec=PatternSpec)
async def own(ctx: Context, spec: PatternSpec) -> None:
    await ctx.task({prompt!r}, title="Any words", role={role!r}, cycle={cycle!r})
"""


def test_a_task_of_a_pattern_has_a_role_and_a_cycle(kapelle: Instance, repository: Path) -> None:
    said = play({"result": "x"})
    write_pattern(repository, PURPOSE.format(prompt=said, role="referee", cycle=3))
    run = perform(kapelle, "own", repository)
    assert (run["status"], purposes_of(kapelle, run["id"])) == ("completed", [("referee", 3)])
    for role, cycle, wrong in ((3, 3, "role is a text"), ("referee", "3", "cycle is a whole")):
        write_pattern(repository, PURPOSE.format(prompt=said, role=role, cycle=cycle))
        run = perform(kapelle, "own", repository)
        assert (run["status"], wrong in run["reason"]) == ("failed", True), run["reason"]


def test_mistakes_in_a_pattern_are_told_with_their_line(
    kapelle: Instance, repository: Path
) -> None:
    write_pattern(repository, "def broken(:\n")
    with pytest.raises(ApiError, match=r"own\.py:4: SyntaxError"):
        start(kapelle, "own", repository)
    write_pattern(
        repository,
        '@pattern("own", spec=PatternSpec)\nasync def own(ctx, spec):\n    return 1 / 0\n',
    )
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert "ZeroDivisionError" in run["reason"]
    assert "own.py:6" in run["reason"]
    write_pattern(repository, '@pattern("loop", spec=PatternSpec)\nasync def own(ctx, spec): ...\n')
    # What is built in is not disturbed by it, and the list tells.
    run = perform(kapelle, "loop", repository, prompt=play({"result": "x"}), until=["true"])
    assert run["status"] == "completed"
    listed = kapelle.get(f"/patterns?directory={repository}")
    [broken] = [item for item in listed if item["is_broken"]]
    assert "defines already" in broken["summary"]


def test_steps_beside_gather_are_refused(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await asyncio.gather(ctx.sleep(0.01), ctx.sleep(0.01))
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert "ctx.gather" in run["reason"]


def test_a_pattern_that_changed_is_not_replayed(kapelle: Instance, repository: Path) -> None:
    template = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await ctx.{first}
    await ctx.ask("Go on?")
"""
    write_pattern(repository, template.format(first="sleep(0.01)"))
    run = perform(kapelle, "own", repository)
    assert run["status"] == "waiting"
    write_pattern(repository, template.format(first="progress(a=1)"))
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "yes"})
    run = rest(kapelle, run["id"])
    assert run["status"] == "failed"
    assert "the pattern changed while the run was under way" in run["reason"]


def test_a_result_with_a_failure(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    raise Failed("not good enough", {"got": 7})
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert (run["status"], run["reason"], run["result"]) == (
        "failed",
        "not good enough",
        {"got": 7},
    )


def test_a_spec_without_a_schema_does_not_hide_the_others(
    kapelle: Instance, repository: Path
) -> None:
    body = """
from collections.abc import Callable

class Spec(PatternSpec):
    act: Callable[[], None] = print

@pattern("own", spec=Spec)
async def own(ctx, spec):
    return None
"""
    write_pattern(repository, body)
    write_pattern(repository, OWN.replace('"own"', '"good"'), "good")
    listed = kapelle.get(f"/patterns?directory={repository}")
    assert {"loop", "good"} <= {item["name"] for item in listed}
    broken = [item for item in listed if item["name"] == "(broken)"]
    assert len(broken) == 1
    assert "own.py: the spec of the pattern 'own' has no JSON schema" in broken[0]["summary"]
    told = kapelle.cli("start", cwd=repository)
    assert (told.returncode, "(broken)" in told.stdout) == (0, True)


def test_a_file_may_use_what_is_built_in(kapelle: Instance, repository: Path) -> None:
    write_pattern(repository, "from kapelle.patterns.loop import loop\n" + OWN)
    names = [item["name"] for item in kapelle.get(f"/patterns?directory={repository}")]
    assert (names.count("own"), names.count("loop"), "(broken)" in names) == (1, 1, False)
