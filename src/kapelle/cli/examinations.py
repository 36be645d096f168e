"""What `kapelle doctor` looks at; each examination only reads."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kapelle.cli.daemon_health import daemon, database
from kapelle.cli.examine_agents import agents
from kapelle.cli.examine_hosts import mcp_hosts
from kapelle.cli.examine_ports import port
from kapelle.cli.examine_sandbox import sandbox
from kapelle.cli.finding import Finding
from kapelle.cli.repository import config_file, current
from kapelle.domain.errors import KapelleError
from kapelle.home import Home
from kapelle.runner.process_tree import own_cgroup

OLDEST_GIT = (2, 38)
KERNEL_WITH_CGROUP_KILL = (5, 14)
MB = 1_000_000
# Below this even a log line may not fit, whatever the settings allow.
SCANT_MB = 100


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
    if free < SCANT_MB:
        return Finding("disk", "warning", f"only {free} MB free", "Free some.")
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
    own = own_cgroup()
    if own is not None and _holds_runs(own):
        yield Finding("cgroup", "ok", f"{own} is writable")
    else:
        yield Finding("cgroup", "ok", "not writable; agents' process trees are ended one by one")


def _holds_runs(own: Path) -> bool:
    """Whether the runner could make its cgroup here, found out without making one."""
    writable = os.access(own, os.W_OK) and os.access(own / "cgroup.procs", os.W_OK)
    # The topmost cgroup has no cgroup.kill itself, so the kernel's age must tell.
    kernel = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    return writable and kernel >= KERNEL_WITH_CGROUP_KILL


def configuration(home: Home) -> Iterator[Finding]:
    from kapelle.settings import load

    try:
        load(home, current(), os.environ)
    except KapelleError as error:
        yield Finding("config", "broken", error.message, error.hint or _where_to_mend(home, error))
        return
    there = "" if home.config.exists() else " (not there, so defaults hold)"
    yield Finding("config", "ok", f"{home.config}{there}")


def _where_to_mend(home: Home, error: KapelleError) -> str:
    """Which file to edit; the message itself names the line or the setting."""
    for path in (home.config, config_file(current())):
        if str(path) in error.message:
            return f"Edit {path}."
    return "Correct it where it is set."


EXAMINATIONS: tuple[Callable[[Home], Iterator[Finding]], ...] = (
    python,
    git,
    state_directory,
    memory,
    cgroup,
    configuration,
    agents,
    sandbox,
    database,
    daemon,
    port,
    mcp_hosts,
)
