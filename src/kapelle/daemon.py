"""The daemon: connect the parts, serve until stopped, and shut down."""

import argparse
import asyncio
import contextlib
import fcntl
import gc
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from kapelle import __version__
from kapelle.api.app import build
from kapelle.api.security import private
from kapelle.api.server import Door, PrivateDoor, is_loopback, listen, raise_file_limit
from kapelle.domain.errors import InvalidInput, KapelleError, Unavailable
from kapelle.engine.delivery import Deliveries
from kapelle.engine.merge import MergeQueue
from kapelle.engine.parts import Parts
from kapelle.engine.runs.mirror import RunMirror
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.engine.upkeep import upkeep
from kapelle.home import Home, NoRegularFile, read_file_identity, read_own, write_private
from kapelle.runner.runner import Runner
from kapelle.secrets.vault import Vault
from kapelle.sentry import ErrorReports
from kapelle.service import Service
from kapelle.service.daemon import Stopping
from kapelle.settings import Settings, load
from kapelle.store import attempts, backup, events, projects, runs
from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate
from kapelle.workspaces import Workspaces

if __name__ == "__main__":
    # Imported modules stay in memory: collecting garbage among them would be a tenth of the start.
    gc.disable()


_log = logging.getLogger("kapelle")
_SHORTEST_TOKEN = 32
# How often the daemon checks its own files.
_LOOK_S = 2.0


