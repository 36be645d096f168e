"""`kapelle serve`, `stop`, `open`, `backup`, `prune`, `notify`, and `service`: the daemon as a unit
of systemd or an agent of launchd, which start it with the machine and again when it dies."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from kapelle.cli.figures import format_size
from kapelle.cli.ids import complete, is_run, path_of
from kapelle.cli.output import document, plain_line, say
from kapelle.cli.parser import CliGroup, argument, command, flag, json_flag, option, reports
from kapelle.cli.result import Result
from kapelle.cli.states import DONE, WORK_FAILED
from kapelle.cli.types import Number
from kapelle.cli.values import duration_s, optional
from kapelle.client.address import Address
from kapelle.client.autostart import lock_holder
from kapelle.client.http import DaemonConnection, listens
from kapelle.domain.errors import KapelleError, NotFound, Unavailable
from kapelle.domain.text import format_count
from kapelle.home import Home, read_own, write_private
from kapelle.runner.shim.tree import start_time

STOP_TIMEOUT_S = 90.0


@command("serve", "kapelle serve --port 8555")
@option("--port", type=Number(0, 65535), metavar="NUMBER", help="Port on 127.0.0.1.")
@option("--host", metavar="ADDRESS", help="Address to listen on.")
@flag("--expose", help="Allow an address that other machines can reach.")
@json_flag
def serve(port: int | None, host: str | None, expose: bool, as_json: bool) -> None:
    """Run the daemon in the foreground."""
    # -P: the person's directory is no place to import from; a clone may hold a secrets.py.
    arguments = [sys.executable, "-P", "-m", "kapelle.daemon"]
    for name, value in (("--port", port), ("--host", host)):
        if value is not None:
            arguments += [name, str(value)]
    if expose:
        arguments.append("--expose")
    if as_json:
        home = Home.default()
        document({"pid": os.getpid(), "home": str(home.root), "socket": str(home.socket)})
    sys.stdout.flush()
    os.execv(sys.executable, arguments)


notify = CliGroup(
    "notify", help="Test the configured notifications.", examples=["kapelle notify test"]
)


@notify.command("test")
@reports
def notify_test() -> Result:
    """Send a test notification by every way that [notify] sets."""
    attempts = DaemonConnection().post("/notify/test", None)
    remarks = [f"{one['way']}: {one['problem'] or 'delivered'}" for one in attempts]
    has_problem = any(one["problem"] for one in attempts)
    return Result(attempts, remarks=remarks, exit_code=1 if has_problem else 0)


@command("stop", "kapelle stop", "kapelle stop --agents")
@flag("--agents", help="Stop the running agents, too.")
@reports
def stop(agents: bool) -> Result:
    """Stop the daemon; running agents go on."""
    pid, running_agents = stop_daemon(agents=agents)
    remarks = ["No daemon is running." if pid is None else "The daemon has stopped."]
    if running_agents:
        agents_text = format_count(running_agents, "agent")
        remarks.append(f"Still running: {agents_text}; `kapelle stop --agents` ends them.")
    data = {"stopped": pid is not None, "pid": pid, "agents": running_agents}
    return Result(data, remarks=remarks)


def stop_daemon(*, agents: bool) -> tuple[int | None, int]:
    """Stop the daemon; return its process id, if it was running, and the number of agents that go
    on."""
    client = DaemonConnection(autostart=False)
    home = client.address.home
    is_running = True
    pid = None
    running_agents = 0
    if client.address.url is None and not listens(client.address):
        # Agents outlive a daemon that died; only a daemon can end them.
        is_running = agents and home.database.exists()
        client = DaemonConnection()
        pid = lock_holder(home)
    if pid is not None:
        running_agents = _stop_without_socket(home, pid, agents)
    elif is_running:
        pid = int(client.get("/daemon")["pid"])
        answer = client.post("/daemon/stop", {"agents": agents})
        # A daemon from before an upgrade does not send the number.
        running_agents = answer.get("agents", 0)
    if pid is not None:
        _wait_until_gone(client, pid)
    return pid, 0 if agents else running_agents


def _stop_without_socket(home: Home, pid: int, agents: bool) -> int:
    """Stop a daemon whose socket is lost; return the number of agents known to be running.

    The daemon is asked at the address in its record; if that fails, it is sent a signal.
    """
    try:
        url = json.loads(read_own(home.info))["url"]
        address = Address(home, url, read_own(home.token).decode("ascii").strip())
        answer = DaemonConnection(address).post("/daemon/stop", {"agents": agents}, timeout=5)
        return int(answer.get("agents", 0))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, KapelleError):
        os.kill(pid, signal.SIGTERM)
        if agents:
            say("The daemon could only be sent a signal: its agents go on.")
        return 0


def _wait_until_gone(client: DaemonConnection, pid: int) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    is_far = client.address.url is not None
    pause = 0.02
    while time.monotonic() < deadline:
        if not listens(client.address) and (is_far or start_time(pid) is None):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)
    raise Unavailable(
        f"The daemon (process {pid}) was told to stop but is still there.",
        hint=f"Look into {client.address.home.log}; `kill {pid}` ends it.",
    )


@command("open", "kapelle open", "kapelle open 4f2xq")
@argument(
    "work",
    metavar="ID",
    required=False,
    help="Id of the task or run to open, or its end.",
    shell_complete=complete("work"),
)
@flag("--print", "only_print", help="Print the address instead; it works once.")
@reports
def open_page(work: str | None, only_print: bool) -> Result:
    """Open the page in the browser, logged in.

    The address contains a code that works once, within a minute.
    """
    client = DaemonConnection()
    code = client.post("/login-codes")
    query = f"?to={quote(_page_path(client, work))}" if work else ""
    # What follows the # stays in the browser: no log contains it.
    url = f"{client.get('/daemon')['url']}/login{query}#{code['code']}"
    data = {"url": url, "expires_at": code["expires_at"]}
    return Result(data, _open_or_print(url, only_print))


def _open_or_print(url: str, only_print: bool) -> Iterator[str]:
    """Open an address in the browser; return it as a line to print if that is not possible."""
    if only_print or not _open_in_browser(url):
        yield url


def _page_path(client: DaemonConnection, work: str) -> str:
    """Return the path of a task or run on the page."""
    item_id = client.get(path_of(work))["id"]
    return f"/{'runs' if is_run(item_id) else 'tasks'}/{item_id}"


def _open_in_browser(url: str) -> bool:
    """Return whether a browser with a window took the address."""
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # A browser that fills the terminal cannot show the page.
    has_display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return (sys.platform == "darwin" or has_display) and browser.open(url)


@command("backup", "kapelle backup")
@reports
def backup() -> Result:
    """Back up the database now."""
    answer = DaemonConnection().post("/backup", timeout=600)
    return Result(answer, [plain_line(answer["path"])])


@command("prune", "kapelle prune --dry-run", "kapelle prune --merged --older 7d")
@flag("--dry-run", help="What would be archived, without a change.")
@flag("--merged", help="Merged work only.")
@option("--older", metavar="DURATION", help="Minimum time since the work ended, such as 7d or 12h.")
@reports
def prune(dry_run: bool, merged: bool, older: str | None) -> Result:
    """Archive ended work and free its disk space.

    Merged, cancelled and failed work is archived; without options after upkeep.archive_days and
    upkeep.archive_failed_days. Worktrees are removed, and a ref keeps what is not merged.
    """
    body = {"merged": merged, "older_s": optional(duration_s, older, "--older"), "dry_run": dry_run}
    answer = DaemonConnection().post("/prune", body, timeout=3600)
    lines = [plain_line(item_id) for item_id in answer["archived"]]
    return Result(answer, lines, [_prune_summary(answer, dry_run)])


def _prune_summary(answer: dict[str, Any], dry_run: bool) -> str:
    """Return a sentence about what was, or would be, archived and freed."""
    space = f"{format_size(answer['bytes'])} in {format_count(answer['inodes'], 'file')}"
    number = len(answer["archived"])
    if number:
        archived = f"{number} {'to archive' if dry_run else 'archived'}"
    else:
        archived = "nothing to archive"
    if answer["packed"]:
        verb = "would be" if dry_run else "were"
        attempts = format_count(answer["packed"], "ended attempt")
        archived += f"; the files of {attempts} {verb} packed"
    if not dry_run:
        return f"Freed {space}; {archived}."
    if answer["packed"]:
        # How small the packed files become is known only when they are.
        space = f"at least {space}"
    return f"Would free {space}; {archived}."


service = CliGroup(
    "service",
    help="Start the daemon with the machine, and again when it dies.",
    examples=["kapelle service install", "kapelle service status"],
)

_MANAGER_S = 60.0


class Unit:
    """The daemon of one home as a unit of this platform's service manager."""

    def __init__(self, home: Home, environ: dict[str, str], *, launchd: bool) -> None:
        from hashlib import sha256

        self.home = home
        self.launchd = launchd
        name = "kapelle"
        # A home outside of the standard place has a unit of its own.
        is_own_home = home.config_directory is None
        if is_own_home:
            name = f"kapelle-{sha256(os.fsencode(home.root)).hexdigest()[:8]}"
        user = Path(environ.get("HOME", "~")).expanduser()
        if launchd:
            self.name = f"dev.{name}"
            self.path = user / "Library/LaunchAgents" / f"{self.name}.plist"
            self._manager: tuple[str, ...] = ("launchctl",)
        else:
            self.name = f"{name}.service"
            config = Path(environ.get("XDG_CONFIG_HOME") or user / ".config")
            self.path = config / "systemd/user" / self.name
            self._manager = ("systemctl", "--user")
        # It waits while a daemon of the command line holds the home, and takes over from it.
        self.command = [sys.executable, "-P", "-m", "kapelle.daemon", "--wait"]
        self.variables = {
            variable: environ[variable]
            for variable in ("PATH", "LANG", "SHELL")
            if environ.get(variable)
        }
        if is_own_home:
            self.variables["KAPELLE_HOME"] = str(home.root)
        self.facts = {"name": self.name, "path": str(self.path)}

    def tell(self, verb: Literal["install", "uninstall", "ask"]) -> None:
        """Call the service manager; raises Unavailable with its message if it refuses."""
        commands = self._systemd_commands()
        if self.launchd:
            commands = self._launchd_commands()
        for words in commands[verb]:
            _execute(*self._manager, *words)

    def _systemd_commands(self) -> dict[str, list[list[str]]]:
        return {
            "install": [["daemon-reload"], ["enable", "--now", self.name]],
            "uninstall": [["disable", "--now", self.name]],
            "ask": [["is-active", "--quiet", self.name]],
        }

    def _launchd_commands(self) -> dict[str, list[list[str]]]:
        domain = f"gui/{os.getuid()}"
        return {
            "install": [["bootstrap", domain, str(self.path)]],
            "uninstall": [["bootout", f"{domain}/{self.name}"]],
            "ask": [["print", f"{domain}/{self.name}"]],
        }

    @property
    def text(self) -> str:
        if self.launchd:
            import plistlib

            facts: dict[str, Any] = {
                "Label": self.name,
                "ProgramArguments": self.command,
                "EnvironmentVariables": self.variables,
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "AbandonProcessGroup": True,
                "StandardOutPath": str(self.home.log),
                "StandardErrorPath": str(self.home.log),
            }
            return plistlib.dumps(facts).decode()
        variables = (_quoted(f"{name}={value}") for name, value in self.variables.items())
        unit = files("kapelle.cli").joinpath("kapelle.service").read_text(encoding="utf-8")
        return unit.format(
            home=str(self.home.root).replace("%", "%%"),
            log=str(self.home.log).replace("%", "%%"),
            command=" ".join(_quoted(word).replace("$", "$$") for word in self.command),
            environment="\n".join(f"Environment={variable}" for variable in variables),
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _execute(*argv: str) -> None:
    from kapelle.runner.command import Command, RunningCommand

    hint = "`kapelle service install --print` shows the unit, to set it up by hand."
    try:
        ended = RunningCommand(Command(argv, os.environ, Path("/"), _MANAGER_S, 65_536)).run()
    except OSError as error:
        raise Unavailable(f"{argv[0]} cannot be started: {error.strerror}.", hint=hint) from None
    if ended.code != 0:
        words = ended.stderr.decode("utf-8", "replace").strip() or f"exit code {ended.code}"
        raise Unavailable(f"{argv[0]} refused: {words}", hint=hint)


def _unit() -> Unit:
    return Unit(Home.default(), dict(os.environ), launchd=sys.platform == "darwin")


def installed_unit() -> Unit | None:
    """Return the unit of this home, if it is installed."""
    unit = _unit()
    return unit if unit.path.exists() else None


@service.command("install")
@flag("--print", "show", help="What would be installed, without a change.")
@reports
def install(show: bool) -> Result:
    """Start the daemon with the machine from now on; running agents go on."""
    unit = _unit()
    if show:
        return Result({**unit.facts, "text": unit.text}, unit.text.rstrip("\n").split("\n"))
    unit.home.create()
    client = DaemonConnection(autostart=False)
    if client.address.url is None and listens(client.address):
        client.post("/daemon/stop", {"agents": False})  # the unit's own takes over
    write_private(unit.path, unit.text.encode())
    try:
        unit.tell("install")
    except Unavailable:
        unit.path.unlink()
        raise
    remarks = [
        "The daemon starts when you log in, and again when it dies. It has no API keys of this",
        "shell: `kapelle agents config set AGENT api_key` stores one.",
    ]
    if not unit.launchd:
        remarks.append("`loginctl enable-linger` starts it with the machine, before you log in.")
    return Result(unit.facts, [plain_line(str(unit.path))], remarks)


@service.command("uninstall")
@reports
def uninstall() -> Result:
    """Stop the daemon and do not start it with the machine any more; running agents go on."""
    unit = _unit()
    if not unit.path.exists():
        raise NotFound(
            f"{unit.name} is not installed.", hint="`kapelle service install` installs it."
        )
    unit.tell("uninstall")
    unit.path.unlink()
    remark = f"{unit.name} is removed; commands start the daemon when they need it."
    return Result(unit.facts, remarks=[remark])


@service.command("status")
@reports
def status() -> Result:
    """Show whether the service is installed and running; exits with 1 if it is not running."""
    unit = _unit()
    is_installed = unit.path.exists()
    is_active = is_installed and _is_active(unit)
    facts = {**unit.facts, "installed": is_installed, "active": is_active}
    state = "is not installed"
    if is_active:
        state = "runs"
    elif is_installed:
        state = "does not run"
    exit_code = DONE if is_active else WORK_FAILED
    return Result(facts, [plain_line(f"{unit.name} {state}")], exit_code=exit_code)


def _is_active(unit: Unit) -> bool:
    try:
        unit.tell("ask")
    except Unavailable:
        return False
    return True
