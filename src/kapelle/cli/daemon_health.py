"""What `kapelle doctor` finds about the daemon and its database, which it does not start."""

from collections.abc import Iterator
from typing import Any

from kapelle.cli.client import Client
from kapelle.cli.finding import Finding, State
from kapelle.cli.times import size
from kapelle.client.autostart import why_it_gave_up
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.home import Home

_DATABASE_BEGINS = b"SQLite format 3\0"
_LOG_END = 20_000


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
    client = Client(autostart=False)
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
