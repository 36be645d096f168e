"""The sample repository, and its own tests."""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kapelle.domain.errors import KapelleError


@dataclass(frozen=True)
class Tally:
    """How many of the sample's tests there are, and how many do not pass."""

    total: int
    failed: int

    @property
    def passes(self) -> bool:
        return self.total > 0 and self.failed == 0

    def __str__(self) -> str:
        if self.passes:
            return f"all {self.total} tests pass"
        return f"{self.failed} of {self.total} tests fail"


def make(repository: Path) -> None:
    """Write the files and commit them on main."""
    text = files("kapelle.demo").joinpath("sample.toml").read_text(encoding="utf-8")
    for name, content in tomllib.loads(text)["files"].items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "config", "user.name", "Kapelle demo")
    git(repository, "config", "user.email", "demo@localhost")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=Begin a very small music library")


def git(repository: Path, *arguments: str) -> str:
    return run(repository, ["git", *arguments]).strip()


def run(directory: Path, command: list[str]) -> str:
    """What a command prints; raises when it fails."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        raise KapelleError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def test(repository: Path) -> Tally:
    """Run the sample's own tests, as its README says."""
    done = subprocess.run(
        [sys.executable, "-m", "unittest"],
        cwd=repository,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    ran = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
    total = int(ran[1]) if ran else 0
    if done.returncode == 0:
        return Tally(total, 0)
    counts = re.findall(r"(?:failures|errors)=(\d+)", done.stderr)
    # A run that failed without naming a test is no run to trust.
    return Tally(total, sum(map(int, counts)) or total)


def tune(repository: Path) -> str:
    """What the library plays when it is whole."""
    return run(repository, [sys.executable, "-m", "music"])
