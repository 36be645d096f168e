"""Scripts that a makefile or a file of settings names, which an agent may have written."""

import time

import pytest

from kapelle.engine.processes.judges import list_executed, named_scripts


@pytest.mark.parametrize(
    "part", ["sh-", "sh -", "node-", "sh -x ", "python1", "sh " + "a" * 255, ";a/"]
)
def test_a_file_of_any_content_is_searched_in_linear_time(part: str) -> None:
    text = part * (256_000 // len(part))
    began = time.process_time()
    named_scripts(text)
    list_executed(text)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python3.11 -B -s tools/check.py --all", "tools/check.py"),
        ("cd x && bash -eu ./ci/run.sh", "ci/run.sh"),
        ("uv run scripts/verify.py", "scripts/verify.py"),
        ("./check.sh", "check.sh"),
        ("cd x; /usr/bin/python3.11 check.py", "check.py"),
    ],
)
def test_scripts_of_a_command_are_found(command: str, script: str) -> None:
    assert script in list_executed(command)
    assert script in named_scripts(f"test:\n\t{command}\n")
