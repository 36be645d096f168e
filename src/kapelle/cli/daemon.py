"""`kapelle serve`, `stop`, `open`, `backup`, `prune`, `notify`, and `service`: the daemon as a unit
of systemd or an agent of launchd, which start it with the machine and again when it dies."""

import json
import os
import signal
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from kapelle.cli.command import CommandExit, CommandOutput, JsonFlag, command_group, flag, option
from kapelle.cli.format import DONE, WORK_FAILED, size
from kapelle.cli.ids import OptionalId, is_run, path_of
from kapelle.cli.output import data, document, say
from kapelle.cli.values import duration_s, optional
from kapelle.client.address import Address
from kapelle.client.autostart import lock_holder
from kapelle.client.http import DaemonConnection, listens
from kapelle.domain.errors import KapelleError, NotFound, Unavailable
from kapelle.domain.text import format_count
from kapelle.home import Home, read_own, write_private
from kapelle.runner.shim.tree import start_time

STOP_TIMEOUT_S = 90.0


def serve(
    port: int | None = option(None, "The port on 127.0.0.1.", min=0, max=65535),
    host: str | None = option(None, "The address to listen on."),
    expose: bool = flag("Allow an address that other machines can reach."),
    as_json: JsonFlag = False,
) -> None:
    """Run the daemon in the foreground."""
    # -P: the person's directory is no place to import from; a clone may hold a secrets.py.
    arguments = [sys.executable, "-P", "-m", "kapelle.daemon"]
    for name, value in (("--port", port), ("--host", host)):
        arguments += [name, str(value)] if value is not None else []
    arguments += ["--expose"] if expose else []
    if as_json:
        home = Home.default()
        document({"pid": os.getpid(), "home": str(home.root), "socket": str(home.socket)})
    sys.stdout.flush()
    os.execv(sys.executable, arguments)


notify = command_group("Try how you are told what happens while you are elsewhere.")


@notify.command("test")
def notify_test() -> CommandOutput:
    """Tell yourself something by every way that [notify] sets."""
    told = DaemonConnection().post("/notify/test", None)
    yield CommandExit(told, 1 if any(one["problem"] for one in told) else 0)
    for one in told:
        say(f"{one['way']}: {one['problem'] or 'delivered'}")


def stop(
    agents: bool = flag("Stop the running agents too."),
) -> CommandOutput:
    """Stop the daemon; running agents go on."""
    pid, going = stop_daemon(agents=agents)
    yield {"stopped": pid is not None, "pid": pid, "agents": going}
    say("No daemon is running." if pid is None else "The daemon has stopped.")
    if going:
        say(f"Still at work: {format_count(going, 'agent')}; `kapelle stop --agents` ends them.")


def stop_daemon(*, agents: bool) -> tuple[int | None, int]:
    """Stop the daemon if there is one; return its process and how many agents are at work."""
    client = DaemonConnection(autostart=False)
    home = client.address.home
    is_there = True
    pid = None
    going = 0
    if client.address.url is None and not listens(client.address):
        # Agents outlive a daemon that died; only a daemon can end them and say so.
        is_there = agents and home.database.exists()
        client = DaemonConnection()
        pid = lock_holder(home)
    if pid is not None:
        going = _stop_without_socket(home, pid, agents)
    elif is_there:
        pid = int(client.get("/daemon")["pid"])
        # A daemon from before an upgrade does not tell it.
        going = client.post("/daemon/stop", {"agents": agents}).get("agents", 0)
    if pid is not None:
        _wait_until_gone(client, pid)
    return pid, 0 if agents else going


def _stop_without_socket(home: Home, pid: int, agents: bool) -> int:
    """End a daemon whose socket is lost, by the address in its record, or by a signal; how many
    agents are known to be at work."""
    try:
        url = json.loads(read_own(home.info))["url"]
        address = Address(home, url, read_own(home.token).decode("ascii").strip())
        told = DaemonConnection(address).post("/daemon/stop", {"agents": agents}, timeout=5)
        return int(told.get("agents", 0))
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


def open_page(
    work: OptionalId = None,
    only_print: bool = flag("Print the address instead; it works once.", "--print"),
) -> CommandOutput:
    """Open the page in the browser, logged in.

    With ID, it opens at that task or run. The address holds a code that works once, within a
    minute.
    """
    client = DaemonConnection()
    code = client.post("/login-codes")
    # What follows the # stays in the browser: no log sees it.
    if work:
        place = f"?to={quote(_page_path(client, work))}"
    else:
        place = ""
    url = f"{client.get('/daemon')['url']}/login{place}#{code['code']}"
    yield {"url": url, "expires_at": code["expires_at"]}
    if only_print or not _browse(url):
        data(url)


def _page_path(client: DaemonConnection, work: str) -> str:
    """Return the path of a task or run on the page."""
    found = client.get(path_of(work))["id"]
    return f"/{'runs' if is_run(found) else 'tasks'}/{found}"


def _browse(url: str) -> bool:
    """Whether a browser with a window took the address."""
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # One that fills the terminal cannot show the page.
    windowed = sys.platform == "darwin" or os.environ.get("DISPLAY", "") != ""
    windowed = windowed or os.environ.get("WAYLAND_DISPLAY", "") != ""
    return windowed and browser.open(url)


