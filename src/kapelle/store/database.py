"""One database, SQLite or PostgreSQL: short transactions in threads, one writer at a time."""

import asyncio
import json
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from kapelle.domain.errors import InvalidInput, KapelleError, Unavailable
from kapelle.home import read_file_identity
from kapelle.store import backup

Connection = sa.Connection
P = ParamSpec("P")
T = TypeVar("T")
TransactionFunction = Callable[Concatenate[sa.Connection, P], T]

# Any constant will do: it names "the writer" of this database among all daemons on it.
_POSTGRES_WRITER_LOCK = 0x6B6170656C6C65
_POSTGRES_DAEMON_LOCK = _POSTGRES_WRITER_LOCK + 1
_RESERVATION_S = 5.0
_READERS = 4
# An option of connections whose transactions are begun and ended by statements of ours.
_KEPT = "kapelle_kept"
_ABOUT = "kapelle_about"
_UNUSABLE = (sa.exc.OperationalError, sqlite3.OperationalError)


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def connect(url: str, *, synchronous: str = "FULL") -> sa.Engine:
    """An engine with the pragmas that make SQLite durable and free of lock errors."""
    if not url.startswith("sqlite"):
        if not url.startswith("postgresql://"):
            raise InvalidInput(
                f"The database address begins with {url.partition(':')[0]!r}.",
                hint="It must begin with postgresql://",
            )
        return sa.create_engine(
            url.replace("postgresql://", "postgresql+psycopg://", 1),
            pool_size=_READERS + 2,
            pool_pre_ping=True,
            hide_parameters=True,
        )
    engine = sa.create_engine(
        url,
        connect_args={"check_same_thread": False},
        pool_size=_READERS + 2,
        json_deserializer=_read_json,
        # Errors are shown to people; prompts and secrets have no place in them.
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout=30000")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A deferred transaction that reads and then writes fails at once under contention.
        if not connection.get_execution_options().get(_KEPT):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _read_json(text: str) -> Any:
    # Most of what tasks might have, they have not; parsing that was a tenth of a long list.
    if text == "[]":
        return []
    if text == "{}":
        return {}
    return json.loads(text)


class Database:
    """Runs functions of a connection as transactions and wakes whoever waits for changes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = connect(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._watches: defaultdict[str, set[DatabaseWatch]] = defaultdict(set)
        self._reservation: sa.Connection | None = None
        # On SQLite a connection for every thread: to take one from the pool costs more than a read.
        self._own = threading.local()
        self._kept: set[sa.Connection] = set()
        self._file: tuple[Path, Path, object] | None = None
        self._damage: str | None = None
        self._rescued = False
        # What to do about a problem, and from which backups that was found out.
        self._advice: tuple[list[Path], str] | None = None
        self._advising = threading.Lock()
        # Called when the disk is full: whether it made some room, so that a write is tried again.
        self.make_room: Callable[[], bool] = lambda: False

    def guard(self, path: Path, backups: Path) -> None:
        """From now on, write only while this is the file that was opened; name a backup if not."""
        self._file = (path, backups, read_file_identity(path))

    @property
    def problem(self) -> Unavailable | None:
        """Why nothing may be written; None while all is well."""
        if self._file is None:
            return None
        path, backups, opened = self._file
        if self._damage is None and read_file_identity(path) == opened:
            return None
        gone = "gone, or it is not the one that this daemon opened"
        if self._damage:
            what = f"damaged: {self._damage}"
        else:
            what = gone
        advice = f"Copy the fullest backup in {backups} to {path}."
        if self._advice:
            advice = self._advice[1]
        else:
            advice = advice
        return Unavailable(
            f"The database {path} is {what}. Nothing is stored or started; agents go on.",
            hint=f"`kapelle stop`. {advice} Then start it again.",
        )

    async def find_problem(self) -> Unavailable | None:
        """The problem, if there is one, with the backup to use, which takes a while to find."""
        if self._file is None or self.problem is None:
            return None
        path, backups, _ = self._file

        def advise() -> None:
            # Every row of every backup is counted: once, however many ask.
            with self._advising:
                copies = backup.list_backups(backups)
                if self._advice is None or self._advice[0] != copies:
                    self._advice = copies, backup.format_advice(path, backups)

        await asyncio.to_thread(advise)
        return self.problem

    async def back_up(self, grades: backup.Grades) -> Path | None:
        """Copy the file while it is in use, which also finds damage; None without a file."""
        if self._file is None:
            return None
        if (problem := self.problem) is not None:
            raise problem
        path, backups, _ = self._file
        with self._told():
            return await asyncio.to_thread(backup.create, path, backups, grades)

    async def rescue(self) -> Path | None:
        """Put what this daemon still sees of a database that is gone into a backup, once."""
        if self._file is None or self._damage is not None or self._rescued:
            return None
        path, backups, _ = self._file

        def copy() -> Path | None:
            kept: sa.Connection | None = getattr(self._own, "connection", None)
            if kept is None:
                return None
            source: Any = kept.connection.driver_connection
            return backup.create_from(source, path.name, backups)

        made = await self._in_thread(self._writer, copy)
        # Only now: where a full disk prevented it, it is tried again.
        self._rescued = made is not None
        return made

    async def write(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work in one write transaction; all of it happens or nothing does."""
        about: set[str] = set()

        def noted(connection: sa.Connection) -> T:
            connection.info[_ABOUT] = about
            return work(connection, *args, **kwargs)

        def transaction() -> T:
            if (problem := self.problem) is not None:
                raise problem
            if self.is_sqlite:
                try:
                    return self._in_kept("BEGIN IMMEDIATE", noted)
                except _UNUSABLE as error:
                    if "is full" not in str(error) or not self.make_room():
                        raise
                    about.clear()
                    return self._in_kept("BEGIN IMMEDIATE", noted)
            with self.engine.begin() as connection:
                # Keeps the order of event numbers the order of commits.
                lock = sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_WRITER_LOCK))
                connection.execute(lock)
                return noted(connection)

        loop = asyncio.get_running_loop()

        def stored() -> T:
            result = transaction()
            # From here, for whoever awaits it may be cancelled while it is being stored.
            loop.call_soon_threadsafe(self._wake, about)
            return result

        return await self._in_thread(self._writer, stored)

    def _wake(self, about: set[str]) -> None:
        for key in ("", *about):
            for watch in self._watches.get(key, ()):
                watch.wake()

    async def read(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work in one read-only transaction: everything it sees is of one moment."""
        return await self._in_thread(self._readers, lambda: self._read(work, *args, **kwargs))

    async def glance(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read a row or two in one transaction, on SQLite right here: it blocks the event loop,
        but for less time than handing the work to a thread would take."""
        if not self.is_sqlite:
            return await self.read(work, *args, **kwargs)
        with self._told():
            return self._read(work, *args, **kwargs)

    def _read(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.is_sqlite:
            return self._in_kept("BEGIN", work, *args, **kwargs)
        # Several statements must see one moment, which PostgreSQL does not promise by itself.
        reading = self.engine.connect().execution_options(isolation_level="REPEATABLE READ")
        with reading as connection, connection.begin():
            return work(connection, *args, **kwargs)

    def _in_kept(
        self, begin: str, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """One transaction on this thread's own connection, which is dropped after an error."""
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            options = {"isolation_level": "AUTOCOMMIT", _KEPT: True}
            connection = self.engine.connect().execution_options(**options)
            self._own.connection = connection
            self._kept.add(connection)
        # Begun and ended below SQLAlchemy, whose own way to say so costs as much as a query.
        driver: Any = connection.connection.driver_connection
        try:
            driver.execute(begin)
            result = work(connection, *args, **kwargs)
            driver.execute("COMMIT")
        except KapelleError:
            connection.connection.rollback()
            raise
        except BaseException:
            self._own.connection = None
            self._kept.discard(connection)
            connection.invalidate()
            connection.close()
            raise
        return result

    def reserve(self) -> None:
        """Be the only daemon on this database for as long as this process lives."""
        if self.is_sqlite:
            return  # whose file lies in a home that is locked already
        self._reservation = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        wanted = sa.select(sa.func.pg_try_advisory_lock(_POSTGRES_DAEMON_LOCK))
        deadline = time.monotonic() + _RESERVATION_S
        # The server may take a moment to notice that the daemon before this one is dead.
        while not self._reservation.execute(wanted).scalar():
            if time.monotonic() > deadline:
                raise Unavailable(
                    "Another daemon uses this database.",
                    hint="Stop it, or give this one a database of its own.",
                )
            time.sleep(0.1)

    @contextmanager
    def watch(self, *keys: str) -> Iterator["DatabaseWatch"]:
        """A watch that is woken by every later write of this process that was about one of these
        keys (see `about`), or without keys by every later write."""
        watch = DatabaseWatch()
        for key in keys or ("",):
            self._watches[key].add(watch)
        try:
            yield watch
        finally:
            for key in keys or ("",):
                self._watches[key].discard(watch)
                if not self._watches[key]:
                    del self._watches[key]

    async def _in_thread(self, threads: ThreadPoolExecutor, transaction: Callable[[], T]) -> T:
        with self._told():
            return await asyncio.get_running_loop().run_in_executor(threads, transaction)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in words for people what the database refuses, and remember that it is damaged."""
        try:
            yield
        except (sa.exc.DatabaseError, sqlite3.DatabaseError) as error:
            # What is more special has a class of its own.
            cause = getattr(error, "orig", error)
            if type(cause) is sqlite3.DatabaseError:
                self._damage = str(cause)
            if (problem := self.problem) is not None:
                raise problem from error
            if isinstance(error, _UNUSABLE):
                raise Unavailable(
                    f"The database cannot be used now: {cause}.", hint=_hint(str(cause))
                ) from error
            raise

    async def checkpoint(self) -> None:
        """Move what SQLite keeps in its write-ahead log into the database file itself."""
        if self.is_sqlite and self.problem is None:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._checkpoint)

    def _checkpoint(self) -> None:
        with suppress(sqlite3.OperationalError), self.engine.connect() as connection:
            # SQLAlchemy would begin a transaction, in which SQLite refuses to do it.
            driver: Any = connection.connection.driver_connection
            # Somebody who reads may keep it from being complete, but not for longer than this.
            driver.execute("PRAGMA busy_timeout=2000")
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
        self._writer.shutdown()
        self._readers.shutdown()
        for connection in self._kept:
            connection.close()
        self.engine.dispose()


def _hint(cause: str) -> str:
    """What to look at when the database refuses something."""
    if "disk" in cause or "full" in cause:
        return "Look at the free disk space and the daemon's log; nothing was changed."
    return "Look at the daemon's log; nothing was changed."


def notify_watches(connection: sa.Connection, keys: Iterable[str]) -> None:
    """Wake those who watch for these keys, once this transaction is stored."""
    connection.info.get(_ABOUT, set()).update(keys)


class DatabaseWatch:
    """Used as `with db.watch() as changed:` around a loop of looking and waiting."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Return after the next write, or when time is up; writes since the last wait count."""
        # Before Python 3.12, asyncio.wait_for swallows a cancellation that meets a write.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        self._event.clear()