def main() -> None:
    """Run a daemon in the foreground; the exit code is 0 after an orderly stop."""
    parser = argparse.ArgumentParser(prog="kapelle serve")
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    parser.add_argument("--expose", action="store_true")
    parser.add_argument("--wait", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        handlers=[CountingHandler()],
    )
    for chatty in ("alembic", "uvicorn", "asyncio", "mcp", "httpx2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    home = Home.default()
    try:
        home.create()
        with contextlib.closing(DaemonLock(home, wait=options.wait)) as lock:
            settings = load(home, None, os.environ).settings
            _set_log_level(settings)
            listener = _listen(home, settings, options)
            reports = ErrorReports.start(settings.log.sentry_dsn, os.environ)
            with reports or contextlib.nullcontext():
                code = asyncio.run(_serve(lock, home, settings, listener, reports))
    except KapelleError as error:
        _give_up(error.with_hint)
    except OSError as error:
        _give_up(f"{error.strerror or error}: {error.filename or home.root}")
    # Threads and attempts are not waited for: the next daemon continues interrupted work, as after
    # a crash.
    logging.shutdown()
    os._exit(code)


def _set_log_level(settings: Settings) -> None:
    level = logging.getLevelNamesMapping()[settings.log.level.upper()]
    # At debug, libraries log what they send and receive, where secrets stand.
    logging.getLogger().setLevel(max(level, logging.INFO))
    logging.getLogger("kapelle").setLevel(level)


class CountingHandler(logging.StreamHandler[Any]):
    """Writes a repeated line once a minute, and then how often it was repeated."""

    def __init__(self, pause_s: float = 60.0) -> None:
        super().__init__()
        self._pause_s = pause_s
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._write_counts(record.created - self._pause_s)
        key = (record.name, record.levelno, record.getMessage())
        at, count = self._seen.get(key, (record.created, -1))
        self._seen[key] = (at, count + 1)
        if count < 0:
            super().emit(record)

    def close(self) -> None:
        self._write_counts(float("inf"))
        super().close()

    def _write_counts(self, before: float) -> None:
        """Write the number of repetitions of lines first seen before a time."""
        # The dictionary is ordered by the time of the first occurrence.
        while self._seen and (first := next(iter(self._seen.items())))[1][0] <= before:
            (name, level, text), (_, count) = first
            del self._seen[name, level, text]
            if count:
                line = f"{text} (and {count} times more)"
                super().emit(logging.LogRecord(name, level, "", 0, line, None, None))


def _give_up(sentence: str) -> NoReturn:
    print(f"kapelle: {sentence}", file=sys.stderr)
    sys.exit(2)


class DaemonLock:
    """The lock that makes this the only daemon of its home; closing it removes the socket."""

    def __init__(self, home: Home, *, wait: bool = False) -> None:
        self._home = home
        self.descriptor = take_lock(home, wait=wait)

    @property
    def is_ours(self) -> bool:
        return read_file_identity(self._home.lock) == read_file_identity(self.descriptor)

    def keep(self) -> None:
        """Take the lock again if its file was deleted; raises Unavailable if another has it."""
        if not self.is_ours:
            descriptor = take_lock(self._home)
            os.close(self.descriptor)
            self.descriptor = descriptor
            _log.warning("%s was deleted; the lock is taken again", self._home.lock)

    def close(self) -> None:
        if self.is_ours:
            with contextlib.suppress(OSError):
                self._home.socket.unlink()
        os.close(self.descriptor)


def take_lock(home: Home, *, wait: bool = False) -> int:
    """Take the lock of this home, with `wait` as soon as the other daemon has ended.

    Raises Unavailable with the process that holds the lock.
    """
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Unavailable(
            f"A daemon is already running for {home.root} (process {holder}).",
            hint="kapelle stop ends it.",
        ) from None
    # Write before truncating, which needs no new space on a full disk.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    return descriptor


def _listen(home: Home, settings: Settings, options: argparse.Namespace) -> socket.socket:
    """Return the TCP socket; by default at the last port, which agents may still use."""
    host = options.host or settings.server.host
    if not is_loopback(host) and not options.expose:
        raise InvalidInput(
            f"{host} can be reached from other machines; the token gives full control of this one.",
            hint="kapelle serve --expose allows it.",
        )
    if options.port is None:
        port = settings.server.port
    else:
        port = options.port
    return listen(host, [port] if port else [_read_recorded(home, "port"), 0])


def _read_recorded(home: Home, what: str) -> int:
    """Return a number of daemon.json; 0 if it cannot be read."""
    try:
        return int(json.loads(read_own(home.info))[what])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0


async def _serve(
    lock: DaemonLock,
    home: Home,
    settings: Settings,
    listener: socket.socket,
    reports: ErrorReports | None,
) -> int:
    """Serve until a person or a signal stops this daemon; return its exit code.

    The order matters: merges and work of a crashed daemon are taken over before any request is
    served, and the database is closed last.
    """
    host, port = listener.getsockname()[:2]
    url_host = f"[{host}]" if ":" in host else host
    token = _read_or_create(home.token, lambda: secrets.token_urlsafe(32), _SHORTEST_TOKEN)
    db = await asyncio.to_thread(_open_database, home, settings)
    parts = _make_parts(home, settings, db, token, f"http://{url_host}:{port}")
    probe = asyncio.create_task(parts.confiner.probe())
    if reports is not None:
        reports.redact_by(parts.all_secrets)
    await parts.runner.start()
    await _finish_merges(parts)
    await _take_over(parts)
    queue = TaskQueue(parts)
    stopping = Stopping(asyncio.Event())
    await parts.locks.load()
    parts.projects = await db.read(projects.load_current)
    merges = MergeQueue(parts)
    service = Service(parts, queue, merges, stopping)
    names = ("127.0.0.1", "localhost", "[::1]", url_host, *settings.server.hosts)
    hosts = frozenset(f"{name.lower()}:{port}" for name in names)
    app = build(service, token, lambda: hosts)
    max_connections = raise_file_limit()
    doors: list[Door | PrivateDoor] = [
        Door(app, listener, max_connections),
        PrivateDoor(partial(private, app), home, max_connections),
    ]
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.event.set)
    await probe
    record = _Record(home, token, parts.url, port)
    await _announce(record, db)
    # Requests are served only after all of the above.
    serving = [asyncio.create_task(door.serve()) for door in doors]
    duties = (
        queue.run(), parts.locks.run(), upkeep(parts), service.events.run(), RunMirror(parts).run(),
        service.review.run(), service.search_index.run(), service.notify.run(),
        Deliveries(parts, merges).run(), _look_after(lock, record, db, stopping),
        _keep_log_level(parts),
    )  # fmt: skip
    scheduling = asyncio.create_task(service.scheduler.run())
    background = [*serving, scheduling, *(asyncio.create_task(duty) for duty in duties)]
    gc.freeze()
    gc.enable()
    _log.info("Kapelle %s serves %s for %s", __version__, parts.url, home.root)
    await _until_stopped(stopping, background)
    await _rescue(db)
    queue.paused = True
    scheduling.cancel()
    if stopping.agents:
        await service.runs.pause_all("paused with the daemon")
        await service.tasks.stop_all("stopped with the daemon")
    for door in doors:
        door.close()
    await asyncio.wait(serving, timeout=3)
    await queue.close()
    await parts.runner.close()
    # After the checkpoint, the database file alone holds everything.
    await db.checkpoint()
    return 0


def _make_parts(home: Home, settings: Settings, db: Database, token: str, url: str) -> Parts:
    """Connect what every use case needs."""
    name = f"{socket.gethostname()}:{secrets.token_hex(8)}"
    parts: Parts = Parts(
        home=home,
        db=db,
        runner=Runner(home.root),
        workspaces=Workspaces(
            home.root,
            settings.git.author_name,
            settings.git.author_email,
            filters=lambda: parts.settings().git.filters,
            is_alone=True,
        ),
        environ=dict(os.environ),
        secret=token,
        vault=Vault(home),
        url=url,
        # The name of the first daemon of this home; it stays when the host is renamed.
        performer=_read_or_create(home.identity, lambda: name),
    )
    return parts


