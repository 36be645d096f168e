"""The house stays in order: what a change makes larger is raised in pyproject.toml, in sight."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "kapelle"
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUDGETS: dict[str, list[int]] = _PROJECT["tool"]["kapelle"]["budgets"]
LARGEST = 600
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if "migrations" not in path.parts]


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _package(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first if (SOURCE / first).is_dir() else "kapelle"


@pytest.mark.parametrize("package", [*BUDGETS])
def test_a_package_stays_within_its_budget(package: str) -> None:
    paths = [path for path in MODULES if _package(path) == package]
    lines, files = BUDGETS[package]
    assert sum(map(_lines, paths)) <= lines, "shorten it, or raise the budget in pyproject.toml"
    assert len(paths) <= files, "join some, or raise the budget in pyproject.toml"


def test_every_package_has_a_budget() -> None:
    assert {_package(path) for path in MODULES} == BUDGETS.keys()


def test_no_module_is_a_heap() -> None:
    assert [str(path) for path in MODULES if _lines(path) > LARGEST] == []
