"""What is published agrees with itself: versions, addresses, the lists of pages."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kapelle import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SERVER = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
PLUGIN = json.loads((ROOT / "plugin/.claude-plugin/plugin.json").read_text(encoding="utf-8"))
# The owner in each spelling of the repository's address.
ADDRESS = re.compile(
    r"(?:github\.com/|githubusercontent\.com/|io\.github\.|--marketplace |--repo )([\w-]+)/kapelle"
    r"|//([\w-]+)\.github\.io/kapelle"
)
PUBLISHED = (
    "*.json", "*.md", "*.toml", "*.yml", "*.yaml", "Dockerfile",
    ".claude-plugin/*", ".github/**/*.*", "docs/*.md", "plugin/**/*.md", "plugin/**/*.json",
)  # fmt: skip


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_version_is_the_same() -> None:
    packages = [package["version"] for package in SERVER["packages"]]
    versions = {PROJECT["version"], PLUGIN["version"], SERVER["version"], *packages}
    assert versions == {__version__}


def test_every_address_is_that_of_the_project() -> None:
    """docs/releasing.md has the command that changes it everywhere."""
    (owner,) = ADDRESS.findall(PROJECT["urls"]["Repository"])
    owners: dict[str, set[str]] = {}
    for path in {path for pattern in PUBLISHED for path in ROOT.glob(pattern)}:
        for found in ADDRESS.findall(path.read_text(encoding="utf-8")):
            owners.setdefault("".join(found), set()).add(path.name)
    assert owners.keys() == {owner[0]}
    named = owners[owner[0]]
    assert {"README.md", "mkdocs.yml", "plugin.json", "server.json", "marketplace.json"} <= named


def test_the_entry_for_the_mcp_registry_holds_its_rules() -> None:
    """The registry looks for the name in the description on PyPI, which is the README."""
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", SERVER["name"])
    assert f"<!-- mcp-name: {SERVER['name']} -->" in _text("README.md").splitlines()
    assert 1 <= len(SERVER["description"]) <= 100
    assert len(SERVER["title"]) <= 100
    (package,) = SERVER["packages"]
    assert (package["registryType"], package["identifier"]) == ("pypi", PROJECT["name"])
    assert package["packageArguments"] == [{"type": "positional", "value": "mcp"}]


def test_the_versions_of_python_are_those_of_ci() -> None:
    workflow = yaml.safe_load(_text(".github/workflows/ci.yml"))
    tried = set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"])
    classified = {item.rpartition(" ")[2] for item in PROJECT["classifiers"] if ":: 3." in item}
    assert tried == classified
    assert min(tried, key=_as_numbers) == PROJECT["requires-python"].removeprefix(">=")


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


@pytest.mark.parametrize("file", ["ci.yml", "release.yml"])
def test_every_action_is_pinned_to_a_commit(file: str) -> None:
    uses = re.findall(r"uses: (\S+)(.*)", _text(f".github/workflows/{file}"))
    assert len(uses) > 5
    for action, comment in uses:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


@cache
def _pages() -> set[str]:
    return {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_every_page_is_in_the_index_and_in_the_navigation() -> None:
    """Add a new page to docs/index.md and to mkdocs.yml, in one of the four kinds."""
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", _text("docs/index.md")))
    assert linked - {"index.md"} == _pages()
    listed = set(_entries(_navigation()))
    tops = {path.name for path in ROOT.glob("*.md")}
    assert {name for name in listed if "/" not in name} - tops - {"index.md"} == _pages()


def test_every_decision_is_in_the_table() -> None:
    decisions = {path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    assert set(re.findall(r"\]\((\d[\w.-]+)\)", _text("docs/adr/index.md"))) == decisions


def _navigation() -> Any:
    # MkDocs has tags of its own, which stand outside of the navigation.
    return yaml.safe_load("nav:" + _text("mkdocs.yml").partition("\nnav:")[2])["nav"]


def _entries(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [entry for part in parts for entry in _entries(part)]
