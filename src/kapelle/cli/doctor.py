"""`kapelle doctor`: examine everything that Kapelle needs, without changing anything."""

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from kapelle.cli.agents import login_words
from kapelle.cli.config import config_file, current, loaded, root
from kapelle.cli.figures import format_size
from kapelle.cli.layout import paint, wrap_line
from kapelle.cli.parser import argument, command, reports
from kapelle.cli.result import Result
from kapelle.cli.spec_values import absolute_directory
from kapelle.cli.states import DONE, WORK_FAILED
from kapelle.cli.text import one_line
from kapelle.cli.types import FILE
from kapelle.client.autostart import log_lines, why_it_gave_up
from kapelle.client.environment import shell_for
from kapelle.client.http import DaemonConnection, listens
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.home import Home, disk_use
from kapelle.runner.process_tree import find_own_cgroup
from kapelle.runner.shim import probe

if TYPE_CHECKING:
    from kapelle.agents.registry import AgentInfo
    from kapelle.client.records import AgentJson, DaemonJson, LoginJson
    from kapelle.settings import Settings

_OLDEST_GIT = (2, 38)
_MB = 1_000_000
# With less than this even the log may not fit on the disk, whatever the settings allow.
_SCARCE_MB = 100
_DEFAULT_FREE_DISK_MB = 500
_DEFAULT_FREE_MEMORY_MB = 256
_VERSION_TIMEOUT_S = 20.0
_DATABASE_HEAD = b"SQLite format 3\0"
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "broken": ("✗", "red")}

FindingState: TypeAlias = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class DoctorFinding:
    """One line of the report."""

    name: str
    state: FindingState
    text: str
    hint: str | None = None


Examination: TypeAlias = Callable[[Home], Iterator[DoctorFinding]]


@command("doctor", "kapelle doctor")
@argument(
    "directory",
    metavar="DIR",
    type=FILE,
    required=False,
    help="Directory to examine; by default this one.",
)
@reports
def doctor(directory: Path | None) -> Result:
    """Find problems that keep Kapelle from working.

    It changes nothing and starts no daemon. Exits with 1 when something is broken.
    """
    os.chdir(absolute_directory(directory))
    findings = _examine_all(Home.default())
    is_broken = any(finding.state == "broken" for finding in findings)
    report = {"ok": not is_broken, "findings": [asdict(finding) for finding in findings]}
    lines = [_finding_line(finding) for finding in findings]
    if is_broken:
        return Result(report, lines, ["Something is broken; see ✗ above."], WORK_FAILED)
    return Result(report, lines, ["Kapelle can work here."], DONE)


def _examine_all(home: Home) -> list[DoctorFinding]:
    findings: list[DoctorFinding] = []
    for name, examine in EXAMINATIONS.items():
        try:
            findings += examine(home)
        except Exception as error:
            # An examination that fails must not hide what the others find.
            findings.append(DoctorFinding(name, "warning", f"could not be examined: {error}"))
    return findings


def _finding_line(finding: DoctorFinding) -> str:
    mark, style = _MARKS[finding.state]
    line = f"{paint(mark, style)} {finding.name}: {one_line(finding.text).rstrip('.')}"
    if finding.hint:
        line += f". {paint(one_line(finding.hint), 'dim')}"
    return wrap_line(line, 2)


def examine_python(home: Home) -> Iterator[DoctorFinding]:
    yield DoctorFinding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def examine_git(home: Home) -> Iterator[DoctorFinding]:
    finding = _examine_git_version()
    yield finding
    if finding.state == "ok":
        yield from _examine_git_habits()


