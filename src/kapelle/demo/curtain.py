"""The end of the demo, however it comes: nothing that it started goes on."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from kapelle.cli.output import say
from kapelle.client.http import Connection as Client
from kapelle.demo.doors import typed
from kapelle.demo.place import Place
from kapelle.domain.errors import KapelleError

if TYPE_CHECKING:
    import psutil

LONGEST_S = 100
_SURVIVORS_S = 5.0


class TookTooLong(KapelleError):
    """The demo takes longer than it ever should."""

    code = "took_too_long"
    exit_code = 1


@contextmanager
def nothing_left_running(place: Place) -> Iterator[list[str]]:
    """Stop the daemon and the agents at the end, also after Ctrl-C, SIGTERM or a failure.

    Afterwards the list holds what had to be killed because it did not end by itself.
    """
    survivors: list[str] = []
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST_S)
    try:
        yield survivors
    except BaseException:
        say("Stopping the daemon and its agents …")
        raise
    finally:
        signal.alarm(0)
        # An impatient second Ctrl-C must not leave a daemon behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        survivors += _stop(place)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _too_long(*_: object) -> NoReturn:
    raise TookTooLong(f"The demo has not ended after {LONGEST_S} s, so it was given up.")


def _stop(place: Place) -> list[str]:
    if not place.home.root.exists():
        return []
    with suppress(KapelleError):
        # Agents of a daemon that was killed can only be stopped by another daemon.
        Client().get("/daemon")
    typed(["stop", "--agents"])
    deadline = time.monotonic() + _SURVIVORS_S
    while (left := _processes(place)) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = []
    for process in left:
        with suppress(Exception):
            names.append(f"{process.pid} ({process.name()})")
            process.kill()
    return names


def _processes(place: Place) -> "list[psutil.Process]":
    """Every live process that belongs to the demo's home."""
    import psutil

    home = str(place.home.root)
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            mine = process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE
            if not mine and _belongs(process.environ(), process.cmdline(), home):
                found.append(process)
    return found


def _belongs(environ: dict[str, str], words: list[str], home: str) -> bool:
    if environ.get("KAPELLE_HOME") == home:
        return True
    inside = [environ.get("KAPELLE_RUN_DIR", ""), *words]
    return any(path.startswith(f"{home}/") for path in inside)
