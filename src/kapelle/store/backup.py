"""Online backups of the SQLite file, a number of which is kept, and the check on start."""

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


def make(database: Path, directory: Path, keep: int) -> Path:
    """Copy the database while it is in use into a new directory; drop the oldest ones.

    The new backup is always kept, so a keep of 0 means the same as 1. Of several callers at
    once, one waits for the other.
    """
    with _making:
        directory.mkdir(mode=0o700, exist_ok=True)
        for leftover in directory.glob(".2*"):
            shutil.rmtree(leftover, ignore_errors=True)
        finished = _make(database, directory)
        others = [path for path in existing(directory) if path != finished]
        for old in others[: max(len(others) - max(keep, 1) + 1, 0)]:
            shutil.rmtree(old)
        return finished


def _make(database: Path, directory: Path) -> Path:
    name = datetime.now(UTC).strftime(_NAME)
    unfinished = directory / f".{name}"
    unfinished.mkdir(mode=0o700)
    try:
        _copy(database, unfinished / database.name)
        return unfinished.rename(directory / name)
    except BaseException:
        # A full disk must not become fuller with every try.
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def made_within(directory: Path, seconds: float) -> bool:
    """Whether there is a backup of the last so many seconds; one of the future does not count."""
    now = datetime.now(UTC)
    return any(0 <= (now - moment).total_seconds() < seconds for moment in _moments(directory))


def _moments(directory: Path) -> Iterator[datetime]:
    for path in existing(directory):
        with suppress(ValueError):  # a person's directory
            yield datetime.strptime(path.name, _NAME).replace(tzinfo=UTC)


def make_private(path: Path) -> None:
    """Let a database file, and those that SQLite puts beside it, be readable by its owner only."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)


def existing(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("2*") if path.is_dir())


def check(path: Path, backups: Path) -> None:
    """Raise unless the file is absent or a sound database; say which backup can replace it."""
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict == "ok":
        return
    newest = existing(backups)[-1:]
    hint = (
        f"Move {path} and its -wal and -shm files away and copy {newest[0] / path.name} there."
        if newest
        else f"There is no backup in {backups}; move {path} away to start with an empty history."
    )
    raise Unavailable(f"The database {path} is damaged: {verdict}.", hint=hint)


def _copy(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(source, timeout=30)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new, pages=1000, sleep=0.01)
    target.chmod(0o600)
    check(target, target.parent)
