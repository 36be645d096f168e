"""The worked example of CONTRIBUTING.md is built from the page's text, and works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A fenced block that names its file behind the language.
FILE = re.compile(r"^(`{3,})\w+ (\S+/\S+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
def test_a_new_pattern_is_a_source_file_a_test_file_and_a_page(tmp_path: Path) -> None:
    files = {
        path: text
        for _, path, text in FILE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    }
    assert [Path(path).suffix for path in files] == [".py", ".py", ".md"]
    copy = _copy(tmp_path / "kapelle")
    for path, text in files.items():
        assert not (copy / path).exists(), path
        (copy / path).write_text(text, encoding="utf-8")
    source, test, page = files
    _python(copy, "-m", "ruff", "check", source, test)
    _python(copy, "-m", "ruff", "format", "--check", source, test)
    _python(copy, "-m", "docs.generate")
    name = Path(page).stem
    assert f"Usage: kapelle {name} " in (copy / "docs" / "cli.md").read_text(encoding="utf-8")
    assert "| `--rounds` | `rounds` | `3` |" in (copy / page).read_text(encoding="utf-8")
    others = ["tests/unit/patterns/test_pattern_pages.py", "tests/unit/cli/test_cli_schemas.py"]
    others.append("tests/unit/test_house.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    chosen = f"{name} or schemas or house"
    done = _python(copy, "-m", "pytest", *options, "-k", chosen, test, *others)
    assert " passed" in done


def _copy(place: Path) -> Path:
    """The repository without what is made while one works in it, but for what is compiled."""
    unwanted = shutil.ignore_patterns(".*")
    place.mkdir()
    for name in ("src", "docs", "tests", "bench", "web/src"):
        shutil.copytree(ROOT / name, place / name, ignore=unwanted)
    for path in ROOT.glob("*.*"):
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, place)
    return place


def _python(copy: Path, *arguments: str) -> str:
    paths = os.pathsep.join([str(copy / "src"), str(copy)])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stdout[-5000:]}{done.stderr[-5000:]}"
    return done.stdout
