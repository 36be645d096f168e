"""`kapelle service`: the daemon as a unit of systemd or an agent of launchd, which start it with
the machine and again when it dies."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from kapelle.cli.command import Ended, Json, Report, command_group, flag
from kapelle.cli.outcome import DONE, WORK_FAILED
from kapelle.cli.output import data, document, say
from kapelle.client.http import Connection, listens
from kapelle.domain.errors import NotFound, Unavailable
from kapelle.home import Home, write_private

service = command_group("Have your machine start the daemon, and again when it dies.")

_MANAGER_S = 60.0
_UNIT = """\
[Unit]
Description=Kapelle, a conductor for coding agents ({home})
StartLimitIntervalSec=0

[Service]
ExecStart={command}
{environment}
StandardOutput=append:{log}
StandardError=append:{log}
# The daemon alone: agents outlive it.
KillMode=process
Delegate=yes
# Not after `kapelle stop`.
Restart=on-failure
RestartSec=5

[Install]
WantedBy=default.target
"""


class Unit:
    """What the service manager of this platform is told about the daemon of one home."""

    def __init__(self, home: Home, environ: dict[str, str], *, launchd: bool) -> None:
        from hashlib import sha256

        self.home, self.launchd = home, launchd
        given = home.config_directory is None
        name = f"kapelle-{sha256(os.fsencode(home.root)).hexdigest()[:8]}" if given else "kapelle"
        self.name = f"dev.{name}" if launchd else f"{name}.service"
        user = Path(environ.get("HOME", "~")).expanduser()
        config = Path(environ.get("XDG_CONFIG_HOME") or user / ".config")
        folder = user / "Library/LaunchAgents" if launchd else config / "systemd/user"
        self.path = folder / (f"{self.name}.plist" if launchd else self.name)
        # It waits where a daemon of the command line holds the home, and takes over from it.
        self.command = [sys.executable, "-m", "kapelle.daemon", "--wait"]
        self.variables = {n: environ[n] for n in ("PATH", "LANG", "SHELL") if environ.get(n)}
        if given:
            self.variables["KAPELLE_HOME"] = str(home.root)
        self._manager = ("launchctl",) if launchd else ("systemctl", "--user")

        self.facts = {"name": self.name, "path": str(self.path)}

    def tell(self, verb: Literal["install", "uninstall", "ask"]) -> None:
        """Tell the service manager; Unavailable with its words if it refuses."""
        mine = f"gui/{os.getuid()}"
        orders = {
            "install": [["daemon-reload"], ["enable", "--now", self.name]],
            "uninstall": [["disable", "--now", self.name]],
            "ask": [["is-active", "--quiet", self.name]],
        } if not self.launchd else {
            "install": [["bootstrap", mine, str(self.path)]],
            "uninstall": [["bootout", f"{mine}/{self.name}"]],
            "ask": [["print", f"{mine}/{self.name}"]],
        }  # fmt: skip
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
        return _UNIT.format(
            home=str(self.home.root).replace("%", "%%"),
            log=str(self.home.log).replace("%", "%%"),
            command=" ".join(_quoted(word).replace("$", "$$") for word in self.command),
            environment="\n".join(f"Environment={variable}" for variable in variables),
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _execute(*argv: str) -> None:
    from kapelle.runner.command import Command, Running

    hint = "`kapelle service install --print` shows what it is to be told, to set it up by hand."
    try:
        ended = Running(Command(argv, os.environ, Path("/"), _MANAGER_S, 65_536)).run()
    except OSError as error:
        raise Unavailable(f"{argv[0]} cannot be started: {error.strerror}.", hint=hint) from None
    if ended.code != 0:
        words = ended.stderr.decode("utf-8", "replace").strip() or f"exit code {ended.code}"
        raise Unavailable(f"{argv[0]} refused: {words}", hint=hint)


def _unit() -> Unit:
    return Unit(Home.default(), dict(os.environ), launchd=sys.platform == "darwin")


@service.command()
def install(
    show: Annotated[bool, flag("Show what would be installed, and do nothing.", "--print")] = False,
    as_json: Json = False,
) -> None:
    """Have your machine start the daemon from now on; running agents go on."""
    unit = _unit()
    if show:
        sys.stdout.write(unit.text)
        return
    unit.home.create()
    client = Connection(autostart=False)
    if client.address.url is None and listens(client.address):
        client.post("/daemon/stop", {"agents": False})  # the unit's own takes over
    write_private(unit.path, unit.text.encode())
    try:
        unit.tell("install")
    except Unavailable:
        unit.path.unlink()
        raise
    if as_json:
        document(unit.facts)
        return
    data(str(unit.path))
    say("The daemon starts when you log in, and again when it dies. It has no API keys of this")
    say("shell: `kapelle agents config set AGENT api_key` stores one.")
    if not unit.launchd:
        say("`loginctl enable-linger` has it start with the machine, before you log in.")


@service.command()
def uninstall() -> Report:
    """Stop the daemon and have your machine start it no more; running agents go on."""
    unit = _unit()
    if not unit.path.exists():
        raise NotFound(f"{unit.name} is not installed.", hint="kapelle service install")
    unit.tell("uninstall")
    unit.path.unlink()
    yield unit.facts
    say(f"{unit.name} is gone; commands start the daemon when they need it.")


@service.command()
def status() -> Report:
    """Say whether it is installed and runs; exits with 1 if it does not."""
    unit = _unit()
    installed = active = unit.path.exists()
    try:
        if installed:
            unit.tell("ask")
    except Unavailable:
        active = False
    facts = {**unit.facts, "installed": installed, "active": active}
    yield Ended(facts, DONE if active else WORK_FAILED)
    words = ("runs" if active else "does not run") if installed else "is not installed"
    data(f"{unit.name} {words}")
