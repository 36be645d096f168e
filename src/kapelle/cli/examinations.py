"""What `kapelle doctor` looks at; each examination only reads."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kapelle.cli.client import Client
from kapelle.cli.repository import current
from kapelle.domain.errors import KapelleError
from kapelle.home import Home

OLDEST_GIT = (2, 38)
MB = 1_000_000

State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    name: str
    state: State
    text: str
    hint: str | None = None


def python(home: Home) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    hint = None if good else "Install Python 3.11 or newer."
    yield Finding("python", "ok" if good else "broken", f"{version} ({sys.executable})", hint)


def git(home: Home) -> Iterator[Finding]:
    program = shutil.which("git")
    if program is None:
        yield Finding("git", "broken", "not found", "Install git 2.38 or newer.")
        return
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("git", "broken", f"{program} does not run: {error}", "Repair git.")
        return
    match = re.search(r"(\d+)\.(\d+)(?:\.\d+)*", said)
    if match and (int(match[1]), int(match[2])) >= OLDEST_GIT:
        yield Finding("git", "ok", f"{match[0]} ({program})")
    else:
        yield Finding(
            "git", "broken", said.strip() or "unknown version", "Install git 2.38 or newer."
        )


def state_directory(home: Home) -> Iterator[Finding]:
    place = home.root
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        hint = "Make it writable, or set KAPELLE_HOME to a directory of yours."
        yield Finding("home", "broken", f"{place} is not writable", hint)
        return
    if place == home.root and home.root.stat().st_mode & 0o077:
        yield Finding("home", "warning", f"{home.root} is open to others", f"chmod 700 {home.root}")
    else:
        made = "" if place == home.root else " (not made yet)"
        yield Finding("home", "ok", f"{home.root}{made}")
    yield _disk(home, place)


def _disk(home: Home, place: Path) -> Finding:
    free = shutil.disk_usage(place).free // MB
    floor = _limit(home, "min_free_disk_mb", 500)
    if free < floor:
        hint = f"Free some, or lower limits.min_free_disk_mb ({floor})."
        return Finding("disk", "broken", f"{free} MB free, so no task starts", hint)
    return Finding("disk", "ok", f"{free:,} MB free")


def memory(home: Home) -> Iterator[Finding]:
    import psutil

    free = psutil.virtual_memory().available // MB
    floor = _limit(home, "min_free_memory_mb", 256)
    if free < floor:
        hint = f"End other programs, or lower limits.min_free_memory_mb ({floor})."
        yield Finding("memory", "warning", f"{free} MB free, so no task starts now", hint)
    else:
        yield Finding("memory", "ok", f"{free:,} MB free")


def _limit(home: Home, name: str, default: int) -> int:
    from kapelle.settings import load

    try:
        return int(getattr(load(home, current(), os.environ).settings.limits, name))
    except KapelleError:
        # The examination of the configuration reports it.
        return default


def cgroup(home: Home) -> Iterator[Finding]:
    if sys.platform != "linux":
        text = "not on this system: agents are ended by process group, which is a weaker promise"
        yield Finding("cgroup", "warning", text)
        return
    try:
        line = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()[-1]
        own = Path("/sys/fs/cgroup") / line.rpartition(":")[2].lstrip("/")
    except (OSError, IndexError):
        own = Path("/sys/fs/cgroup")
    if (own / "cgroup.kill").exists() and os.access(own, os.W_OK):
        yield Finding("cgroup", "ok", f"{own} is writable")
    else:
        yield Finding("cgroup", "ok", "not writable; agents' process trees are ended one by one")


def configuration(home: Home) -> Iterator[Finding]:
    from kapelle.settings import load

    try:
        load(home, current(), os.environ)
    except KapelleError as error:
        hint = error.hint or "Correct it, or take it out with `kapelle config reset`."
        yield Finding("config", "broken", error.message, hint)
        return
    there = "" if home.config.exists() else " (not there, so defaults hold)"
    yield Finding("config", "ok", f"{home.config}{there}")


def agents(home: Home) -> Iterator[Finding]:
    from kapelle.agents.registry import available
    from kapelle.cli.init import REHEARSAL
    from kapelle.settings import load

    try:
        settings = load(home, current(), os.environ).settings
    except KapelleError:
        return
    known = [info for info in available(settings) if info.name != REHEARSAL]
    ready = [info.name for info in known if info.installed]
    for info in known:
        if info.problem:
            yield Finding("agents", "broken", f"{info.name}: {info.problem}")
    if ready:
        yield Finding("agents", "ok", ", ".join(ready))
    else:
        missing = ", ".join(info.name for info in known if not info.problem)
        text = f"not installed: {missing}" if missing else "none is set up"
        yield Finding("agents", "warning", text, "`kapelle init` sets one up.")
    yield _default_agent(settings.default_agent, [*ready, REHEARSAL])


def _default_agent(name: str | None, ready: list[str]) -> Finding:
    if name is None:
        return Finding("default agent", "warning", "not set", "`kapelle init` chooses one.")
    if name not in ready:
        hint = "Install it, or choose another with `kapelle config set default_agent NAME`."
        return Finding("default agent", "broken", f"{name} is not installed", hint)
    return Finding("default agent", "ok", name)


def daemon(home: Home) -> Iterator[Finding]:
    from kapelle import __version__

    client = Client(autostart=False)
    if client.address.url is None and not client.address.home.socket.exists():
        yield Finding("daemon", "ok", "not running; the next command starts it")
        return
    try:
        status = client.get("/daemon", timeout=10)
    except KapelleError as error:
        hint = f"Any command starts it anew; its log is {home.log}."
        yield Finding("daemon", "warning", f"does not answer: {error.message}", hint)
        return
    if status["version"] != __version__:
        text = f"version {status['version']}, but this is {__version__}"
        yield Finding(
            "daemon",
            "warning",
            text,
            "`kapelle stop`; agents go on, and the next command starts the new one.",
        )
        return
    work = f"{status['running']} running, {status['queued']} queued"
    yield Finding("daemon", "ok", f"version {__version__}, process {status['pid']}, {work}")
    if status["held"]:
        yield Finding("queue", "warning", f"nothing is started: {status['held']}")
    if status["stranded"]:
        text = f"{len(status['stranded'])} executions of an older version are performed anew"
        yield Finding("engine", "warning", text)


EXAMINATIONS: tuple[Callable[[Home], Iterator[Finding]], ...] = (
    python,
    git,
    state_directory,
    memory,
    cgroup,
    configuration,
    agents,
    daemon,
)
