"""Pictures say what the code of a pattern does, and the committed ones are those of today."""

import re
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from kapelle.home import Home
from kapelle.patterns import registry
from kapelle.patterns.picture import WIDTH, flow_of, picture
from kapelle.patterns.picture.__main__ import main
from kapelle.patterns.picture.flow import Body, Choice, Step, Together, outline
from kapelle.patterns.picture.lettering import Style, lines_of, width_of
from kapelle.patterns.registry import Pattern

DOCS = Path(__file__).parents[3] / "docs"
NAMES = ["pipeline", "loop", "team", "best-of", "two-reviewers"]
HEAD = """
import asyncio
from dataclasses import dataclass
from kapelle.patterns import Context, Failed, PatternSpec, pattern
"""

Write = Callable[[str], Pattern]


@pytest.fixture
def own(tmp_path: Path) -> Write:
    """Makes a pattern named own of a source."""

    def write(source: str) -> Pattern:
        folder = tmp_path / ".kapelle" / "patterns"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "own.py").write_text(HEAD + textwrap.dedent(source), encoding="utf-8")
        return registry.get("own", Home(tmp_path / "home"), tmp_path)

    return write


def known(name: str, home: Path) -> Pattern:
    return registry.get(name, Home(home), DOCS / "examples")


def told(pattern: Pattern) -> list[str]:
    return list(outline(flow_of(pattern)))


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_pictures_are_what_the_code_gives(name: str, tmp_path: Path) -> None:
    committed = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert picture(known(name, tmp_path)) == committed, "run `make docs`"


