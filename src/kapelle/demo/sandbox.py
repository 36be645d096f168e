"""The directory of the demo: a sample repository and a private home, and nothing left running."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from kapelle.cli.output import say
from kapelle.domain.errors import InvalidInput, KapelleError, LimitReached
from kapelle.home import Home

LONGEST_S = 100
# Of the person's environment only what programs need to run and to show text.
_KEPT = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LANG", "LANGUAGE", "TERM"}
    | {"COLORTERM", "COLUMNS", "LINES", "NO_COLOR"}
)


class Sandbox:
    """A directory; is_new tells whether it was made for the demo."""

    def __init__(self, root: Path, *, is_new: bool) -> None:
        self.root = root
        self.is_new = is_new
        self.repository, self.home = root / "etude", Home(root / "home")

    def remove(self) -> None:
        """Take away everything; a directory that was there before stays, empty."""
        for path in list(self.root.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.is_new:
            self.root.rmdir()
        # The socket of a home with a long path lies elsewhere.
        if not self.home.socket.is_relative_to(self.root):
            shutil.rmtree(self.home.socket.parent, ignore_errors=True)


def make(directory: Path | None) -> Sandbox:
    """A new temporary directory, or the one that was asked for, which must be empty."""
    if directory is None:
        return Sandbox(Path(tempfile.mkdtemp(prefix="kapelle-demo-")).resolve(), is_new=True)
    root = directory.expanduser().resolve()
    is_new = not root.exists()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise InvalidInput(
                f"{root} is not empty.", hint="Give --dir a directory that is, or a new name."
            )
    except OSError as error:
        raise InvalidInput(f"{root} cannot be used: {error.strerror}.") from None
    return Sandbox(root, is_new=is_new)


def environment(sandbox: Sandbox, yours: Mapping[str, str]) -> dict[str, str]:
    """An environment without the person's settings, agents, keys or git configuration."""
    kept = {name: value for name, value in yours.items() if name in _KEPT or name[:3] == "LC_"}
    # The checks type python3, and mean the one that runs Kapelle.
    path = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", os.defpath)])
    return kept | {
        "PATH": path,
        "HOME": str(sandbox.root),
        "KAPELLE_HOME": str(sandbox.home.root),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "PYTHONUTF8": "1",
    }


def kapelle(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one `kapelle` command to its end, whatever that is."""
    return _run([sys.executable, "-P", "-m", "kapelle", *arguments])


def own_name(path: str | None) -> str:
    """What this person types for `kapelle`, with the PATH they have."""
    program = Path(sys.argv[0])
    if program.name != "kapelle":
        return f"{shlex.quote(sys.executable)} -P -m kapelle"
    found = shutil.which("kapelle", path=path)
    if found and os.path.realpath(found) == os.path.realpath(program):
        return "kapelle"
    shown = os.path.relpath(program)
    return shlex.quote(os.path.abspath(program) if shown.startswith("..") else shown)


@contextmanager
def nothing_left_running(sandbox: Sandbox, *, keep: bool = False) -> Iterator[list[str]]:
    """Stop the daemon and the agents at the end, also after Ctrl-C, SIGTERM or a failure.

    With keep they go on, unless it failed. Afterwards the list holds what kept them from ending.
    """
    problems: list[str] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, _leave)
    signal.alarm(LONGEST_S)
    try:
        yield problems
    except BaseException:
        keep = False
        say("Stopping the daemon and its agents …")
        raise
    finally:
        signal.alarm(0)
        # An impatient second Ctrl-C must not leave a daemon behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        problems += [] if keep else _stop(sandbox)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, _: object) -> NoReturn:
    if number == signal.SIGALRM:
        raise LimitReached(f"The demo has not ended after {LONGEST_S} s, so it was given up.")
    raise SystemExit(128 + number)


def _stop(sandbox: Sandbox) -> list[str]:
    if not sandbox.home.root.exists():
        return []
    done = kapelle("stop", "--agents")
    if done.returncode:
        return [done.stderr.strip()]
    return []


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


def make_repository(repository: Path) -> None:
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
    done = _run(["git", *arguments], repository)
    if done.returncode:
        raise KapelleError(f"`git {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def run_tests(repository: Path) -> Tally:
    """Run the sample's own tests, as its README says."""
    done = _run([sys.executable, "-m", "unittest"], repository)
    ran = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
    total = int(ran[1]) if ran else 0
    if done.returncode == 0:
        return Tally(total, 0)
    counts = re.findall(r"(?:failures|errors)=(\d+)", done.stderr)
    # A run that failed without naming a test is no run to trust.
    return Tally(total, sum(map(int, counts)) or total)


def tune(repository: Path) -> str:
    """What the library plays when it is whole."""
    return _run([sys.executable, "-m", "music"], repository).stdout


def _run(command: list[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
