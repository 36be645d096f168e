"""Kapelle as a person uses it: commands that are typed, in the environment of the demo."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def typed(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run one `kapelle` command to its end, whatever that is."""
    return subprocess.run(
        [sys.executable, "-m", "kapelle", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def own_name(path: str | None) -> str:
    """What this person types for `kapelle`, with the PATH they have."""
    program = Path(sys.argv[0])
    if program.name != "kapelle":
        return f"{shlex.quote(sys.executable)} -m kapelle"
    found = shutil.which("kapelle", path=path)
    if found and os.path.realpath(found) == os.path.realpath(program):
        return "kapelle"
    shown = os.path.relpath(program)
    return shlex.quote(os.path.abspath(program) if shown.startswith("..") else shown)
