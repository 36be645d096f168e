"""Install the pinned agents: `python -m tests.agents.install [NAME …]`; what is there stays."""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.agents.programs import PROGRAMS, Program, cache, program

_LONGEST_S = 1200


class InstallFailed(Exception):
    """Why a program is not there or does not run, in one line."""


def install(name: str) -> Path | str:
    """Make sure that a program is there, and answer as programs.program does."""
    wanted = PROGRAMS[name]
    if wanted.runs_on_own_node and isinstance(reason := install("node"), str):
        return reason
    with _alone(wanted):
        if isinstance(program(name), str):
            try:
                _install(wanted)
                about = {"version": wanted.version}
            except InstallFailed as problem:
                about = {"problem": str(problem)}
            wanted.folder.mkdir(parents=True, exist_ok=True)
            wanted.marker.write_text(json.dumps(about) + "\n", encoding="utf-8")
    return program(name)


def _install(wanted: Program) -> None:
    if wanted.script.exists():
        try:
            return _finish(wanted)
        except InstallFailed:
            pass  # Another version, or an install that was interrupted.
    shutil.rmtree(wanted.folder, ignore_errors=True)
    wanted.folder.mkdir(parents=True)
    package = f"{wanted.package}@{wanted.version}"
    if wanted.source == "npm":
        # npm may hold back the script that fetches a package's native binary.
        leave = json.dumps({"allowScripts": {wanted.package: True}})
        (wanted.folder / "package.json").write_text(leave + "\n", encoding="utf-8")
        options = ["--no-audit", "--no-fund", "--save-exact"]
        _run(["npm", "install", *options, package], wanted.folder)
    else:
        _run([sys.executable, "-m", "venv", str(wanted.folder)], wanted.folder)
        pip = [str(wanted.folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, package.replace("@", "==")], wanted.folder)
    return _finish(wanted)


def _finish(wanted: Program) -> None:
    """Make it run on the Node it needs, and see that it does run."""
    if wanted.runs_on_own_node:
        lines = f'#!/bin/sh\nexec "{PROGRAMS["node"].path}" "{wanted.script}" "$@"\n'
        wanted.path.parent.mkdir(exist_ok=True)
        wanted.path.write_text(lines, encoding="utf-8")
        wanted.path.chmod(0o755)
    with tempfile.TemporaryDirectory() as home:
        shown = _run(["env", f"HOME={home}", str(wanted.path), "--version"], Path(home), 120)
    if not wanted.shows_version:
        about = wanted.folder / "node_modules" / wanted.package / "package.json"
        shown = json.loads(about.read_text(encoding="utf-8"))["version"]
    if wanted.version not in shown:
        raise InstallFailed(f"its version is {shown.strip()!r}")


def _run(command: Sequence[str], directory: Path, timeout_s: float = _LONGEST_S) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"{command[0]} took longer than {timeout_s:g} s") from None
    except OSError as error:
        raise InstallFailed(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise InstallFailed(_why(done.stderr or done.stdout) or f"exit code {done.returncode}")
    return done.stdout


def _why(output: str) -> str:
    """The line of an output that is most likely the reason."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    telling = [line for line in errors if "complete log" not in line and " code " not in line]
    return next(iter([*telling, *errors, *lines[-1:]]), "")[:300]


@contextmanager
def _alone(wanted: Program) -> Iterator[None]:
    """Keep two test runs from installing the same program at once."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{wanted.name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - PROGRAMS.keys())
    if unknown:
        print(f"Unknown: {', '.join(unknown)}. There are: {', '.join(PROGRAMS)}.", file=sys.stderr)
        return 2
    missing = 0
    for name in names or PROGRAMS:
        found = install(name)
        missing += isinstance(found, str)
        print(found if isinstance(found, str) else f"{name} {PROGRAMS[name].version}: {found}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