def _examine_git_version() -> DoctorFinding:
    from kapelle.runner.command import read_output

    hint = "Install git 2.38 or newer."
    program = shutil.which("git")
    if program is None:
        return DoctorFinding("git", "broken", "not found", hint)
    # git reads the user's configuration even to print its version. A pipe there would block it.
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        output = read_output([program, "--version"], environ, Path("/"), _VERSION_TIMEOUT_S)
    except OSError as error:
        return DoctorFinding("git", "broken", f"{program} does not run: {error.strerror}", hint)
    version = re.search(r"(\d+)\.(\d+)(?:\.\d+)*", output or "")
    if version is None:
        return DoctorFinding("git", "broken", f"{program} prints no version", hint)
    if (int(version[1]), int(version[2])) < _OLDEST_GIT:
        return DoctorFinding("git", "broken", f"{version[0]} ({program}) is too old", hint)
    return DoctorFinding("git", "ok", f"{version[0]} ({program})")


def _examine_git_habits() -> Iterator[DoctorFinding]:
    """Yield how Kapelle's merges differ from a person's own: author, signatures and hooks."""
    import asyncio

    from kapelle.workspaces import read_habits_of

    settings = _load_settings()
    try:
        habits = asyncio.run(read_habits_of(current()))
    except KapelleError as error:
        yield DoctorFinding("git", "broken", error.message, error.hint)
        return
    if habits is None or settings is None:
        return
    if not habits.has_identity:
        text = "git has no user.name and user.email, so Kapelle is the author of your merges"
        hint = 'git config --global user.name "…"; git config --global user.email …'
        yield DoctorFinding("identity", "warning", text, hint)
    if habits.signs and settings.git.sign == "auto":
        text = "merges are signed, as your git configuration requires"
        yield DoctorFinding("signatures", "ok", text)
    elif habits.signs:
        text = "your git configuration signs commits, but the setting git.sign is never"
        yield DoctorFinding("signatures", "warning", text, "kapelle config set git.sign auto")
    elif habits.repository_signs:
        text = "commit.gpgsign is set in this repository only, so merges are not signed"
        hint = "git config --global commit.gpgsign true"
        yield DoctorFinding("signatures", "warning", text, hint)
    if habits.hooks:
        text = f"Kapelle's commits and merges do not run {', '.join(habits.hooks)}"
        yield DoctorFinding("hooks", "warning", text, "Add their commands to the checks.")


def examine_home(home: Home) -> Iterator[DoctorFinding]:
    place = _nearest_directory(home)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        hint = "Make it writable, or set KAPELLE_HOME to a directory of yours."
        yield DoctorFinding("home", "broken", f"{place} is not writable", hint)
        return
    if place == home.root and home.root.stat().st_mode & 0o077:
        text = f"{home.root} is accessible to other users"
        yield DoctorFinding("home", "warning", text, f"chmod 700 {home.root}")
    else:
        size, file_count = disk_use(home.root)
        if file_count:
            use = f"{format_size(size)} in {file_count:,} files"
        else:
            use = "does not exist yet"
        yield DoctorFinding("home", "ok", f"{home.root} ({use})")
    yield examine_disk(place)


def _nearest_directory(home: Home) -> Path:
    """Return the home, or the directory in which it will be created."""
    for place in (home.root, *home.root.parents):
        if place.exists():
            return place
    return home.root


def examine_disk(place: Path) -> DoctorFinding:
    free_mb = shutil.disk_usage(place).free // _MB
    settings = _load_settings()
    least_mb = _DEFAULT_FREE_DISK_MB
    if settings:
        least_mb = settings.limits.min_free_disk_mb
    if free_mb < least_mb:
        hint = f"Free some, or lower limits.min_free_disk_mb ({least_mb})."
        return DoctorFinding("disk", "broken", f"{free_mb} MB free, so no task starts", hint)
    if free_mb < _SCARCE_MB:
        return DoctorFinding("disk", "warning", f"only {free_mb} MB free", "Free some.")
    inodes = os.statvfs(place).f_favail
    return DoctorFinding("disk", "ok", f"{free_mb:,} MB and {inodes:,} inodes free")


