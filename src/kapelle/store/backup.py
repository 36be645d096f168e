"""Online backups of the SQLite file, their retention by age, and checks at the start."""

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
# Only one daemon uses a home. So an unfinished copy belongs to a dead process if this is free.
_copy_lock = threading.Lock()


# Retention: the number of newest copies, then of days and of weeks of which one copy is kept.
Grades = tuple[int, int, int]


def create(database: Path, directory: Path, grades: Grades = (24, 7, 4)) -> Path:
    """Copy the database while it is in use into a new directory; delete old copies.

    The new backup is always kept. A copy with more than twice the rows of every other kept copy is
    kept too: the database may have lost rows since. Concurrent callers wait for each other.
    """
    with _copy_lock:
        for leftover in directory.glob(".2*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with closing(sqlite3.connect(database, timeout=30)) as source:
            new_copy = _copy(source, database.name, directory)
        copies = [new_copy, *_select_by_age(directory, grades)]
        for old in reversed(list_backups(directory)):
            if old in copies:
                continue
            number = count_rows(old / database.name)
            if any(count_rows(copy / database.name) * 2 >= number for copy in copies):
                shutil.rmtree(old)
            else:
                copies.append(old)
        return new_copy


def _select_by_age(directory: Path, grades: Grades) -> Iterator[Path]:
    """Yield the newest copies, and the newest copy of each of the last days and weeks."""
    newest, days, weeks = grades
    copies = sorted(_read_times(directory), reverse=True)
    for _, path in copies[:newest]:
        yield path
    for unit, count in (("%Y%j", days), ("%G%V", weeks)):
        # From old to new, so that the newest copy of a day or week remains.
        by_unit = {moment.strftime(unit): path for moment, path in reversed(copies)}
        yield from list(reversed(by_unit.values()))[:count]


def count_rows(database: Path) -> int:
    """Return the number of tasks, runs and events in a database; 0 for an unreadable one."""
    tables = ("tasks", "runs", "events")
    query = "SELECT " + "+".join(f"(SELECT count(*) FROM {table})" for table in tables)
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
        with closing(connection):
            return int(connection.execute(query).fetchone()[0])
    except sqlite3.Error:
        return 0


def create_from(source: sqlite3.Connection, name: str, directory: Path) -> Path:
    """Copy the database of a connection, whose file may be deleted, into a new directory."""
    with _copy_lock:
        return _copy(source, name, directory)


def _copy(source: sqlite3.Connection, database: str, directory: Path) -> Path:
    name = datetime.now(UTC).strftime(_NAME)
    partial = directory / f".{name}"
    # The parent is missing too if somebody deleted the home.
    for folder in (directory.parent, directory):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial.mkdir(mode=0o700)
    try:
        target = partial / database
        with closing(sqlite3.connect(target)) as new:
            source.backup(new, pages=1000, sleep=0.01)
        target.chmod(0o600)
        problem = _find_damage(target)
        if problem is not None:
            raise sqlite3.DatabaseError(problem)
        return partial.rename(directory / name)
    except BaseException:
        # Otherwise every try would fill a full disk further.
        shutil.rmtree(partial, ignore_errors=True)
        raise


def has_recent(directory: Path, seconds: float) -> bool:
    """Return whether there is a backup from the last seconds.

    A backup from the future does not count: the clock was wrong.
    """
    now = datetime.now(UTC)
    ages = [(now - moment).total_seconds() for moment, _ in _read_times(directory)]
    return any(0 <= age < seconds for age in ages)


def _read_times(directory: Path) -> Iterator[tuple[datetime, Path]]:
    for path in list_backups(directory):
        with suppress(ValueError):  # a directory that a person made
            yield datetime.strptime(path.name, _NAME).replace(tzinfo=UTC), path


def make_private(path: Path) -> None:
    """Make a database file readable by its owner only; SQLite's files beside it inherit that."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)


def list_backups(directory: Path) -> list[Path]:
    """Return the directories of all backups, the oldest first."""
    return sorted(path for path in directory.glob("2*") if path.is_dir())


def require_not_lost(path: Path, backups: Path, attempts: Path) -> None:
    """Raise Unavailable if the database is empty although backups or attempts show earlier work."""
    if count_rows(path):
        return
    has_full_backup = any(count_rows(copy / path.name) for copy in list_backups(backups))
    if has_full_backup or any(attempts.iterdir()):
        raise Unavailable(
            f"The database {path} is empty or missing, but there was work here before.",
            hint=format_advice(path, backups)
            + f" To start with an empty history, move {attempts} and {backups} away.",
        )


def format_advice(path: Path, backups: Path) -> str:
    """Return the instructions to replace a lost or damaged database."""
    copies = [copy for copy in list_backups(backups) if (copy / path.name).exists()]
    if not copies:
        return f"There is no backup in {backups}; move {path} away to start with an empty history."
    most = max(count_rows(copy / path.name) for copy in copies)
    # The newest copy that has at least half of the rows of the fullest one.
    best = next(copy for copy in reversed(copies) if count_rows(copy / path.name) * 2 >= most)
    return f"Move {path} and its -wal and -shm files away and copy {best / path.name} there."


def require_sound(path: Path, backups: Path) -> None:
    """Raise Unavailable, with the backup to use, if the file exists and is damaged."""
    if not path.exists():
        return
    problem = _find_damage(path)
    if problem is not None:
        hint = format_advice(path, backups)
        raise Unavailable(f"The database {path} is damaged: {problem}.", hint=hint)


def _find_damage(path: Path) -> str | None:
    """Return the first damage that SQLite finds in a database; None if it is sound."""
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            verdict = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)
    if verdict == "ok":
        return None
    return verdict
