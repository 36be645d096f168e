"""The daemon: wires the parts by hand, serves until it is told to stop, and goes."""

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
from kapelle.home import Home, NoRegularFile, file_identity, read_own, write_private
from kapelle.runner.runner import Runner
from kapelle.secrets import Vault
from kapelle.sentry import ErrorReports
from kapelle.service import Service
from kapelle.service.daemon import Stopping
from kapelle.settings import Settings, load
from kapelle.store import attempts, backup, events, projects, runs
from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate
from kapelle.workspaces import Workspaces

if __name__ == "__main__":
    # All that is imported stays: looking through it for garbage is a tenth of the start.
    gc.disable()


_log = logging.getLogger("kapelle")
_SHORTEST_TOKEN = 32
# How often the daemon looks at its own files.
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
    # The threads and the watched attempts are left as they are: whatever a stop interrupts
    # goes on with the next daemon, exactly as after a crash.
    logging.shutdown()
    os._exit(code)


def _set_log_level(settings: Settings) -> None:
    level = logging.getLevelNamesMapping()[settings.log.level.upper()]
    # At debug, libraries log what they send and receive, where secrets stand.
    logging.getLogger().setLevel(max(level, logging.INFO))
    logging.getLogger("kapelle").setLevel(level)


class CountingHandler(logging.StreamHandler[Any]):
    """Writes a line once a minute, however often it comes, and then how often it came."""

    def __init__(self, pause_s: float = 60.0) -> None:
        super().__init__()
        self._pause_s = pause_s
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.created - self._pause_s)
        key = (record.name, record.levelno, record.getMessage())
        at, count = self._seen.get(key, (record.created, -1))
        self._seen[key] = (at, count + 1)
        if count < 0:
            super().emit(record)

    def close(self) -> None:
        self._tell(float("inf"))
        super().close()

    def _tell(self, before: float) -> None:
        """Write how often the lines that were first seen before a time came again."""
        # They are in the order in which they came.
        while self._seen and (first := next(iter(self._seen.items())))[1][0] <= before:
            (name, level, text), (_, count) = first
            del self._seen[name, level, text]
            if count:
                told = f"{text} (and {count} times more)"
                super().emit(logging.LogRecord(name, level, "", 0, told, None, None))


def _give_up(sentence: str) -> NoReturn:
    print(f"kapelle: {sentence}", file=sys.stderr)
    sys.exit(2)


class DaemonLock:
    """What makes this the only daemon of its home, whose socket goes with it."""

    def __init__(self, home: Home, *, wait: bool = False) -> None:
        self._home = home
        self.descriptor = take_lock(home, wait=wait)

    @property
    def is_ours(self) -> bool:
        return file_identity(self._home.lock) == file_identity(self.descriptor)

    def keep(self) -> None:
        """Take it again where its file was lost; raise Unavailable if another daemon has."""
        if not self.is_ours:
            taken = take_lock(self._home)
            os.close(self.descriptor)
            self.descriptor = taken
            _log.warning("%s was lost and is taken again", self._home.lock)

    def close(self) -> None:
        if self.is_ours:
            with contextlib.suppress(OSError):
                self._home.socket.unlink()
        os.close(self.descriptor)


def take_lock(home: Home, *, wait: bool = False) -> int:
    """Be the only daemon of this home, if need be when the other one has ended, or say who is."""
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
    # In this order it needs no new room on a full disk.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    return descriptor


def _listen(home: Home, settings: Settings, options: argparse.Namespace) -> socket.socket:
    """The TCP socket; by default at the port of last time, where agents still look for it."""
    host = options.host or settings.server.host
    if not is_loopback(host) and not options.expose:
        raise InvalidInput(
            f"{host} can be reached from other machines, and whoever has the token rules yours.",
            hint="kapelle serve --expose allows it.",
        )
    if options.port is None:
        port = settings.server.port
    else:
        port = options.port
    return listen(host, [port] if port else [_recorded(home, "port"), 0])


