"""`make test` names tests that fail among the others and pass alone, and fails for no other."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path

def test_steady():
    pass

def test_unsteady():
    tried = Path("tried")
    is_first = not tried.exists()
    tried.touch()
    assert not is_first

def test_hopeless():
    assert Path("mended").exists()
"""


def _retry(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (directory / "test_sample.py").write_text(TESTS, encoding="utf-8")
    return subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "tests.retry",
            *options,
            "--",
            "-p",
            "xdist",
            "test_sample.py",
        ],
        cwd=directory,
        # Reading all plugins takes longer than the tests.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_test_that_passes_the_second_time_is_named_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "mended").touch()
    done = _retry(tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "UNSTEADY test_sample.py::test_unsteady"


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = _retry(tmp_path)
    assert done.returncode == 1
    assert "UNSTEADY test_sample.py::test_hopeless" not in done.stdout
    assert done.stdout.splitlines()[-1] == "UNSTEADY test_sample.py::test_unsteady"


def test_tests_that_pass_are_run_once(tmp_path: Path) -> None:
    (tmp_path / "mended").touch()
    (tmp_path / "tried").touch()
    done = _retry(tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("test session starts") == 1
    assert "UNSTEADY" not in done.stdout


def test_a_file_that_cannot_be_read_is_no_failed_test(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nowhere_to_be_found", encoding="utf-8")
    done = _retry(tmp_path, "test_broken.py")
    assert done.returncode == 2
    assert done.stdout.count("test session starts") == 1
