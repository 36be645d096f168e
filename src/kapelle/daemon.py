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
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__":
    # All that is imported stays: looking through it for garbage is a tenth of the start.
    gc.disable()

from kapelle import __version__
from kapelle.api.app import build
from kapelle.api.security import PrivateSocket
from kapelle.api.server import Door, is_loopback, listen, listen_privately
from kapelle.domain.errors import InvalidInput, KapelleError, Unavailable
from kapelle.engine.parts import Parts
from kapelle.engine.runs.executor import RunExecutor
from kapelle.engine.runs.mirror import RunMirror
from kapelle.engine.runs.queue import RunQueue
from kapelle.engine.schedules.scheduler import Scheduler
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.engine.upkeep import upkeep
from kapelle.home import Home, write_private
from kapelle.runner.runner import Runner
from kapelle.secrets import Vault
from kapelle.service import Service
from kapelle.service.agents import Agents
from kapelle.service.daemon import Daemon, Stopping
from kapelle.service.events import Events
from kapelle.service.output import Output
from kapelle.service.runs import Runs
from kapelle.service.schedules import ScheduledWork, Schedules
from kapelle.service.sessions import Sessions
from kapelle.service.tasks import Tasks
from kapelle.service.usage import Usages
from kapelle.service.work import Work
from kapelle.settings import Settings, load
from kapelle.store import attempts, backup, events, runs
from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate
from kapelle.workspaces import Workspaces

_log = logging.getLogger("kapelle")
_SHORTEST_TOKEN = 32


def main() -> None:
    """Run a daemon in the foreground; the exit code is 0 after an orderly stop."""
    parser = argparse.ArgumentParser(prog="kapelle serve")
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    parser.add_argument("--expose", action="store_true")
    parser.add_argument("--wait", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for chatty in ("alembic", "uvicorn", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    home = Home.default()
    try:
        home.create()
        with _only_daemon(home, wait=options.wait):
            settings = load(home, None, os.environ).settings
            code = asyncio.run(_serve(home, settings, _listen(home, settings, options)))
    except KapelleError as error:
        _give_up(error.with_hint)
    except OSError as error:
        _give_up(f"{error.strerror or error}: {error.filename or home.root}")
    # The threads and the watched attempts are left as they are: whatever a stop interrupts
    # goes on with the next daemon, exactly as after a crash.
    logging.shutdown()
    os._exit(code)


def _give_up(sentence: str) -> NoReturn:
    print(f"kapelle: {sentence}", file=sys.stderr)
    sys.exit(2)


@contextlib.contextmanager
def _only_daemon(home: Home, *, wait: bool) -> Iterator[None]:
    """While this is the daemon of its home, whose socket goes with it."""
    lock = take_lock(home, wait=wait)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            home.socket.unlink()
        os.close(lock)


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
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _listen(home: Home, settings: Settings, options: argparse.Namespace) -> socket.socket:
    """The TCP socket; by default at the port of last time, where agents still look for it."""
    host = options.host or settings.server.host
    if not is_loopback(host) and not options.expose:
        raise InvalidInput(
            f"{host} can be reached from other machines, and whoever has the token rules yours.",
            hint="kapelle serve --expose allows it.",
        )
    port = settings.server.port if options.port is None else options.port
    return listen(host, [port] if port else [_last_port(home), 0])


def _last_port(home: Home) -> int:
    try:
        return int(json.loads(home.info.read_bytes())["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


async def _serve(home: Home, settings: Settings, listener: socket.socket) -> int:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    token = _kept_text(home.token, lambda: secrets.token_urlsafe(32), _SHORTEST_TOKEN)
    name = f"{socket.gethostname()}:{secrets.token_hex(8)}"
    db = await asyncio.to_thread(_open_database, home, settings)
    parts = Parts(
        home=home,
        db=db,
        runner=Runner(home.root),
        workspaces=Workspaces(home.root, settings.git.author_name, settings.git.author_email),
        environ=dict(os.environ),
        secret=token,
        vault=Vault(home),
        url=f"http://{shown}:{port}",
        # Host and home, as the first daemon of this home named them.
        performer=_kept_text(home.identity, lambda: name),
    )
    await parts.runner.start()
    await _finish_merges(parts)
    await _take_over(parts)
    queue = TaskQueue(parts, RunQueue(parts, RunExecutor(parts).perform))
    stopping = Stopping(asyncio.Event())
    task_service, run_service = Tasks(parts, queue), Runs(parts)
    work = ScheduledWork(parts, task_service, run_service)
    scheduler = Scheduler(db, work, parts.secrets)
    service = Service(
        tasks=task_service,
        runs=run_service,
        work=Work(parts),
        schedules=Schedules(db, scheduler, work, parts.secrets),
        output=Output(parts),
        events=Events(db),
        daemon=Daemon(parts, queue, stopping),
        sessions=Sessions(),
        agents=Agents(parts),
        usage=Usages(parts),
    )
    names = ("127.0.0.1", "localhost", "[::1]", shown, *settings.server.hosts)
    hosts = frozenset(f"{name.lower()}:{port}" for name in names)
    app = build(service, token, lambda: hosts)
    doors = [Door(app, listener), Door(PrivateSocket(app), listen_privately(home.socket))]
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.event.set)
    serving = [asyncio.create_task(door.serve()) for door in doors]
    duties = (queue.run(), upkeep(parts), service.events.run(), RunMirror(parts).run())
    scheduling = asyncio.create_task(scheduler.run())
    background = [*serving, scheduling, *(asyncio.create_task(duty) for duty in duties)]
    _write_info(home, parts.url, port)
    await db.write(events.append, "daemon.started", version=__version__, pid=os.getpid())
    gc.freeze()
    gc.enable()
    _log.info("Kapelle %s serves %s for %s", __version__, parts.url, home.root)
    await _until_stopped(stopping, background)
    queue.paused = True
    scheduling.cancel()
    if stopping.agents:
        await run_service.pause_all("paused with the daemon")
        await task_service.stop_all("stopped with the daemon")
    for door in doors:
        door.close()
    await asyncio.wait(serving, timeout=3)
    await queue.close()
    await parts.runner.close()
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
        error = task.exception() if not task.cancelled() else None
        raise Unavailable(f"A part of the daemon ended: {error!r}") from error


def _open_database(home: Home, settings: Settings) -> Database:
    if settings.database_url is None:
        backup.check(home.database, home.backups)
        backup.make_private(home.database)
    db = Database(settings.database_url or sqlite_url(home.database))
    keep = max(2, settings.backup.keep)
    migrate(db.engine, lambda: db.is_sqlite and backup.make(home.database, home.backups, keep))
    db.reserve()
    return db


def _kept_text(path: Path, make: Callable[[], str], shortest: int = 1) -> str:
    """What a file says; one that is missing or that a crash or a full disk cut short is made."""
    text = ""
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8").strip()
    if len(text) < shortest:
        text = make()
        write_private(path, text.encode())
    return text


def _write_info(home: Home, url: str, port: int) -> None:
    info = {
        "pid": os.getpid(),
        "url": url,
        "port": port,
        "version": __version__,
        "started_at": datetime.now(UTC).isoformat(),
    }
    write_private(home.info, json.dumps(info).encode())


if __name__ == "__main__":
    main()
