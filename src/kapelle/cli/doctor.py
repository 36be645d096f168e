"""`kapelle doctor`: looks at everything that Kapelle needs, and changes nothing."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from kapelle.cli.agent_config import login_words
from kapelle.cli.config import config_file, current
from kapelle.cli.format import one_line, paint, size
from kapelle.cli.options import Json
from kapelle.cli.outcome import WORK_FAILED
from kapelle.cli.output import document, say
from kapelle.client.autostart import why_it_gave_up
from kapelle.client.http import Connection
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.home import Home
from kapelle.runner.process_tree import own_cgroup

if TYPE_CHECKING:
    from kapelle.agents.registry import AgentInfo
    from kapelle.settings import Settings

OLDEST_GIT = (2, 38)
KERNEL_WITH_CGROUP_KILL = (5, 14)
MB = 1_000_000
# Below this even a log line may not fit, whatever the settings allow.
SCANT_MB = 100
_VERSION_S = 20.0
_DATABASE_BEGINS = b"SQLite format 3\0"
_LOG_END = 20_000
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "broken": ("✗", "red")}

State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    state: State
    text: str
    hint: str | None = None


def doctor(as_json: Json = False) -> None:
    """Look for anything that keeps Kapelle from working.

    It changes nothing and starts no daemon. Exits with 1 when something is broken.
    """
    findings = list(_examine(Home.default()))
    broken = sum(finding.state == "broken" for finding in findings)
    if as_json:
        document({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark, style = _MARKS[finding.state]
            hint = f". {paint(one_line(finding.hint), 'dim')}" if finding.hint else ""
            sys.stdout.write(
                f"{paint(mark, style)} {finding.name}: {one_line(finding.text).rstrip('.')}{hint}\n"
            )
        sys.stdout.flush()
        say("Something is broken; see ✗ above." if broken else "Kapelle can work here.")
    if broken:
        raise typer.Exit(WORK_FAILED)


def _examine(home: Home) -> Iterator[Finding]:
    for examination in EXAMINATIONS:
        try:
            yield from examination(home)
        except Exception as error:
            # One examination that fails must not hide what the others find.
            yield Finding(examination.__name__, "warning", f"could not be examined: {error}")


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
    settings = _settings(home)
    return int(getattr(settings.limits, name)) if settings else default


def _settings(home: Home) -> "Settings | None":
    """The settings that hold here; None if they are wrong, which `configuration` reports."""
    from kapelle.settings import load

    try:
        return load(home, current(), os.environ).settings
    except KapelleError:
        return None


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


def agents(home: Home) -> Iterator[Finding]:
    from kapelle.agents.registry import REHEARSAL, available

    settings = _settings(home)
    if settings is None:
        return
    known = available(settings)
    real = [info for info in known if info.name != REHEARSAL]
    installed = [info for info in real if info.installed]
    yield from _not_usable(real, settings)
    yield from _installed(installed)
    if not installed:
        hint = "Install one, such as claude, codex or gemini; `kapelle init` chooses it."
        yield Finding("agents", "warning", "none is installed", hint)
    yield _default_agent(settings.default_agent, known)


def _not_usable(real: "list[AgentInfo]", settings: "Settings") -> Iterator[Finding]:
    """Agents without an adapter, and those set up by a person whose program is missing."""
    for info in real:
        if info.agent is None:
            yield Finding("agents", "broken", f"{info.name}: {info.problem}", info.hint)
        elif info.installed is None and info.name in settings.agents:
            yield Finding("agents", "warning", f"{info.name}: {info.problem}", info.hint)


def _installed(installed: "list[AgentInfo]") -> Iterator[Finding]:
    logins = _logins()
    with ThreadPoolExecutor() as threads:
        versions = list(threads.map(_version, installed))
    for info, version in zip(installed, versions, strict=True):
        name = f"agent {info.name}"
        if info.problem:
            yield Finding(name, "warning", info.problem, info.hint)
            continue
        yield _agent(name, info, version, logins.get(info.name))


def _agent(
    name: str, info: "AgentInfo", version: str | None, login: dict[str, Any] | None
) -> Finding:
    from kapelle.agents.program import compared, remark

    tested = info.agent.tested if info.agent else None
    parts = [remark(version, tested)] if tested else [str(info.installed)]
    if login and (words := login_words(login)):
        verified = "verified" if login["verified_at"] else "not verified"
        parts.append(f"login: {words}" + ("" if login["source"] == "none" else f", {verified}"))
    hint = None
    if login and login["source"] == "none" and login["needed"]:
        hint = f"Log in with its own program, or: kapelle agents config set {info.name} api_key"
    elif version and tested and compared(version, tested) == "older":
        hint = f"Update it: {getattr(info.agent, 'package', 'as it was installed')}"
    return Finding(name, "warning" if hint else "ok", "; ".join(parts), hint)


def _version(info: "AgentInfo") -> str | None:
    """What the program says; only programs that an adapter was tried with are asked."""
    from kapelle.agents.program import version_in
    from kapelle.runner.command import printed

    if info.agent is None or info.agent.tested is None or info.installed is None:
        return None
    env = {**os.environ, **info.agent.settings.env}
    try:
        said = printed([info.installed, "--version"], env, Path("/"), _VERSION_S)
    except OSError:
        return None
    return version_in(said or "")


def _logins() -> dict[str, dict[str, Any]]:
    """The logins that agents get, from the daemon that starts them; empty when it is not there."""
    client = Connection(autostart=False)
    try:
        known = client.get("/agents", {"directory": str(current())}, timeout=30)
    except KapelleError:
        return {}
    return {agent["name"]: agent["login"] for agent in known}


def _default_agent(name: str | None, known: "list[AgentInfo]") -> Finding:
    if name is None:
        return Finding("default agent", "warning", "not set", "`kapelle init` chooses one.")
    info = next((info for info in known if info.name == name), None)
    if info is None or info.installed is None or info.problem:
        other = "or choose another with `kapelle config set default_agent NAME`."
        text = info.problem if info and info.problem else f"There is no agent {name!r}."
        hint = f"{info.hint if info and info.hint else 'Set it up'}, {other}"
        return Finding("default agent", "broken", f"{name}: {text}", hint)
    return Finding("default agent", "ok", name)


def database(home: Home) -> Iterator[Finding]:
    """Only whether it can be a database at all; the daemon examines it when it starts."""
    path = home.database
    try:
        with open(path, "rb") as file:
            begins = file.read(len(_DATABASE_BEGINS))
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("database", "broken", f"{path} cannot be read: {error.strerror}")
        return
    if begins and begins != _DATABASE_BEGINS:
        hint = f"Put a copy from {home.backups} into its place."
        yield Finding("database", "broken", f"{path} is damaged: it is no database", hint)
    else:
        yield Finding("database", "ok", f"{path} ({size(path.stat().st_size)})")


def daemon(home: Home) -> Iterator[Finding]:
    client = Connection(autostart=False)
    if client.address.url is None and not client.address.home.socket.exists():
        yield _not_running(home)
        return
    try:
        status = client.get("/daemon", timeout=10)
    except Unavailable as error:
        hint = f"Any command starts it anew; its log is {home.log}."
        yield Finding("daemon", "warning", f"does not answer: {error.message}", hint)
        if reason := why_it_gave_up(_log_lines(home)):
            yield Finding("daemon", "warning", f"its log ends with: {reason}")
        return
    except KapelleError as error:
        yield Finding("daemon", "warning", f"runs, but says: {error.message}", error.hint)
        return
    yield from _running(status)


def _not_running(home: Home) -> Finding:
    reason = why_it_gave_up(_log_lines(home))
    if reason is None:
        return Finding("daemon", "ok", "not running; the next command starts it")
    hint = f"The next command tries again; the whole log is {home.log}."
    state: State = "warning" if _changed_since(home) else "broken"
    return Finding("daemon", state, f"could not start the last time: {reason}", hint)


def _log_lines(home: Home) -> list[str]:
    try:
        text = home.log.read_bytes()[-_LOG_END:].decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def _changed_since(home: Home) -> bool:
    """Whether somebody has perhaps mended it since then."""
    if not home.database.exists():
        return True
    failed_at = home.log.stat().st_mtime
    mended = (home.config, home.database)
    return any(path.exists() and path.stat().st_mtime > failed_at for path in mended)


def _running(status: Any) -> Iterator[Finding]:
    from kapelle import __version__

    if status["version"] != __version__:
        text = f"version {status['version']}, but this is {__version__}"
        hint = "`kapelle stop`; agents go on, and the next command starts the new one."
        yield Finding("daemon", "warning", text, hint)
        return
    work = f"{status['running']} running, {status['queued']} queued"
    yield Finding("daemon", "ok", f"version {__version__}, process {status['pid']}, {work}")
    if status["held"]:
        yield Finding("queue", "warning", f"nothing is started: {status['held']}")


def port(home: Home) -> Iterator[Finding]:
    if home.socket.exists() and (own := _own_address(home)):
        yield Finding("port", "ok", f"the daemon listens at {own}")
        return
    settings = _settings(home)
    if settings is None:
        return
    server = settings.server
    if server.port == 0:
        yield Finding("port", "ok", f"any free one of {server.host}")
    elif problem := _why_not(server.host, server.port):
        hint = "End what uses it, or: kapelle config set server.port 0"
        yield Finding("port", "broken", f"{server.host}:{server.port}: {problem}", hint)
    else:
        yield Finding("port", "ok", f"{server.host}:{server.port} is free")


def _own_address(home: Home) -> str | None:
    try:
        return str(json.loads(home.info.read_bytes())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _why_not(host: str, number: int) -> str | None:
    """Why nobody could listen there; the socket is bound for a moment and never listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


EXAMINATIONS: tuple[Callable[[Home], Iterator[Finding]], ...] = (
    python,
    git,
    state_directory,
    memory,
    cgroup,
    configuration,
    agents,
    database,
    daemon,
    port,
)
