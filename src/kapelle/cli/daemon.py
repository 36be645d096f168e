"""`kapelle serve`, `stop` and `backup`."""

import os
import sys
import time
from typing import Annotated

import typer

from kapelle.cli.options import Json
from kapelle.cli.output import data, document, say
from kapelle.client.http import Connection, connection_to
from kapelle.domain.errors import Unavailable
from kapelle.home import Home

STOP_TIMEOUT_S = 90.0


def serve(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port on 127.0.0.1.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address that other machines can reach.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the daemon in the foreground."""
    arguments = [sys.executable, "-m", "kapelle.daemon"]
    arguments += ["--port", str(port)] if port is not None else []
    arguments += ["--host", host] if host is not None else []
    arguments += ["--expose"] if expose else []
    if as_json:
        home = Home.default()
        document({"pid": os.getpid(), "home": str(home.root), "socket": str(home.socket)})
    sys.stdout.flush()
    os.execv(sys.executable, arguments)


def stop(
    agents: Annotated[bool, typer.Option("--agents", help="Stop the running agents too.")] = False,
    as_json: Json = False,
) -> None:
    """Stop the daemon; running agents go on."""
    client = Connection(autostart=False)
    pid = _running_pid(client)
    if pid is None and agents and client.address.home.database.exists():
        # Agents outlive a daemon that died; only a daemon can end them and say so.
        client = Connection()
        pid = _running_pid(client) or int(client.get("/daemon")["pid"])
    if pid is not None:
        client.post("/daemon/stop", {"agents": agents})
        _wait_until_gone(client, pid)
    if as_json:
        document({"stopped": pid is not None, "pid": pid})
    else:
        say("No daemon is running." if pid is None else "The daemon has stopped.")


def _running_pid(client: Connection) -> int | None:
    """The daemon's process id, or None when nobody listens."""
    if client.address.url is None:
        from kapelle.client.autostart import answers

        if not answers(client.address.home.socket):
            return None
    return int(client.get("/daemon")["pid"])


def _wait_until_gone(client: Connection, pid: int) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    pause = 0.02
    while time.monotonic() < deadline:
        if not _answers(client) and (client.address.url is not None or not _alive(pid)):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)
    raise Unavailable(
        f"The daemon (process {pid}) was told to stop but is still there.",
        hint=f"Look into {client.address.home.log}; `kill {pid}` ends it.",
    )


def _answers(client: Connection) -> bool:
    try:
        connection_to(client.address, 2).connect()
    except OSError:
        return False
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether it has ended and only its parent has not noticed."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def backup(as_json: Json = False) -> None:
    """Copy the database to a safe place now."""
    made = Connection().post("/backup", timeout=600)
    if as_json:
        document(made)
    else:
        data(made["path"])