def _recorded(home: Home, what: str) -> int:
    """A number of the daemon's record, 0 when it cannot be read."""
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
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    token = _kept_text(home.token, lambda: secrets.token_urlsafe(32), _SHORTEST_TOKEN)
    name = f"{socket.gethostname()}:{secrets.token_hex(8)}"
    db = await asyncio.to_thread(_open_database, home, settings)
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
        url=f"http://{shown}:{port}",
        # Host and home, as the first daemon of this home named them.
        performer=_kept_text(home.identity, lambda: name),
    )
    if reports is not None:
        reports.redact_by(parts.all_secrets)
    await parts.runner.start()
    await _finish_merges(parts)
    await _take_over(parts)
    queue = TaskQueue(parts)
    stopping = Stopping(asyncio.Event())
    await parts.locks.load()
    parts.projects = await db.read(projects.current)
    merges = MergeQueue(parts)
    service = Service(parts, queue, merges, stopping)
    names = ("127.0.0.1", "localhost", "[::1]", shown, *settings.server.hosts)
    hosts = frozenset(f"{name.lower()}:{port}" for name in names)
    app = build(service, token, lambda: hosts)
    most = raise_file_limit()
    doors: list[Door | PrivateDoor] = [Door(app, listener, most)]
    doors.append(PrivateDoor(partial(private, app), home, most))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.event.set)
    record = _Record(home, token, parts.url, port)
    await _announce(record, db)
    # Nobody is answered before all of this is done.
    serving = [asyncio.create_task(door.serve()) for door in doors]
    duties = (
        queue.run(), parts.locks.run(), upkeep(parts), service.events.run(), RunMirror(parts).run(),
        service.knowledge.run(), service.search.run(), service.notify.run(),
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
    # Whoever copies the database file then has all of it.
    await db.checkpoint()
    return 0


async def _finish_merges(parts: Parts) -> None:
    """Complete what a daemon that died in the middle of a merge left in somebody's checkout."""
    try:
        for task_id in await parts.workspaces.finish_merges():
            _log.warning("the merge of %s, which was interrupted, is finished", task_id)
    except KapelleError as error:
        _log.warning("an interrupted merge could not be finished: %s", error.message)


async def _take_over(parts: Parts) -> None:
    """Claim what other homes left running: this daemon is the only one on its database."""
    for noun in (attempts, runs):
        count = await parts.db.write(noun.take_over, parts.performer)
        if count:
            _log.warning("%d running %s are taken over", count, noun.__name__.split(".")[-1])


async def _until_stopped(stopping: Stopping, background: list[asyncio.Task[None]]) -> None:
    stop = asyncio.create_task(stopping.event.wait())
    done, _ = await asyncio.wait([stop, *background], return_when=asyncio.FIRST_COMPLETED)
    for task in done - {stop}:
        if not task.cancelled():
            error = task.exception()
        else:
            error = None
        _log.critical("a part of the daemon ended", exc_info=error)
        raise Unavailable(f"A part of the daemon ended: {error!r}") from error


def _open_database(home: Home, settings: Settings) -> Database:
    if settings.database_url is None:
        backup.check(home.database, home.backups)
        backup.check_not_lost(home.database, home.backups, home.attempts)
        backup.make_private(home.database)
    db = Database(settings.database_url or sqlite_url(home.database))
    db.make_room = home.give_up_reserve
    grades = settings.backup.grades
    migrate(db.engine, lambda: db.is_sqlite and backup.make(home.database, home.backups, grades))
    db.reserve()
    if db.is_sqlite:
        db.guard(home.database, home.backups)
    return db


def _kept_text(path: Path, make: Callable[[], str], shortest: int = 1) -> str:
    """What a file says; one that is missing or that a crash or a full disk cut short is made."""
    text = ""
    with contextlib.suppress(FileNotFoundError, NoRegularFile, UnicodeDecodeError):
        text = read_own(path).decode().strip()
    if len(text) < shortest:
        text = make()
        write_private(path, text.encode())
    return text


@dataclass(frozen=True)
class _Record:
    """What others find this daemon by: its token and daemon.json."""

    home: Home
    token: str
    url: str
    port: int

    def write(self) -> None:
        """Write what is missing of it."""
        if not self.home.token.is_file():
            write_private(self.home.token, self.token.encode())
        if _recorded(self.home, "pid") != os.getpid():
            info = {
                "pid": os.getpid(),
                "url": self.url,
                "port": self.port,
                "version": __version__,
                "started_at": datetime.now(UTC).isoformat(),
            }
            write_private(self.home.info, json.dumps(info).encode())


async def _announce(record: _Record, db: Database) -> None:
    """Let others find this daemon, which goes on without that on a full disk: one can cancel."""
    try:
        try:
            record.write()
        except OSError:
            record.home.give_up_reserve()
            record.write()
        await db.write(events.append, "daemon.started", version=__version__, pid=os.getpid())
    except (OSError, Unavailable) as error:
        _log.error("the daemon starts without saying so: %s", error)


async def _look_after(lock: DaemonLock, record: _Record, db: Database, stopping: Stopping) -> None:
    """Doubt this daemon's own files: take the lock again, write its record anew, rescue rows."""
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            lock.keep()
            record.write()
        except Unavailable as error:
            _log.error("this daemon leaves: %s", error.message)
            stopping.event.set()
        except OSError as error:
            _log.error("the daemon's lock and record cannot be looked after: %s", error)
        await _rescue(db)


async def _keep_log_level(parts: Parts) -> None:
    """Follow the setting log.level, which may be changed at any time."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(KapelleError):  # whoever asks for work is told what is wrong
            _set_log_level(parts.settings())


async def _rescue(db: Database) -> None:
    """Keep what a database that is gone held, while this process can still read it."""
    if db.problem is None:
        return
    try:
        if (made := await db.rescue()) is not None:
            _log.warning("what the database held is in %s", made)
    except (OSError, KapelleError) as error:
        _log.error("the rows cannot be rescued: %s", error)
    problem = await db.find_problem()
    _log.error("%s", problem.with_hint if problem else "the database is back")


if __name__ == "__main__":
    main()
