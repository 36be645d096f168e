"""The OpenAPI document, tried with generated requests, in a pytest of its own: to read the
document takes so long that not every worker should do it to collect its tests."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_every_answer_is_one_that_the_document_promises(tmp_path: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", f"--basetemp={tmp_path / 'pytest'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/e2e/api_schema.py"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
