"""What `import kapelle` offers, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kapelle

STUB = Path(kapelle.__file__).with_suffix(".pyi")


def test_type_checkers_and_programs_see_the_same_names() -> None:
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    seen = [alias.name for line in body if isinstance(line, ast.ImportFrom) for alias in line.names]
    assert sorted(seen) == kapelle.__all__  # type: ignore[attr-defined]
    assert len(seen) > 40


def test_every_name_is_there() -> None:
    for name in kapelle.__all__:  # type: ignore[attr-defined]
        assert getattr(kapelle, name).__name__ == name
        assert name in dir(kapelle)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kapelle.nothing  # type: ignore[attr-defined]


def test_everything_can_be_imported_at_once() -> None:
    found: dict[str, object] = {}
    exec("from kapelle import *", found)
    del found["__builtins__"]
    assert sorted(found) == kapelle.__all__  # type: ignore[attr-defined]
    assert found["connect"] is kapelle.connect


def test_importing_kapelle_loads_nothing_else() -> None:
    program = (
        "import sys; before = set(sys.modules); import kapelle; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["kapelle"]
