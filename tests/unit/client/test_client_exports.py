"""What `import kapelle` offers, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kapelle

SOURCE = Path(kapelle.__file__)


def test_type_checkers_and_programs_see_the_same_names() -> None:
    branches = [
        node
        for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    ]
    seen = {
        alias.name: statement.module
        for statement in branches[0].body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == kapelle._HOME_OF


def test_every_name_is_there() -> None:
    for name in kapelle._HOME_OF:
        assert getattr(kapelle, name).__name__ == name
        assert name in dir(kapelle)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kapelle.nothing  # type: ignore[attr-defined]


def test_everything_can_be_imported_at_once() -> None:
    found: dict[str, object] = {}
    exec("from kapelle import *", found)
    del found["__builtins__"]
    assert found.keys() == kapelle._HOME_OF.keys()
    assert found["connect"] is kapelle.connect


def test_importing_kapelle_loads_nothing_else() -> None:
    program = (
        "import sys; before = set(sys.modules); import kapelle; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["kapelle"]
