"""`kapelle serve`, `stop`, `open`, `backup`, `prune` and `notify`."""

import json
import os
import signal
import sys
import time
from typing import Annotated

from kapelle.cli.command import Ended, Json, Report, command_group, flag, option
from kapelle.cli.format import size
from kapelle.cli.output import data, document, say
from kapelle.cli.values import optional_duration_s
from kapelle.client.address import Address
from kapelle.client.autostart import lock_holder
from kapelle.client.http import Connection, listens
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.domain.text import counted
from kapelle.home import Home

STOP_TIMEOUT_S = 90.0


def serve(
    port: Annotated[int | None, option(None, "The port on 127.0.0.1.", min=0, max=65535)] = None,
    host: Annotated[str | None, option(None, "The address to listen on.")] = None,
    expose: Annotated[
        bool, flag("Allow an address that other machines can reach.", "--expose")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the daemon in the foreground."""
    arguments = [sys.executable, "-m", "kapelle.daemon"]
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
def notify_test() -> Report:
    """Tell yourself something by every way that [notify] sets."""
    told = Connection().post("/notify/test", None)
    yield Ended(told, 1 if any(one["problem"] for one in told) else 0)
    for one in told:
        say(f"{one['way']}: {one['problem'] or 'delivered'}")


def stop(
    agents: Annotated[bool, flag("Stop the running agents too.", "--agents")] = False,
) -> Report:
    """Stop the daemon; running agents go on."""
    client = Connection(autostart=False)
    home, is_there, pid = client.address.home, True, None
    if client.address.url is None and not listens(client.address):
        # Agents outlive a daemon that died; only a daemon can end them and say so.
        is_there, client = agents and home.database.exists(), Connection()
        pid = lock_holder(home)
    if pid is not None:
        _stop_without_socket(home, pid, agents)
    elif is_there:
        pid = int(client.get("/daemon")["pid"])
        client.post("/daemon/stop", {"agents": agents})
    if pid is not None:
        _wait_until_gone(client, pid)
    yield {"stopped": pid is not None, "pid": pid}
    say("No daemon is running." if pid is None else "The daemon has stopped.")


def _stop_without_socket(home: Home, pid: int, agents: bool) -> None:
    """End a daemon whose socket is lost, by the address in its record, or by a signal."""
    try:
        url = json.loads(home.info.read_bytes())["url"]
        address = Address(home, url, home.token.read_text(encoding="ascii").strip())
        Connection(address).post("/daemon/stop", {"agents": agents}, timeout=5)
    except (OSError, ValueError, KeyError, TypeError, KapelleError):
        os.kill(pid, signal.SIGTERM)
        if agents:
            say("The daemon could only be sent a signal: its agents go on.")


def _wait_until_gone(client: Connection, pid: int) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    pause = 0.02
    while time.monotonic() < deadline:
        if not listens(client.address) and (client.address.url is not None or not _alive(pid)):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)
    raise Unavailable(
        f"The daemon (process {pid}) was told to stop but is still there.",
        hint=f"Look into {client.address.home.log}; `kill {pid}` ends it.",
    )


def _alive(pid: int) -> bool:
    """Whether it is there; one that has ended and that its parent has not noticed is not."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def open_page(
    only_print: Annotated[
        bool, flag("Print the address instead; it works once.", "--print")
    ] = False,
) -> Report:
    """Open the page in the browser, logged in.

    The address holds a code that works once, within a minute.
    """
    client = Connection()
    code = client.post("/login-codes")
    # What follows the # stays in the browser: no log sees it.
    url = f"{client.get('/daemon')['url']}/login#{code['code']}"
    yield {"url": url, "expires_at": code["expires_at"]}
    if only_print or not _browse(url):
        data(url)


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


def backup() -> Report:
    """Copy the database to a safe place now."""
    yield (made := Connection().post("/backup", timeout=600))
    data(made["path"])


def prune(
    dry_run: Annotated[bool, flag("Only say what would be put away.", "--dry-run")] = False,
    merged: Annotated[bool, flag("What is merged, and nothing else.", "--merged")] = False,
    older: Annotated[str | None, option("DURATION", "What ended more than 7d or 12h ago.")] = None,
) -> Report:
    """Put away what has ended and free its disk space.

    Merged, cancelled and failed work is archived; without options after upkeep.archive_days and
    upkeep.archive_failed_days. Worktrees are removed, and what is not merged is kept under a ref.
    """
    body = {"merged": merged, "older_s": optional_duration_s(older, "--older"), "dry_run": dry_run}
    yield (pruned := Connection().post("/prune", body, timeout=3600))
    for id_ in pruned["archived"]:
        data(id_)
    room = f"{size(pruned['bytes'])} in {counted(pruned['inodes'], 'file')}"
    what, free = ("to archive", "would be free") if dry_run else ("archived", "are free")
    say(f"{len(pruned['archived']) or 'Nothing'} {what}; {room} {free}.")
