"""The documents say what is true now."""

import re
from pathlib import Path

from docs.generate import documents
from docs.services import idle_services

from kapelle.api.app import openapi
from kapelle.domain.states import TRANSITIONS

ROOT = Path(__file__).parents[2]
WIDEST = 120


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _folders(parent: str) -> set[str]:
    return {
        f"{parent}/{path.name}"
        for path in (ROOT / parent).iterdir()
        if path.is_dir() and not path.name.startswith(("_", "."))
    }


def test_the_architecture_page_names_every_folder_and_no_other() -> None:
    named = re.findall(r"^\| `([\w/]+)` \|", _text("ARCHITECTURE.md"), re.MULTILINE)
    below = {"bench", "docs", "web"} | _folders("src/kapelle/agents")
    assert sorted(named) == sorted(_folders("src/kapelle") | _folders("tests") | below)


def test_every_package_says_its_duty() -> None:
    for folder in _folders("src/kapelle"):
        start = _text(f"{folder}/__init__.py")
        assert start.startswith('"""'), folder


def test_the_documents_made_from_the_code_are_current() -> None:
    for name, made in documents().items():
        assert _text(f"docs/{name}") == made, f"{name}: run `make docs`"


def test_the_table_of_statuses_is_the_table_of_transitions() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|$", _text("docs/tasks.md"), re.MULTILINE)
    documented = {status: set(re.findall(r"`(\w+)`", targets)) for status, targets in rows}
    for status, targets in TRANSITIONS.items():
        assert documented[status] == {target.value for target in targets}, status


def test_links_between_documents_lead_somewhere() -> None:
    """To a file that is there, and in a page to a heading that it has."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^):]+)\)", _without_code(page)):
            name, _, anchor = target.partition("#")
            path = page.parent / name if name else page
            assert path.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(path), f"{page.name}: {target}"


def _anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", _without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_lines_of_prose_fit_a_screen() -> None:
    """Tables, code, and what is generated may be wider."""
    wide = {
        f"{page.relative_to(ROOT)}: {line}"
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        if page.name != "cli.md"
        for line in _prose(page)
        if len(line) > WIDEST
    }
    assert wide == set()


def _prose(page: Path) -> list[str]:
    text = re.sub(r"<!-- made by .*?<!-- end of that -->", "", _without_code(page), flags=re.DOTALL)
    return [line for line in text.splitlines() if not line.lstrip().startswith("|")]


def _without_code(page: Path) -> str:
    fenced = re.compile(r"^ *(`{3,})[^`\n]*\n.*?^ *\1$", re.DOTALL | re.MULTILINE)
    return fenced.sub("", page.read_text(encoding="utf-8"))


def test_every_page_starts_with_what_it_is_for() -> None:
    """The reader learns from the first sentence what this page is good for."""
    for page in (ROOT / "docs").glob("*.md"):
        if page.name in {"index.md", "cli.md"}:
            continue
        title, _, rest = page.read_text(encoding="utf-8").partition("\n\n")
        assert title.startswith("# "), page.name
        assert rest.startswith(("After reading this page ", "After this page ")), page.name


def test_the_pages_for_agents_and_people_stay_short() -> None:
    assert len(_text("AGENTS.md").splitlines()) <= 100
    assert len(_text("README.md").splitlines()) <= 200


def test_every_rest_operation_has_a_sentence() -> None:
    for path, operations in openapi(idle_services())["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description"), f"{method} {path}"
