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

# The key of the advisory lock of the writer; any constant serves.
_POSTGRES_WRITER_LOCK = 0x6B6170656C6C65
_POSTGRES_DAEMON_LOCK = _POSTGRES_WRITER_LOCK + 1
_RESERVATION_S = 5.0
_READERS = 4
# An option of connections whose transactions this module starts and ends itself.
_OWN_TRANSACTIONS = "kapelle_own_transactions"
_WATCH_KEYS = "kapelle_watch_keys"
_UNUSABLE = (sa.exc.OperationalError, sqlite3.OperationalError)


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def connect(url: str, *, synchronous: str = "FULL") -> sa.Engine:
    """Return an engine for SQLite or PostgreSQL.

    On SQLite it sets the pragmas that make commits durable and prevent lock errors.
    """
    if not url.startswith("sqlite"):
        if not url.startswith("postgresql://"):
            raise InvalidInput(
                f"The database address starts with {url.partition(':')[0]!r}.",
                hint="It must start with postgresql://",
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
        # People see errors: they must not contain prompts or secrets.
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
        if not connection.get_execution_options().get(_OWN_TRANSACTIONS):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _read_json(text: str) -> Any:
    # Most JSON columns of a task are empty: parsing them took a tenth of the time of a long list.
    if text == "[]":
        return []
    if text == "{}":
        return {}
    return json.loads(text)


class Database:
    """A database in which functions of a connection run as transactions.

    Writes run one after another in one thread, reads in several. Watches are woken by writes.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = connect(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._watches: defaultdict[str, set[DatabaseWatch]] = defaultdict(set)
        self._reservation: sa.Connection | None = None
        # SQLite: one connection for each thread. Taking one from the pool costs more than a read.
        self._own = threading.local()
        self._thread_connections: set[sa.Connection] = set()
        self._file: tuple[Path, Path, object] | None = None
        self._damage: str | None = None
        self._rescued = False
        # The instructions for a damaged database, and the backups that they were computed from.
        self._advice: tuple[list[Path], str] | None = None
        self._advice_lock = threading.Lock()
        # Called when the disk is full. If it returns that it freed space, the write is retried.
        self.make_room: Callable[[], bool] = lambda: False

    def guard(self, path: Path, backups: Path) -> None:
        """Refuse writes from now on if another file replaces the one that is open now.

        The daemon would otherwise write into a deleted file, or into a foreign database.
        """
        self._file = (path, backups, read_file_identity(path))

    @property
    def problem(self) -> Unavailable | None:
        """Return the error of every write while the database is lost or damaged; else None."""
        if self._file is None:
            return None
        path, backups, identity = self._file
        if self._damage is None and read_file_identity(path) == identity:
            return None
        state = "missing, or it is not the file that this daemon opened"
        if self._damage:
            state = f"damaged: {self._damage}"
        advice = f"Copy the fullest backup in {backups} to {path}."
        if self._advice:
            advice = self._advice[1]
        return Unavailable(
            f"The database {path} is {state}. Nothing is stored or started; agents continue.",
            hint=f"`kapelle stop`. {advice} Then start the daemon again.",
        )

    async def find_problem(self) -> Unavailable | None:
        """Return the problem, if there is one, with the backup to use.

        The search for the backup takes a while, so `problem` does not do it.
        """
        if self._file is None or self.problem is None:
            return None
        path, backups, _ = self._file

        def advise() -> None:
            # The rows of all backups are counted once, even for concurrent callers.
            with self._advice_lock:
                copies = backup.list_backups(backups)
                if self._advice is None or self._advice[0] != copies:
                    self._advice = (copies, backup.format_advice(path, backups))

        await asyncio.to_thread(advise)
        return self.problem

    async def back_up(self, grades: backup.Grades) -> Path | None:
        """Copy the file while it is in use, which also detects damage.

        Return the backup; None on PostgreSQL.
        """
        if self._file is None:
            return None
        if (problem := self.problem) is not None:
            raise problem
        path, backups, _ = self._file
        with self._translated_errors():
            return await asyncio.to_thread(backup.create, path, backups, grades)

    async def rescue(self) -> Path | None:
        """Save a deleted database into a backup, once, as long as a connection still sees it."""
        if self._file is None or self._damage is not None or self._rescued:
            return None
        path, backups, _ = self._file

        def copy() -> Path | None:
            connection: sa.Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                return None
            source: Any = connection.connection.driver_connection
            return backup.create_from(source, path.name, backups)

        rescue = await self._in_thread(self._writer, copy)
        # Set after the copy, so that a copy that failed on a full disk is retried.
        self._rescued = rescue is not None
        return rescue

    async def write(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work in one write transaction: either all of its changes are stored or none."""
        watch_keys: set[str] = set()

        def perform(connection: sa.Connection) -> T:
            # `notify_watches` adds to this set.
            connection.info[_WATCH_KEYS] = watch_keys
            return work(connection, *args, **kwargs)

        def commit() -> T:
            if (problem := self.problem) is not None:
                raise problem
            if self.is_sqlite:
                try:
                    return self._transact_on_sqlite("BEGIN IMMEDIATE", perform)
                except _UNUSABLE as error:
                    if "is full" not in str(error) or not self.make_room():
                        raise
                    watch_keys.clear()
                    return self._transact_on_sqlite("BEGIN IMMEDIATE", perform)
            with self.engine.begin() as connection:
                # One writer at a time, so that event numbers grow in the order of commits.
                lock = sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_WRITER_LOCK))
                connection.execute(lock)
                return perform(connection)

        loop = asyncio.get_running_loop()

        def commit_and_wake() -> T:
            result = commit()
            # Called in the thread, because the awaiting task may be cancelled during the commit.
            loop.call_soon_threadsafe(self._wake, watch_keys)
            return result

        return await self._in_thread(self._writer, commit_and_wake)

    def _wake(self, keys: set[str]) -> None:
        for key in ("", *keys):
            for watch in self._watches.get(key, ()):
                watch.wake()

    async def read(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work in one read-only transaction, a consistent snapshot."""
        return await self._in_thread(self._readers, lambda: self._read(work, *args, **kwargs))

    async def glance(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read a row or two in one transaction.

        On SQLite it blocks the event loop, but for less time than a thread switch would take.
        """
        if not self.is_sqlite:
            return await self.read(work, *args, **kwargs)
        with self._translated_errors():
            return self._read(work, *args, **kwargs)

    def _read(self, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.is_sqlite:
            return self._transact_on_sqlite("BEGIN", work, *args, **kwargs)
        # The default isolation level of PostgreSQL takes a new snapshot for each statement.
        reading = self.engine.connect().execution_options(isolation_level="REPEATABLE READ")
        with reading as connection, connection.begin():
            return work(connection, *args, **kwargs)

    def _transact_on_sqlite(
        self, begin: str, work: TransactionFunction[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one transaction on the connection of this thread.

        An unexpected error discards the connection, because its state is unknown.
        """
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            options = {"isolation_level": "AUTOCOMMIT", _OWN_TRANSACTIONS: True}
            connection = self.engine.connect().execution_options(**options)
            self._own.connection = connection
            self._thread_connections.add(connection)
        # Executed by the driver: SQLAlchemy's own BEGIN and COMMIT cost as much as a query.
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
            self._thread_connections.discard(connection)
            connection.invalidate()
            connection.close()
            raise
        return result

    def reserve(self) -> None:
        """Reserve the database for this daemon until its process ends.

        Raise Unavailable if another daemon uses it.
        """
        if self.is_sqlite:
            return  # the file is in a home, which has a lock of its own
        self._reservation = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try_lock = sa.select(sa.func.pg_try_advisory_lock(_POSTGRES_DAEMON_LOCK))
        deadline = time.monotonic() + _RESERVATION_S
        # The server may need a moment to notice the death of the previous daemon.
        while not self._reservation.execute(try_lock).scalar():
            if time.monotonic() > deadline:
                raise Unavailable(
                    "Another daemon uses this database.",
                    hint="Stop it, or use another database for this daemon.",
                )
            time.sleep(0.1)

    @contextmanager
    def watch(self, *keys: str) -> Iterator["DatabaseWatch"]:
        """Return a watch that later writes of this process wake.

        With keys, only writes that notify one of them do (see `notify_watches`).
        """
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
        with self._translated_errors():
            return await asyncio.get_running_loop().run_in_executor(threads, transaction)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors of the database into errors for people; remember damage."""
        try:
            yield
        except (sa.exc.DatabaseError, sqlite3.DatabaseError) as error:
            # SQLite reports damage by this very class; other errors have subclasses.
            cause = getattr(error, "orig", error)
            if type(cause) is sqlite3.DatabaseError:
                self._damage = str(cause)
            if (problem := self.problem) is not None:
                raise problem from error
            if isinstance(error, _UNUSABLE):
                raise Unavailable(
                    f"The database is unavailable: {cause}.", hint=_format_hint(str(cause))
                ) from error
            raise

    async def checkpoint(self) -> None:
        """Move SQLite's write-ahead log into the database file."""
        if self.is_sqlite and self.problem is None:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._checkpoint)

    def _checkpoint(self) -> None:
        with suppress(sqlite3.OperationalError), self.engine.connect() as connection:
            # SQLAlchemy would start a transaction, in which SQLite refuses a checkpoint.
            driver: Any = connection.connection.driver_connection
            # Wait for readers, which can prevent a complete checkpoint, but not for long.
            driver.execute("PRAGMA busy_timeout=2000")
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Wait for active transactions and close all connections."""
        if self._reservation is not None:
            self._reservation.close()
        self._writer.shutdown()
        self._readers.shutdown()
        for connection in self._thread_connections:
            connection.close()
        self.engine.dispose()


def _format_hint(cause: str) -> str:
    if "disk" in cause or "full" in cause:
        return "Check the free disk space and the daemon's log; nothing was changed."
    return "Check the daemon's log; nothing was changed."


def notify_watches(connection: sa.Connection, keys: Iterable[str]) -> None:
    """Wake the watches for these keys after the commit of this transaction."""
    connection.info.get(_WATCH_KEYS, set()).update(keys)


class DatabaseWatch:
    """A signal for changes: `with db.watch() as watch:` around a loop of reading and waiting."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Return after the next write or a timeout; a write since the last wait counts."""
        # Before Python 3.12, asyncio.wait_for swallows a cancellation that coincides with a write.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        self._event.clear()