def examine_memory(home: Home) -> Iterator[DoctorFinding]:
    import psutil

    free_mb = psutil.virtual_memory().available // _MB
    settings = _load_settings()
    least_mb = _DEFAULT_FREE_MEMORY_MB
    if settings:
        least_mb = settings.limits.min_free_memory_mb
    if free_mb < least_mb:
        text = f"{free_mb} MB free, so no task starts now"
        hint = f"End other programs, or lower limits.min_free_memory_mb ({least_mb})."
        yield DoctorFinding("memory", "warning", text, hint)
    else:
        yield DoctorFinding("memory", "ok", f"{free_mb:,} MB free")


def _load_settings() -> "Settings | None":
    """Return the settings for this directory; None if they are wrong (see examine_config)."""
    try:
        return loaded().settings
    except KapelleError:
        return None


def examine_cgroup(home: Home) -> Iterator[DoctorFinding]:
    if sys.platform != "linux":
        text = "not on this system: ending an agent may miss processes that left its process group"
        yield DoctorFinding("cgroup", "warning", text)
        return
    cgroup = find_own_cgroup()
    if cgroup and os.access(cgroup, os.W_OK) and os.access(cgroup / "cgroup.procs", os.W_OK):
        yield DoctorFinding("cgroup", "ok", f"{cgroup} is writable")
    else:
        text = "not writable; the processes of an agent are ended one by one"
        yield DoctorFinding("cgroup", "ok", text)


def examine_sandbox(home: Home) -> Iterator[DoctorFinding]:
    """Try which level of the sandbox works here, as the daemon does when it starts."""
    from kapelle.runner.command import read_output

    settings = _load_settings()
    if settings is None:
        return
    level = settings.confine.level
    if level == "off":
        text = "off: agents can reach everything that you can (confine.level)"
        yield DoctorFinding("sandbox", "ok", text)
        return
    with tempfile.TemporaryDirectory(dir=home.root) as place:
        command = [sys.executable, "-I", "-S", probe.__file__, place]
        problems = json.loads(
            read_output(command, os.environ, Path("/"), _VERSION_TIMEOUT_S) or "{}"
        )
    for name, problem in problems.items():
        if problem is None and level in ("auto", name):
            yield DoctorFinding("sandbox", "ok", f"{name} works here")
            return
    reasons = "; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem)
    text = f"{level} does not work here, so nothing starts ({reasons})"
    yield DoctorFinding("sandbox", "broken", text, "kapelle config set confine.level off")


def examine_config(home: Home) -> Iterator[DoctorFinding]:
    try:
        loaded()
    except KapelleError as error:
        yield DoctorFinding("config", "broken", error.message, error.hint or _where(home, error))
        return
    if home.config.exists():
        yield DoctorFinding("config", "ok", str(home.config))
    else:
        yield DoctorFinding("config", "ok", f"{home.config} (does not exist: defaults apply)")


def _where(home: Home, error: KapelleError) -> str:
    """Return which file to edit; the message of the error names the line or the setting."""
    for path in (home.config, config_file(current())):
        if str(path) in str(error):
            return f"Edit {path}."
    return "Correct it where it is set."


def examine_environment(home: Home) -> Iterator[DoctorFinding]:
    shell = shell_for(home, str(current()))
    variables: dict[str, str] = shell["variables"]
    dropped: list[str] = shell["dropped"]
    text = f"{len(variables)} variables of this shell are passed on"
    hint = None
    if dropped:
        text += f", not {', '.join(dropped)}"
        hint = "Pass what checks or agents need: kapelle config set environment.pass '[\"NAME\"]'"
    yield DoctorFinding("environment", "ok", text, hint)
    top = root(current())
    venv = variables.get("VIRTUAL_ENV")
    if venv and top and Path(venv).is_relative_to(top):
        text = f"{venv} belongs to this checkout, so worktrees do not use it"
        hint = "`kapelle init` proposes a set-up for them."
        yield DoctorFinding("environment", "warning", text, hint)


