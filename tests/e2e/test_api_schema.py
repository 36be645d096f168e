"""The OpenAPI document, tried with generated requests, in a pytest of its own: to read the
document takes so long that not every worker should do it to collect its tests.

Of the operations a sample is tried, and all with --exhaustive."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(1200)
def test_every_answer_is_one_that_the_document_promises(
    tmp_path: Path, exhaustive: bool, sampling: random.Random
) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", f"--basetemp={tmp_path / 'pytest'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/e2e/support/api_schema.py"],
        cwd=Path(__file__).parents[2],
        env=os.environ | ({} if exhaustive else {"SAMPLE": str(sampling.random())}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
