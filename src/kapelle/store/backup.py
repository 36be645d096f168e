"""Online backups of the SQLite file, graded by age, and the checks on start."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from kapelle.domain.errors import Unavailable

_NAME = "%Y%m%dT%H%M%S.%fZ"
# One daemon has one home, so what is unfinished while this is free belongs to a dead process.
_making = threading.Lock()


# How many of the newest copies are kept, and of how many days and weeks the newest one.
Grades = tuple[int, int, int]


def create(database: Path, directory: Path, grades: Grades = (24, 7, 4)) -> Path:
    """Copy the database while it is in use into a new directory; drop old ones by their grades.

    The new backup is always kept, and so is a copy that has more than twice the rows of every
    other that is kept. Of several callers at once, one waits for the other.
    """
    with _making:
        for leftover in directory.glob(".2*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with closing(sqlite3.connect(database, timeout=30)) as source:
            finished = _make(source, database.name, directory)
        kept = [finished, *_graded(directory, grades)]
        for old in reversed(list_backups(directory)):
            if old in kept:
                continue
            found = count_rows(old / database.name)
            if any(count_rows(copy / database.name) * 2 >= found for copy in kept):
                shutil.rmtree(old)
            else:
                kept.append(old)
        return finished


def _graded(directory: Path, grades: Grades) -> Iterator[Path]:
    """The newest copies, the newest one of each of the last days, and of each of the weeks."""
    newest, days, weeks = grades
    copies = sorted(_moments(directory), reverse=True)
    yield from (path for _, path in copies[:newest])
    for unit, count in (("%Y%j", days), ("%G%V", weeks)):
        first = {moment.strftime(unit): path for moment, path in reversed(copies)}
        yield from list(reversed(first.values()))[:count]


def count_rows(database: Path) -> int:
    """How much a database holds: tasks, runs and events; 0 for one that cannot be read."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as found:
            counts = (f"(SELECT count(*) FROM {table})" for table in ("tasks", "runs", "events"))
            return int(found.execute(f"SELECT {'+'.join(counts)}").fetchone()[0])
    except sqlite3.Error:
        return 0


def create_from(source: sqlite3.Connection, name: str, directory: Path) -> Path:
    """Copy what a connection sees, whose file may be gone, into a new directory; drop nothing."""
    with _making:
        return _make(source, name, directory)


def _make(source: sqlite3.Connection, database: str, directory: Path) -> Path:
    name = datetime.now(UTC).strftime(_NAME)
    unfinished = directory / f".{name}"
    # Of a home that is gone, its parent is as well.
    for wanted in (directory.parent, directory):
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished.mkdir(mode=0o700)
    try:
        target = unfinished / database
        with closing(sqlite3.connect(target)) as new:
            source.backup(new, pages=1000, sleep=0.01)
        target.chmod(0o600)
        if (verdict := _verdict(target)) != "ok":
            raise sqlite3.DatabaseError(verdict)
        return unfinished.rename(directory / name)
    except BaseException:
        # A full disk must not become fuller with every try.
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def has_recent(directory: Path, seconds: float) -> bool:
    """Whether there is a backup of the last so many seconds; one of the future does not count."""
    now = datetime.now(UTC)
    return any(0 <= (now - moment).total_seconds() < seconds for moment, _ in _moments(directory))


def _moments(directory: Path) -> Iterator[tuple[datetime, Path]]:
    for path in list_backups(directory):
        with suppress(ValueError):  # a person's directory
            yield datetime.strptime(path.name, _NAME).replace(tzinfo=UTC), path


def make_private(path: Path) -> None:
    """Let a database file, and those that SQLite puts beside it, be readable by its owner only."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)


def list_backups(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("2*") if path.is_dir())


def require_not_lost(path: Path, backups: Path, attempts: Path) -> None:
    """Raise if the database is empty where others show that it has not always been."""
    if count_rows(path):
        return
    fullest = max(
        list_backups(backups), key=lambda copy: count_rows(copy / path.name), default=None
    )
    if any(attempts.iterdir()) or (fullest is not None and count_rows(fullest / path.name)):
        raise Unavailable(
            f"The database {path} is empty or gone, but there was work here before.",
            hint=format_advice(path, backups)
            + f" To start with an empty history, move {attempts} and {backups} away.",
        )


def format_advice(path: Path, backups: Path) -> str:
    """What to do about a database that is lost or damaged."""
    copies = [copy for copy in list_backups(backups) if (copy / path.name).exists()]
    if not copies:
        return f"There is no backup in {backups}; move {path} away to start with an empty history."
    most = max(count_rows(copy / path.name) for copy in copies)
    # The newest one that has not lost most of it.
    best = next(copy for copy in reversed(copies) if count_rows(copy / path.name) * 2 >= most)
    return f"Move {path} and its -wal and -shm files away and copy {best / path.name} there."


def require_sound(path: Path, backups: Path) -> None:
    """Raise unless the file is absent or a sound database; say which backup can replace it."""
    if path.exists() and (verdict := _verdict(path)) != "ok":
        hint = format_advice(path, backups)
        raise Unavailable(f"The database {path} is damaged: {verdict}.", hint=hint)


def _verdict(path: Path) -> str:
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            return str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)
