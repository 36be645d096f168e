"""The pages of the patterns say what the code says: options, methods, statuses, routes, reasons."""

import re
import sys
from pathlib import Path

import pytest
from docs.generate import methods, with_parts
from docs.services import idle_services

from kapelle.api.app import openapi
from kapelle.cli.commands import load
from kapelle.domain.specs import Spec
from kapelle.domain.states import RUN_TRANSITIONS
from kapelle.patterns import registry
from kapelle.patterns.context import Context
from kapelle.patterns.spec import PatternSpec

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PATTERNS = {pattern.name: pattern.spec for pattern in registry.load_built_in()}
EXAMPLES = r"\w+Error|: (?=these)|: x,| quality, .*|make test|\bsleep\b|\btask\b"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_a_page_without_a_place_for_a_part_is_an_error() -> None:
    marked = "a\n<!-- made by make docs: x -->\n\nold\n\n<!-- end of that -->\nb\n"
    assert with_parts(marked, {"x": "new"}) == marked.replace("old", "new")
    with pytest.raises(ValueError, match="no place for: y"):
        with_parts(marked, {"y": "new"})


def test_every_field_has_a_meaning() -> None:
    specs = {
        item
        for spec in (PatternSpec, *PATTERNS.values())
        for item in vars(sys.modules[spec.__module__]).values()
        if isinstance(item, type) and issubclass(item, Spec) and item.__module__ == spec.__module__
    }
    assert len(specs) > 5
    for model in specs:
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


@pytest.mark.parametrize("name", PATTERNS)
def test_every_option_and_field_is_on_the_page(name: str) -> None:
    text = page(f"{name}.md") + page("runs.md")
    for parameter in load(name).params:
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert f"`{option}`" in text, f"{name} {option}"
    for field in PATTERNS[name].model_fields:
        assert f"| `{field}` |" in text, f"{name} {field}"


@pytest.mark.parametrize("name", PATTERNS)
def test_every_page_has_its_flowchart_and_its_sections(name: str) -> None:
    text = page(f"{name}.md")
    assert "```mermaid\nflowchart " in text
    for heading in ("## Options", "## How it ends", "## Result"):
        assert heading in text


@pytest.mark.parametrize("name", [*PATTERNS, "runs"])
def test_the_reasons_on_the_page_are_those_of_the_code(name: str) -> None:
    """Every fixed part of a reason that a page quotes stands in the source."""
    folders = ("patterns", "engine", "service", "domain")
    paths = [path for folder in folders for path in (ROOT / "src/kapelle" / folder).rglob("*.py")]
    # A text that is broken over two lines of source is one text.
    source = "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in paths
    )
    heading = "## Statuses" if name == "runs" else "## How it ends"
    section = page(f"{name}.md").partition(heading)[2].partition("\n## ")[0]
    quoted = [text for text in re.findall(r"`([^`]*)`", section) if len(text) > 20]
    assert len(quoted) >= 4
    for text in quoted:
        # What stands for something else in an example: numbers, names, commands.
        fixed = re.split(rf"\d[\d.]*(?: iterations)?|…|\([^)]*\)|[$;]|{EXAMPLES}", text)
        for fragment in (part.strip(" ,.").removeprefix("It ") for part in fixed):
            if len(fragment) > 12 and " " in fragment:
                assert fragment in source, f"{name}: {fragment!r}"


def test_the_table_of_statuses_is_the_table_of_transitions() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \|([^|]*)\|$", page("runs.md"), re.MULTILINE)
    documented = {status: set(re.findall(r"`(\w+)`", targets)) for status, targets in rows}
    for status, targets in RUN_TRANSITIONS.items():
        assert documented[status] == {target.value for target in targets}, status


def test_every_route_of_runs_is_on_the_page() -> None:
    text = page("runs.md")
    found = 0
    for path, operations in openapi(idle_services())["paths"].items():
        if re.match(r"/api/v1/(runs|patterns)\b", path):
            for method in operations:
                assert f"`{method.upper()} {path}`" in text
                found += 1
    assert found > 10


def test_every_method_of_the_context_is_on_the_page() -> None:
    listed = re.findall(r"^- \*\*`ctx\.(\w+)", methods(), re.MULTILINE)
    offered = [name for name in vars(Context) if not name.startswith("_")]
    assert set(listed) == {name for name in offered if callable(getattr(Context, name))} | {
        "is_git"
    }
    assert all(len(line) > 40 for line in methods().splitlines())


def test_the_readme_leads_to_every_pattern() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for item in registry.load_built_in():
        assert f"[{item.name}](docs/{item.name}.md)" in readme