def test_there_is_no_picture_of_anything_else() -> None:
    assert {path.stem for path in (DOCS / "pictures").iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_needs_nothing_else_and_its_text_stays_inside(name: str, tmp_path: Path) -> None:
    text = picture(known(name, tmp_path))
    assert not re.search(r"<script|href|url\(|@import|@font-face|\son\w+=", text)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert int(root.attrib["width"]) == WIDTH <= 720
    assert (root.findtext(f"{space}title") or "").endswith(name)
    assert (root.findtext(f"{space}desc") or "").count("\n") > 1
    for element in root.iter(f"{space}text"):
        style = Style(float(element.attrib["font-size"]), "", int(element.attrib["font-weight"]))
        middle = element.attrib.get("text-anchor") == "middle"
        for line in element.findall(f"{space}tspan"):
            wide = width_of("".join(line.itertext()), style) / (2 if middle else 1)
            assert float(line.attrib["x"]) + wide <= WIDTH - 10


def test_the_largest_stays_small_enough_to_be_seen_at_once(tmp_path: Path) -> None:
    assert _boxes(flow_of(known("team", tmp_path))) <= 28


def _boxes(body: Body) -> int:
    count = 0
    for node in body:
        if isinstance(node, Step):
            count += node.kind != "end"
        elif isinstance(node, Choice):
            count += 1 + sum(_boxes(way.body) for way in node.ways)
        elif isinstance(node, Together):
            count += 1 + sum(map(_boxes, node.branches))
        else:
            count += 1 + _boxes(node.body)
    return count


def test_the_flow_of_the_team(tmp_path: Path) -> None:
    """The whole of it once, so that a picture that loses a step is noticed."""
    lines = [line.strip() for line in told(known("team", tmp_path))]
    for step in (
        "git: commit “Before the team”",
        "agent: Intake",
        "person: «question»",
        "agent: Plan",
        "at the same time, for each subgoal:",
        "agent: «subgoal»",
        "git: merge «task»",
        "agent: «subgoal» (conflict)",
        "command: check «verify»",
        "agent: Review",
    ):
        assert step in lines
        lines = lines[lines.index(step) + 1 :]


def test_loops_branches_and_ends(own: Write) -> None:
    found = told(
        own("""
        class Spec(PatternSpec):
            tries: int = 3

        @pattern("own", spec=Spec)
        async def own(ctx, spec):
            while not (await ctx.check("make test")).passed:
                if spec.tries > 5:
                    await ctx.sleep(60)
                else:
                    await ctx.ask("Shall I go on?")
            for number in range(spec.tries):
                task = await ctx.task("Do it.\\nAt once.")
                if task.ok:
                    break
            if not task.ok:
                raise Failed("no")
            try:
                await ctx.run("loop", {"prompt": "x"})
            except KeyError:
                await ctx.commit("rescued")
            match task.status:
                case "completed":
                    await ctx.merge(task)
                case _:
                    await ctx.score("wc -l x")
        """)
    )
    assert found == [
        "while check make test not passed:",
        "  command: check make test",
        "  if «tries» > 5:",
        "    wait: «60»",
        "  otherwise:",
        "    person: Shall I go on?",
        "up to «tries» times, until task ok:",
        "  agent: Do it.",
        "end: fails if task not ok",
        "run: loop",
        "if it raises KeyError:",
        "  git: commit “rescued”",
        "if task status is 'completed':",
        "  git: merge «task»",
        "otherwise:",
        "  command: measure wc -l x",
    ]


def test_functions_and_objects_are_followed(own: Write) -> None:
    found = told(
        own("""
        @pattern("own", spec=PatternSpec)
        async def own(ctx, spec):
            async def inner(word):
                await ctx.task(f"Say {word}", title=f"Say {word}")
            state = State(ctx, 3)
            branches = [inner(word) for word in ("a", "b")]
            await ctx.gather(*branches)
            await ctx.gather(state.first(), Kept(ctx).second(), plain(ctx))
            return await again(ctx)

        @dataclass
        class State:
            context: Context
            number: int
            async def first(self):
                await self.context.commit("first")

        class Kept:
            def __init__(self, context):
                self._context = context
            async def second(self):
                await self._context.commit("second")

        def plain(context):
            return context.commit("third")

        async def again(context, depth=0):
            await context.commit("recursive")
            if depth < 3:
                await again(context, depth + 1)
        """)
    )
    assert found == [
        "at the same time, for each word:",
        "  agent: Say «word»",
        "at the same time:",
        "  git: commit “first”",
        "  git: commit “second”",
        "  git: commit “third”",
        "git: commit “recursive”",
    ]


def test_what_is_known_of_the_specification_is_not_asked_twice(own: Write) -> None:
    found = told(
        own("""
        class Spec(PatternSpec):
            fast: bool = False

        @pattern("own", spec=Spec)
        async def own(ctx, spec):
            if spec.fast:
                await work(ctx, spec)
            if not ctx.is_git:
                raise Failed("no")
            if ctx.is_git:
                await ctx.commit("done")

        async def work(ctx, spec):
            if not spec.fast:
                await ctx.sleep(5)
            await ctx.task("Run")
        """)
    )
    assert found == [
        "if «fast»:",
        "  agent: Run",
        "end: fails if in place",
        "git: commit “done”",
    ]


def test_telling_and_tidying_up_are_left_out(own: Write) -> None:
    pattern = own("""
    @pattern("own", spec=PatternSpec)
    async def own(ctx, spec):
        await ctx.progress(a=1)
        if await ctx.now():
            await ctx.changes()
        await unknown.thing(ctx)
    """)
    assert told(pattern) == []
    assert picture(pattern).startswith("<svg")


def test_lines_break_where_they_must() -> None:
    style = Style(13, "#000")
    text = "one «long placeholder» and " + "x" * 200
    lines = lines_of(text, style, 150)
    assert [line.replace("\u00a0", " ") for line in lines[:2]] == ["one", "«long placeholder»"]
    assert lines[-1].endswith("…")
    assert all(width_of(line, style) <= 150 for line in lines)
    # Where there is no room for all of it, it is two.
    assert lines_of(text, style, 100)[:2] == ["one «long»", "«placeholder»"]


def test_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPELLE_HOME", str(tmp_path))
    assert main(["loop"]) == 0
    assert capsys.readouterr().out.startswith("<svg")
    assert main(["lop", str(tmp_path)]) == 2
    assert "did you mean loop" in capsys.readouterr().err
    assert main([]) == 2
    assert "NAME" in capsys.readouterr().err