def backup() -> CommandOutput:
    """Copy the database to a safe place now."""
    yield (made := DaemonConnection().post("/backup", timeout=600))
    data(made["path"])


def prune(
    dry_run: bool = flag("Only say what would be put away."),
    merged: bool = flag("What is merged, and nothing else."),
    older: str | None = option("DURATION", "What ended more than 7d or 12h ago."),
) -> CommandOutput:
    """Put away what has ended and free its disk space.

    Merged, cancelled and failed work is archived; without options after upkeep.archive_days and
    upkeep.archive_failed_days. Worktrees are removed, and what is not merged is kept under a ref.
    """
    body = {"merged": merged, "older_s": optional(duration_s, older, "--older"), "dry_run": dry_run}
    yield (pruned := DaemonConnection().post("/prune", body, timeout=3600))
    for id_ in pruned["archived"]:
        data(id_)
    room = f"{size(pruned['bytes'])} in {format_count(pruned['inodes'], 'file')}"
    freed = "Would free" if dry_run else "Freed"
    packed = pruned["packed"]
    also = "would be" if dry_run else "were"
    if packed:
        more = f"; the files of {format_count(packed, 'ended attempt')} {also} packed"
    else:
        more = ""
    if dry_run and packed:
        least = "at least "
    else:
        least = ""
    count = len(pruned["archived"])
    if count:
        what = f"{count} {'to archive' if dry_run else 'archived'}"
    else:
        what = "nothing to archive"
    say(f"{freed} {least}{room}; {what}{more}.")


service = command_group("Have your machine start the daemon, and again when it dies.")

_MANAGER_S = 60.0


class Unit:
    """What the service manager of this platform is told about the daemon of one home."""

    def __init__(self, home: Home, environ: dict[str, str], *, launchd: bool) -> None:
        from hashlib import sha256

        self.home = home
        self.launchd = launchd
        given = home.config_directory is None
        if given:
            name = f"kapelle-{sha256(os.fsencode(home.root)).hexdigest()[:8]}"
        else:
            name = "kapelle"
        if launchd:
            self.name = f"dev.{name}"
        else:
            self.name = f"{name}.service"
        user = Path(environ.get("HOME", "~")).expanduser()
        config = Path(environ.get("XDG_CONFIG_HOME") or user / ".config")
        if launchd:
            folder = user / "Library/LaunchAgents"
        else:
            folder = config / "systemd/user"
        self.path = folder / (f"{self.name}.plist" if launchd else self.name)
        # It waits where a daemon of the command line holds the home, and takes over from it.
        self.command = [sys.executable, "-P", "-m", "kapelle.daemon", "--wait"]
        self.variables = {n: environ[n] for n in ("PATH", "LANG", "SHELL") if environ.get(n)}
        if given:
            self.variables["KAPELLE_HOME"] = str(home.root)
        self._manager = ("launchctl",) if launchd else ("systemctl", "--user")

        self.facts = {"name": self.name, "path": str(self.path)}

    def tell(self, verb: Literal["install", "uninstall", "ask"]) -> None:
        """Tell the service manager; Unavailable with its words if it refuses."""
        mine = f"gui/{os.getuid()}"
        if not self.launchd:
            orders = {
                "install": [["daemon-reload"], ["enable", "--now", self.name]],
                "uninstall": [["disable", "--now", self.name]],
                "ask": [["is-active", "--quiet", self.name]],
            }
        else:
            orders = {
                "install": [["bootstrap", mine, str(self.path)]],
                "uninstall": [["bootout", f"{mine}/{self.name}"]],
                "ask": [["print", f"{mine}/{self.name}"]],
            }
        for order in orders[verb]:
            _execute(*self._manager, *order)

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

    hint = "`kapelle service install --print` shows what it is to be told, to set it up by hand."
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


@service.command()
def install(
    show: bool = flag("Show what would be installed, and do nothing.", "--print"),
) -> CommandOutput:
    """Have your machine start the daemon from now on; running agents go on."""
    unit = _unit()
    if show:
        yield {**unit.facts, "text": unit.text}
        yield unit.text.rstrip("\n")
        return
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
    yield unit.facts
    data(str(unit.path))
    say("The daemon starts when you log in, and again when it dies. It has no API keys of this")
    say("shell: `kapelle agents config set AGENT api_key` stores one.")
    if not unit.launchd:
        say("`loginctl enable-linger` has it start with the machine, before you log in.")


@service.command()
def uninstall() -> CommandOutput:
    """Stop the daemon and have your machine start it no more; running agents go on."""
    unit = _unit()
    if not unit.path.exists():
        raise NotFound(f"{unit.name} is not installed.", hint="kapelle service install")
    unit.tell("uninstall")
    unit.path.unlink()
    yield unit.facts
    say(f"{unit.name} is gone; commands start the daemon when they need it.")


@service.command()
def status() -> CommandOutput:
    """Say whether it is installed and runs; exits with 1 if it does not."""
    unit = _unit()
    installed = active = unit.path.exists()
    try:
        if installed:
            unit.tell("ask")
    except Unavailable:
        active = False
    facts = {**unit.facts, "installed": installed, "active": active}
    yield CommandExit(facts, DONE if active else WORK_FAILED)
    if installed:
        if active:
            words = "runs"
        else:
            words = "does not run"
    else:
        words = "is not installed"
    data(f"{unit.name} {words}")
