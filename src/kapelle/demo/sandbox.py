"""Make the directory of the demo, with a sample repository and a home of its own."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from kapelle.domain.errors import InvalidInput, KapelleError, LimitReached
from kapelle.home import Home

LONGEST_S = 100
# The variables of the user that programs need to run and to show text.
_PASSED = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LANG", "LANGUAGE", "TERM"}
    | {"COLORTERM", "COLUMNS", "LINES", "NO_COLOR"}
)


class Sandbox:
    """The directory of the demo; is_new tells whether the demo has created it."""

    def __init__(self, root: Path, *, is_new: bool) -> None:
        self.root = root
        self.is_new = is_new
        self.repository = root / "etude"
        self.home = Home(root / "home")

    def remove(self) -> None:
        """Remove all files; a directory that existed before stays, empty."""
        for path in list(self.root.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if self.is_new:
            self.root.rmdir()
        # The socket of a home with a long path lies elsewhere.
        if not self.home.socket.is_relative_to(self.root):
            shutil.rmtree(self.home.socket.parent, ignore_errors=True)


def make(directory: Path | None) -> Sandbox:
    """Create a temporary directory, or use the given one, which must be empty."""
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


def environment(sandbox: Sandbox, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the user's settings, agents, keys or git configuration."""
    own = {}
    for name, value in environ.items():
        if name in _PASSED or name.startswith("LC_"):
            own[name] = value
    # The python3 of the checks is the one that runs Kapelle.
    path = os.pathsep.join([os.path.dirname(sys.executable), own.get("PATH", os.defpath)])
    return own | {
        "PATH": path,
        "HOME": str(sandbox.root),
        "KAPELLE_HOME": str(sandbox.home.root),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "PYTHONUTF8": "1",
    }


def kapelle(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one `kapelle` command; a failure raises nothing."""
    return _run([sys.executable, "-P", "-m", "kapelle", *arguments])


def own_name(path: str | None) -> str:
    """Return the command with which the user can start `kapelle`, with their PATH."""
    program = Path(sys.argv[0])
    if program.name != "kapelle":
        return f"{shlex.quote(sys.executable)} -P -m kapelle"
    on_path = shutil.which("kapelle", path=path)
    if on_path and os.path.realpath(on_path) == os.path.realpath(program):
        return "kapelle"
    relative = os.path.relpath(program)
    if relative.startswith(".."):
        return shlex.quote(os.path.abspath(program))
    return shlex.quote(relative)


@contextmanager
def nothing_left_running(
    sandbox: Sandbox, say: Callable[[str], None], *, keep: bool = False
) -> Iterator[list[str]]:
    """Stop the daemon and the agents at the end, also after Ctrl-C, SIGTERM or a failure.

    With keep they keep running, unless the demo fails. The list gets the errors of stopping them.
    say shows a remark to the user.
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
        # A second Ctrl-C must not leave a daemon behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not keep:
            problems += _stop(sandbox)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, _: object) -> NoReturn:
    if number == signal.SIGALRM:
        raise LimitReached(f"The demo has not ended after {LONGEST_S} s and was stopped.")
    raise SystemExit(128 + number)


def _stop(sandbox: Sandbox) -> list[str]:
    if not sandbox.home.root.exists():
        return []
    result = kapelle("stop", "--agents")
    if result.returncode:
        return [result.stderr.strip()]
    return []


@dataclass(frozen=True)
class Tally:
    """The number of the sample's tests, and of those that fail."""

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
    """Run git and return its output; raise KapelleError if it fails."""
    result = _run(["git", *arguments], repository)
    if result.returncode:
        raise KapelleError(f"`git {' '.join(arguments)}` failed: {result.stderr.strip()}")
    return result.stdout.strip()


def run_tests(repository: Path) -> Tally:
    """Run the sample's own tests, as its README says."""
    result = _run([sys.executable, "-m", "unittest"], repository)
    summary = re.search(r"^Ran (\d+) tests?", result.stderr, re.MULTILINE)
    total = int(summary[1]) if summary else 0
    if result.returncode == 0:
        return Tally(total, 0)
    counts = re.findall(r"(?:failures|errors)=(\d+)", result.stderr)
    # If unittest fails without counts, all tests count as failed.
    return Tally(total, sum(map(int, counts)) or total)


def tune(repository: Path) -> str:
    """Return the tune that the complete library plays."""
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