def examine_agents(home: Home) -> Iterator[DoctorFinding]:
    from kapelle.agents.registry import REHEARSAL, available

    settings = _load_settings()
    if settings is None:
        return
    agents = available(settings)
    real_agents = [info for info in agents if info.name != REHEARSAL]
    for info in real_agents:
        if info.agent is None:
            yield DoctorFinding("agents", "broken", f"{info.name}: {info.problem}", info.hint)
        elif info.installed is None and info.name in settings.agents:
            # An agent that nobody has set up may be missing.
            yield DoctorFinding("agents", "warning", f"{info.name}: {info.problem}", info.hint)
    installed = [info for info in real_agents if info.installed]
    logins = _read_logins()
    with ThreadPoolExecutor() as threads:
        versions = threads.map(_read_version, installed)
    for info, version in zip(installed, versions, strict=True):
        yield _examine_agent(info, version, logins.get(info.name))
    if not installed:
        hint = "Install one, such as claude, codex or gemini; `kapelle init` chooses it."
        yield DoctorFinding("agents", "warning", "none is installed", hint)
    yield _examine_default_agent(settings.default_agent, agents)


def _read_logins() -> "dict[str, LoginJson]":
    """Return the logins of agents by name; none if there is no daemon, which alone knows them."""
    agents: list[AgentJson] = []
    with suppress(KapelleError):
        query = {"directory": str(current())}
        agents = DaemonConnection(autostart=False).get("/agents", query, timeout=30)
    return {agent["name"]: agent["login"] for agent in agents}


def _read_version(info: "AgentInfo") -> str | None:
    """Return the version that a program prints.

    None if its adapter was tested with no version: then there is nothing to compare.
    """
    from kapelle.agents.versions import find_version
    from kapelle.runner.command import read_output

    if info.agent is None or info.agent.tested is None or info.installed is None:
        return None
    environ = {**os.environ, **info.agent.settings.env}
    command = [info.installed, "--version"]
    try:
        output = read_output(command, environ, Path("/"), _VERSION_TIMEOUT_S)
    except OSError:
        return None
    return find_version(output or "")


def _examine_agent(
    info: "AgentInfo", version: str | None, login: "LoginJson | None"
) -> DoctorFinding:
    """Return the version and the login of an installed agent."""
    from kapelle.agents.versions import compare_versions, describe_version

    name = f"agent {info.name}"
    if info.problem:
        return DoctorFinding(name, "warning", info.problem, info.hint)
    tested_version = None
    update_command = None
    if info.agent:
        tested_version = info.agent.tested
        update_command = info.agent.update_command
    if tested_version:
        text = describe_version(version, tested_version)
    else:
        text = str(info.installed)
    if login:
        text += _describe_login(login)
    if login and login["source"] == "none" and login["needed"]:
        hint = f"Log in with its own program, or: kapelle agents config set {info.name} api_key"
        return DoctorFinding(name, "warning", text, hint)
    if version and tested_version and compare_versions(version, tested_version) == "older":
        hint = f"Update it: {update_command or 'as it was installed'}"
        return DoctorFinding(name, "warning", text, hint)
    return DoctorFinding(name, "ok", text)


def _describe_login(login: "LoginJson") -> str:
    """Return where the credential of an agent comes from; empty if it needs none."""
    source = login_words(login)
    if not source:
        return ""
    if login["source"] == "none":
        return f"; login: {source}"
    if login["verified_at"]:
        return f"; login: {source}, verified"
    return f"; login: {source}, not verified"


def _examine_default_agent(name: str | None, agents: "Sequence[AgentInfo]") -> DoctorFinding:
    if name is None:
        return DoctorFinding("default agent", "warning", "not set", "`kapelle init` chooses one.")
    problem = f"There is no agent {name!r}."
    hint = "Set it up"
    for info in agents:
        if info.name == name:
            if info.installed and not info.problem:
                return DoctorFinding("default agent", "ok", name)
            problem = info.problem or problem
            hint = info.hint or hint
    hint += ", or choose another with `kapelle config set default_agent NAME`."
    return DoctorFinding("default agent", "broken", f"{name}: {problem}", hint)


