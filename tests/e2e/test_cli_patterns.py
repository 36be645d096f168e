"""Patterns of one's own from the command line."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import shared_instance

OWN = '''
from pydantic import BaseModel, Field
from kapelle.patterns import Context, PatternSpec, pattern


class GreetSpec(PatternSpec):
    names: list[str] = Field(description="whom to greet", min_length=1)
    loud: bool = False
    asks: bool = False


class Greeted(BaseModel):
    lines: list[str]
    reason: str


@pattern("greet", spec=GreetSpec)
async def greet(ctx: Context, spec: GreetSpec) -> Greeted:
    """Greet people."""
    names = [*spec.names, await ctx.ask("Whom else?")] if spec.asks else spec.names
    await ctx.progress(greeted=len(names))
    lines = [f"hello {name}".upper() if spec.loud else f"hello {name}" for name in names]
    return Greeted(lines=lines, reason="all greeted")
'''


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shared_instance(tmp_path_factory.mktemp("patterns")) as instance:
        yield instance


@pytest.fixture
def greeting(place: Path) -> Path:
    """The place with a pattern of its own."""
    (place / ".kapelle" / "patterns").mkdir()
    (place / ".kapelle" / "patterns" / "greet.py").write_text(OWN, encoding="utf-8")
    return place


def test_ones_own_pattern(kapelle: Instance, greeting: Path) -> None:
    listed = kapelle.cli("start", cwd=greeting).stdout
    rows = [" ".join(row.split()) for row in listed.splitlines()]
    assert "greet .kapelle/patterns/greet.py Greet people." in rows
    shown = kapelle.cli("start", "greet", "--help", cwd=greeting).stdout
    assert re.search(r"--names TEXT +Whom to greet\. \[required; repeatable\]", shown)
    done = kapelle.cli("start", "greet", "--names", "Ann", "--names", "Bo", "--loud", "-f",
                       "--title", "Hi", cwd=greeting)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "greeted 2" in done.stdout
    result = kapelle.cli("runs", "result", done.stdout.splitlines()[0]).stdout
    assert json.loads(result)["lines"] == ["HELLO ANN", "HELLO BO"]
    assert "There is no pattern 'greet'" in kapelle.cli("start", "greet").stderr
    refused = kapelle.cli("start", "greet", "--nmaes", "x", cwd=greeting)
    assert (refused.returncode, "Did you mean --names" in refused.stderr) == (2, True)


def test_a_pattern_that_asks_waits_for_the_answer(kapelle: Instance, greeting: Path) -> None:
    done = kapelle.cli("start", "greet", "--names", "Ann", "--asks", "-f", cwd=greeting)
    assert done.returncode == 3
    run_id = done.stdout.splitlines()[0]
    assert f"{run_id} waiting: Whom else?" in done.stderr
    assert "(Whom else?)" in kapelle.cli("runs").stdout
    assert kapelle.cli("runs", "answer", run_id, "").returncode == 2
    assert kapelle.cli("runs", "answer", run_id, "Bo").stdout.strip() == run_id
    assert kapelle.cli("wait", run_id).returncode == 0
    result = json.loads(kapelle.cli("runs", "result", run_id).stdout)
    assert result["lines"] == ["hello Ann", "hello Bo"]
