"""`kapelle doctor`: looks at everything that Kapelle needs, and changes nothing."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kapelle.cli.agents import login_words
from kapelle.cli.command import CommandExit, CommandOutput, argument
from kapelle.cli.config import config_file, current, loaded, root
from kapelle.cli.format import DONE, WORK_FAILED, one_line, paint, size, wrapped
from kapelle.cli.output import say
from kapelle.cli.spec_options import absolute_directory
from kapelle.client.autostart import log_lines, why_it_gave_up
from kapelle.client.environment import shell_for
from kapelle.client.http import DaemonConnection, listens
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.home import Home, disk_use
from kapelle.runner.process_tree import find_own_cgroup

if TYPE_CHECKING:
    from kapelle.agents.registry import AgentInfo
    from kapelle.settings import Settings

OLDEST_GIT = (2, 38)
MB = 1_000_000
# Below this even a log line may not fit, whatever the settings allow.
SCANT_MB = 100
_VERSION_S = 20.0
_DATABASE_BEGINNING = b"SQLite format 3\0"
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "broken": ("✗", "red")}

FindingState = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class DoctorFinding:
    """One line of the report."""

    name: str
    state: FindingState
    text: str
    hint: str | None = None


def doctor(
    directory: Path | None = argument("DIR", "Where to look; by default here."),
) -> CommandOutput:
    """Look for anything that keeps Kapelle from working.

    It changes nothing and starts no daemon. Exits with 1 when something is broken.
    """
    os.chdir(absolute_directory(directory))
    home = Home.default()
    findings = list[DoctorFinding]()
    for examination in EXAMINATIONS:
        try:
            findings += examination(home)
        except Exception as error:
            # One examination that fails must not hide what the others find.
            text = f"could not be examined: {error}"
            findings.append(DoctorFinding(examination.__name__, "warning", text))
    broken = sum(finding.state == "broken" for finding in findings)
    found = {"ok": not broken, "findings": [asdict(finding) for finding in findings]}
    yield CommandExit(found, WORK_FAILED if broken else DONE)
    for finding in findings:
        mark, style = _MARKS[finding.state]
        if finding.hint:
            hint = f". {paint(one_line(finding.hint), 'dim')}"
        else:
            hint = ""
        text = f"{finding.name}: {one_line(finding.text).rstrip('.')}{hint}"
        yield wrapped(f"{paint(mark, style)} {text}", 2)
    sys.stdout.flush()
    say("Something is broken; see ✗ above." if broken else "Kapelle can work here.")


def python(home: Home) -> Iterator[DoctorFinding]:
    yield DoctorFinding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def git(home: Home) -> Iterator[DoctorFinding]:
    from kapelle.runner.command import read_output

    program = shutil.which("git")
    problem = "not found"
    version = None
    # git reads its configuration even to print its version, and a pipe there would hold it up.
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        if program:
            said = read_output([program, "--version"], environ, Path("/"), _VERSION_S)
        else:
            said = ""
        if version := re.search(r"(\d+)\.(\d+)(?:\.\d+)*", said or ""):
            problem = f"{version[0]} ({program}) is too old"
    except OSError as error:
        problem = f"{program} does not run: {error.strerror}"
    if version and (int(version[1]), int(version[2])) >= OLDEST_GIT:
        yield DoctorFinding("git", "ok", f"{version[0]} ({program})")
    else:
        yield DoctorFinding("git", "broken", problem, "Install git 2.38 or newer.")
        return
    yield from _habits(home)


def _habits(home: Home) -> Iterator[DoctorFinding]:
    """Signatures and hooks of this repository, which merges by Kapelle make or leave out."""
    import asyncio

    from kapelle.workspaces import read_habits_of

    found = _settings()
    try:
        habits = asyncio.run(read_habits_of(current()))
    except KapelleError as error:
        yield DoctorFinding("git", "broken", error.message, error.hint)
        return
    if habits is None or found is None:
        return
    if not habits.has_identity:
        text = "git knows no name for you, so your merges are by Kapelle"
        hint = 'git config --global user.name "…"; git config --global user.email …'
        yield DoctorFinding("identity", "warning", text, hint)
    if habits.signs and found.git.sign == "auto":
        yield DoctorFinding(
            "signatures", "ok", "merges are signed as your configuration of git says"
        )
    elif habits.signs:
        text = "your configuration of git signs commits, and git.sign is never"
        yield DoctorFinding("signatures", "warning", text, "kapelle config set git.sign auto")
    elif habits.repository_signs:
        text = "commit.gpgsign is set in this repository alone, so merges are not signed"
        yield DoctorFinding(
            "signatures", "warning", text, "git config --global commit.gpgsign true"
        )
    if habits.hooks:
        text = f"Kapelle's commits and merges do not run {', '.join(habits.hooks)}"
        yield DoctorFinding("hooks", "warning", text, "Name what they do under checks.")


def state_directory(home: Home) -> Iterator[DoctorFinding]:
    place = next(place for place in (home.root, *home.root.parents) if place.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        hint = "Make it writable, or set KAPELLE_HOME to a directory of yours."
        yield DoctorFinding("home", "broken", f"{place} is not writable", hint)
        return
    if place == home.root and home.root.stat().st_mode & 0o077:
        yield DoctorFinding(
            "home", "warning", f"{home.root} is open to others", f"chmod 700 {home.root}"
        )
    else:
        taken, inodes = disk_use(home.root)
        if inodes:
            made = f" ({size(taken)} in {inodes:,} files)"
        else:
            made = " (not made yet)"
        yield DoctorFinding("home", "ok", f"{home.root}{made}")
    yield _disk(place)


def _disk(place: Path) -> DoctorFinding:
    free = shutil.disk_usage(place).free // MB
    settings = _settings()
    if settings:
        floor = settings.limits.min_free_disk_mb
    else:
        floor = 500
    if free < floor:
        hint = f"Free some, or lower limits.min_free_disk_mb ({floor})."
        return DoctorFinding("disk", "broken", f"{free} MB free, so no task starts", hint)
    if free < SCANT_MB:
        return DoctorFinding("disk", "warning", f"only {free} MB free", "Free some.")
    return DoctorFinding(
        "disk", "ok", f"{free:,} MB and {os.statvfs(place).f_favail:,} inodes free"
    )


def memory(home: Home) -> Iterator[DoctorFinding]:
    import psutil

    free = psutil.virtual_memory().available // MB
    settings = _settings()
    if settings:
        floor = settings.limits.min_free_memory_mb
    else:
        floor = 256
    if free < floor:
        hint = f"End other programs, or lower limits.min_free_memory_mb ({floor})."
        yield DoctorFinding("memory", "warning", f"{free} MB free, so no task starts now", hint)
    else:
        yield DoctorFinding("memory", "ok", f"{free:,} MB free")


def _settings() -> "Settings | None":
    """The settings that hold here; None if they are wrong, which `configuration` reports."""
    try:
        return loaded().settings
    except KapelleError:
        return None


def cgroup(home: Home) -> Iterator[DoctorFinding]:
    if sys.platform != "linux":
        text = "not on this system: agents are ended by process group, which is a weaker promise"
        yield DoctorFinding("cgroup", "warning", text)
        return
    own = find_own_cgroup()
    writable = own and os.access(own, os.W_OK) and os.access(own / "cgroup.procs", os.W_OK)
    instead = "not writable; agents' process trees are ended one by one"
    yield DoctorFinding("cgroup", "ok", f"{own} is writable" if writable else instead)


def configuration(home: Home) -> Iterator[DoctorFinding]:
    try:
        loaded()
    except KapelleError as error:
        # The message itself names the line or the setting.
        files = [path for path in (home.config, config_file(current())) if str(path) in str(error)]
        if files:
            where = f"Edit {files[0]}."
        else:
            where = "Correct it where it is set."
        yield DoctorFinding("config", "broken", error.message, error.hint or where)
        return
    if home.config.exists():
        there = ""
    else:
        there = " (not there, so defaults hold)"
    yield DoctorFinding("config", "ok", f"{home.config}{there}")


def agents(home: Home) -> Iterator[DoctorFinding]:
    from kapelle.agents.registry import REHEARSAL, available

    settings = _settings()
    if settings is None:
        return
    known = available(settings)
    real = [info for info in known if info.name != REHEARSAL]
    for info in real:
        # Where somebody set it up, that its program is missing is news.
        if info.agent is None or (info.installed is None and info.name in settings.agents):
            if info.agent:
                state: FindingState = "warning"
            else:
                state = "broken"
            yield DoctorFinding("agents", state, f"{info.name}: {info.problem}", info.hint)
    installed = [info for info in real if info.installed]
    logins = {}
    with suppress(KapelleError):  # only the daemon, which starts them, knows them
        query = {"directory": str(current())}
        agents = DaemonConnection(autostart=False).get("/agents", query, timeout=30)
        logins = {agent["name"]: agent["login"] for agent in agents}
    with ThreadPoolExecutor() as threads:
        versions = threads.map(_version, installed)
    for info, version in zip(installed, versions, strict=True):
        yield _agent(info, version, logins.get(info.name))
    if not installed:
        hint = "Install one, such as claude, codex or gemini; `kapelle init` chooses it."
        yield DoctorFinding("agents", "warning", "none is installed", hint)
    yield _default_agent(settings.default_agent, known)


def _agent(info: "AgentInfo", version: str | None, login: dict[str, Any] | None) -> DoctorFinding:
    from kapelle.agents.versions import compare_versions, describe_version

    name = f"agent {info.name}"
    if info.problem:
        return DoctorFinding(name, "warning", info.problem, info.hint)
    if info.agent:
        tested = info.agent.tested
    else:
        tested = None
    if tested:
        parts = [describe_version(version, tested)]
    else:
        parts = [str(info.installed)]
    if login and (words := login_words(login)):
        if login["verified_at"]:
            verified = "verified"
        else:
            verified = "not verified"
        parts.append(f"login: {words}" + ("" if login["source"] == "none" else f", {verified}"))
    hint = None
    if login and login["source"] == "none" and login["needed"]:
        hint = f"Log in with its own program, or: kapelle agents config set {info.name} api_key"
    elif version and tested and compare_versions(version, tested) == "older":
        if info.agent:
            command = info.agent.update_command
        else:
            command = None
        hint = f"Update it: {command or 'as it was installed'}"
    return DoctorFinding(name, "warning" if hint else "ok", "; ".join(parts), hint)


def _version(info: "AgentInfo") -> str | None:
    """What the program says; only programs that an adapter was tried with are asked."""
    from kapelle.agents.versions import find_version
    from kapelle.runner.command import read_output

    if info.agent is None or info.agent.tested is None or info.installed is None:
        return None
    env = {**os.environ, **info.agent.settings.env}
    try:
        said = read_output([info.installed, "--version"], env, Path("/"), _VERSION_S)
    except OSError:
        return None
    return find_version(said or "")


def _default_agent(name: str | None, known: "list[AgentInfo]") -> DoctorFinding:
    if name is None:
        return DoctorFinding("default agent", "warning", "not set", "`kapelle init` chooses one.")
    info = next((info for info in known if info.name == name), None)
    if info and info.installed and not info.problem:
        return DoctorFinding("default agent", "ok", name)
    text = (info and info.problem) or f"There is no agent {name!r}."
    mend = (info and info.hint) or "Set it up"
    hint = f"{mend}, or choose another with `kapelle config set default_agent NAME`."
    return DoctorFinding("default agent", "broken", f"{name}: {text}", hint)


def database(home: Home) -> Iterator[DoctorFinding]:
    """Only whether it can be a database at all; the daemon examines it when it starts."""
    path = home.database
    try:
        with open(path, "rb") as file:
            beginning = file.read(len(_DATABASE_BEGINNING))
    except FileNotFoundError:
        return
    except OSError as error:
        yield DoctorFinding("database", "broken", f"{path} cannot be read: {error.strerror}")
        return
    if beginning in (b"", _DATABASE_BEGINNING):
        yield DoctorFinding("database", "ok", f"{path} ({size(path.stat().st_size)})")
    else:
        hint = f"Put a copy from {home.backups} into its place."
        yield DoctorFinding("database", "broken", f"{path} is damaged: it is no database", hint)


def daemon(home: Home) -> Iterator[DoctorFinding]:
    client = DaemonConnection(autostart=False)
    reason = why_it_gave_up(log_lines(home))
    if client.address.url is None and not home.socket.exists():
        yield _not_running(home, reason)
        return
    try:
        yield from _running(client)
    except KapelleError as error:
        if client.address.url or listens(client.address) or not isinstance(error, Unavailable):
            yield DoctorFinding("daemon", "broken", f"cannot be used: {error.message}", error.hint)
            return
        hint = f"Any command starts it anew; its log is {home.log}."
        yield DoctorFinding("daemon", "warning", f"does not answer: {error.message}", hint)
        if reason:
            yield _not_running(home, reason)


def _not_running(home: Home, reason: str | None) -> DoctorFinding:
    if reason is None:
        return DoctorFinding("daemon", "ok", "not running; the next command starts it")
    failed_at = home.log.stat().st_mtime
    files = [path for path in (home.config, home.database) if path.exists()]
    # Somebody has perhaps mended it since then.
    mended = any(path.stat().st_mtime > failed_at for path in files)
    hint = f"The next command tries again; the whole log is {home.log}."
    text = f"could not start the last time: {reason}"
    return DoctorFinding("daemon", "warning" if mended else "broken", text, hint)


def _running(client: DaemonConnection) -> Iterator[DoctorFinding]:
    from kapelle import __version__

    status = client.get("/daemon", timeout=10)
    if (version := status["version"]) != __version__:
        hint = "`kapelle stop`; agents go on, and the next command starts the new one."
        yield DoctorFinding(
            "daemon", "warning", f"version {version}, but this is {__version__}", hint
        )
        return
    work = f"{status['running']} running, {status['queued']} queued"
    where = f"process {status['pid']} at {status['url']}"
    yield DoctorFinding("daemon", "ok", f"version {__version__}, {where}, {work}")
    if not status.get("full_text", True):
        text = "SQLite has no FTS5: learnings are found without a ranking, and no output at all"
        yield DoctorFinding("search", "warning", text, "Use a Python whose SQLite has it.")
    try:
        client.get("/healthz", timeout=10)
    except KapelleError as error:
        yield DoctorFinding("queue", "broken", f"nothing is started: {error.message}", error.hint)
    else:
        if status["held"]:  # which passes by itself
            yield DoctorFinding("queue", "warning", f"nothing is started: {status['held']}")


def environment(home: Home) -> Iterator[DoctorFinding]:
    told = shell_for(home, str(current()))
    known = told["variables"]
    dropped = told["dropped"]
    hint = "Pass what checks or agents need: kapelle config set environment.pass '[\"NAME\"]'"
    text = f"{len(known)} variables of this shell are passed on"
    if dropped:
        text += f", not {', '.join(dropped)}"
    yield DoctorFinding("environment", "ok", text, hint if dropped else None)
    top = root(current())
    venv = known.get("VIRTUAL_ENV")
    if venv and top and Path(venv).is_relative_to(top):
        text = f"{venv} is of this checkout, so worktrees do not use it"
        yield DoctorFinding(
            "environment", "warning", text, "`kapelle init` proposes a set-up for them."
        )


EXAMINATIONS: tuple[Callable[[Home], Iterator[DoctorFinding]], ...] = (
    python, git, state_directory, memory, cgroup, configuration, environment, agents, database,
    daemon,
)  # fmt: skip