def examine_database(home: Home) -> Iterator[DoctorFinding]:
    """Yield whether the file is a database; the daemon examines its content when it starts."""
    path = home.database
    try:
        with open(path, "rb") as file:
            head = file.read(len(_DATABASE_HEAD))
    except FileNotFoundError:
        return
    except OSError as error:
        yield DoctorFinding("database", "broken", f"{path} cannot be read: {error.strerror}")
        return
    if head in (b"", _DATABASE_HEAD):
        yield DoctorFinding("database", "ok", f"{path} ({format_size(path.stat().st_size)})")
    else:
        hint = f"Replace it with a copy from {home.backups}."
        yield DoctorFinding("database", "broken", f"{path} is damaged: it is no database", hint)


def examine_daemon(home: Home) -> Iterator[DoctorFinding]:
    client = DaemonConnection(autostart=False)
    start_error = why_it_gave_up(log_lines(home))
    if client.address.url is None and not home.socket.exists():
        yield _examine_stopped_daemon(home, start_error)
        return
    try:
        yield from _examine_running_daemon(client)
    except KapelleError as error:
        if client.address.url or listens(client.address) or not isinstance(error, Unavailable):
            yield DoctorFinding("daemon", "broken", f"cannot be used: {error.message}", error.hint)
            return
        hint = f"Any command starts it again; its log is {home.log}."
        yield DoctorFinding("daemon", "warning", f"does not answer: {error.message}", hint)
        if start_error:
            yield _examine_stopped_daemon(home, start_error)


def _examine_stopped_daemon(home: Home, start_error: str | None) -> DoctorFinding:
    if start_error is None:
        return DoctorFinding("daemon", "ok", "not running; the next command starts it")
    failed_at = home.log.stat().st_mtime
    causes = [path for path in (home.config, home.database) if path.exists()]
    # The cause may be repaired: a person has changed a file since then.
    has_changed = any(path.stat().st_mtime > failed_at for path in causes)
    state: FindingState = "warning" if has_changed else "broken"
    text = f"could not start the last time: {start_error}"
    hint = f"The next command tries again; the whole log is {home.log}."
    return DoctorFinding("daemon", state, text, hint)


def _examine_running_daemon(client: DaemonConnection) -> Iterator[DoctorFinding]:
    from kapelle import __version__

    status: DaemonJson = client.get("/daemon", timeout=10)
    if status["version"] != __version__:
        text = f"version {status['version']}, but this is {__version__}"
        hint = "`kapelle stop`; agents go on, and the next command starts the new one."
        yield DoctorFinding("daemon", "warning", text, hint)
        return
    where = f"process {status['pid']} at {status['url']}"
    work = f"{status['running']} running, {status['queued']} queued"
    yield DoctorFinding("daemon", "ok", f"version {__version__}, {where}, {work}")
    if not status.get("full_text", True):
        text = "SQLite has no FTS5: search cannot rank learnings, and finds nothing in outputs"
        yield DoctorFinding("search", "warning", text, "Use a Python whose SQLite has it.")
    try:
        client.get("/healthz", timeout=10)
    except KapelleError as error:
        yield DoctorFinding("queue", "broken", f"nothing is started: {error.message}", error.hint)
    else:
        if status["held"]:  # for a time only, such as while the memory is full
            yield DoctorFinding("queue", "warning", f"nothing is started: {status['held']}")


EXAMINATIONS: dict[str, Examination] = {
    "python": examine_python,
    "git": examine_git,
    "home": examine_home,
    "memory": examine_memory,
    "cgroup": examine_cgroup,
    "sandbox": examine_sandbox,
    "config": examine_config,
    "environment": examine_environment,
    "agents": examine_agents,
    "database": examine_database,
    "daemon": examine_daemon,
}