async def _finish_merges(parts: Parts) -> None:
    """Complete merges that a crashed daemon left unfinished in a person's checkout."""
    try:
        for task_id in await parts.workspaces.finish_merges():
            _log.warning("completed the interrupted merge of %s", task_id)
    except KapelleError as error:
        _log.warning("an interrupted merge could not be completed: %s", error.message)


async def _take_over(parts: Parts) -> None:
    """Take over the attempts and runs of other homes: only one daemon uses a database."""
    for noun in (attempts, runs):
        count = await parts.db.write(noun.take_over, parts.performer)
        if count:
            _log.warning("took over %d running %s", count, noun.__name__.split(".")[-1])


async def _until_stopped(stopping: Stopping, background: list[asyncio.Task[None]]) -> None:
    """Wait for a request to stop; raises Unavailable if a part of the daemon ends first."""
    stop = asyncio.create_task(stopping.event.wait())
    ended_tasks, _ = await asyncio.wait([stop, *background], return_when=asyncio.FIRST_COMPLETED)
    for task in ended_tasks - {stop}:
        if not task.cancelled():
            error = task.exception()
        else:
            error = None
        _log.critical("a part of the daemon ended", exc_info=error)
        raise Unavailable(f"A part of the daemon ended: {error!r}") from error


def _open_database(home: Home, settings: Settings) -> Database:
    if settings.database_url is None:
        backup.require_sound(home.database, home.backups)
        backup.require_not_lost(home.database, home.backups, home.attempts)
        backup.make_private(home.database)
    db = Database(settings.database_url or sqlite_url(home.database))
    db.make_room = home.give_up_reserve
    grades = settings.backup.grades
    migrate(db.engine, lambda: db.is_sqlite and backup.create(home.database, home.backups, grades))
    db.reserve()
    if db.is_sqlite:
        db.guard(home.database, home.backups)
    return db


def _read_or_create(path: Path, make: Callable[[], str], shortest: int = 1) -> str:
    """Return the text of a file; write a new one if it is missing or too short.

    A crash or a full disk may have cut it short.
    """
    text = ""
    with contextlib.suppress(FileNotFoundError, NoRegularFile, UnicodeDecodeError):
        text = read_own(path).decode().strip()
    if len(text) < shortest:
        text = make()
        write_private(path, text.encode())
    return text


@dataclass(frozen=True)
class _Record:
    """The files by which clients find this daemon: its token and daemon.json."""

    home: Home
    token: str
    url: str
    port: int

    def write(self) -> None:
        """Write the files that are missing or belong to another process."""
        if not self.home.token.is_file():
            write_private(self.home.token, self.token.encode())
        if _read_recorded(self.home, "pid") != os.getpid():
            info = {
                "pid": os.getpid(),
                "url": self.url,
                "port": self.port,
                "version": __version__,
                "started_at": datetime.now(UTC).isoformat(),
            }
            write_private(self.home.info, json.dumps(info).encode())


async def _announce(record: _Record, db: Database) -> None:
    """Write the daemon's record and event; without them it serves all the same.

    On a full disk, a person can still cancel tasks.
    """
    try:
        try:
            record.write()
        except OSError:
            record.home.give_up_reserve()
            record.write()
        await db.write(events.append, "daemon.started", version=__version__, pid=os.getpid())
    except (OSError, Unavailable) as error:
        _log.error("the daemon starts, but could not record its start: %s", error)


async def _look_after(lock: DaemonLock, record: _Record, db: Database, stopping: Stopping) -> None:
    """Repair this daemon's own files: its lock, its record, and a lost database."""
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            lock.keep()
            record.write()
        except Unavailable as error:
            _log.error("this daemon stops: %s", error.message)
            stopping.event.set()
        except OSError as error:
            _log.error("the daemon's lock and record cannot be repaired: %s", error)
        await _rescue(db)


async def _keep_log_level(parts: Parts) -> None:
    """Follow the setting log.level, which may change at any time."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(KapelleError):  # reported to whoever submits work
            _set_log_level(parts.settings())


async def _rescue(db: Database) -> None:
    """Copy the rows of a database whose file is gone, while this process can still read it."""
    if db.problem is None:
        return
    try:
        if (copy := await db.rescue()) is not None:
            _log.warning("the content of the database is saved in %s", copy)
    except (OSError, KapelleError) as error:
        _log.error("the rows could not be saved: %s", error)
    problem = await db.find_problem()
    _log.error("%s", problem.with_hint if problem else "the database is back")


if __name__ == "__main__":
    main()
