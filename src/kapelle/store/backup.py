"""Online backups of the SQLite files, a number of which is kept, and the check on start."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from kapelle.domain.errors import Unavailable


def make(databases: list[Path], directory: Path, keep: int) -> Path:
    """Copy the databases while they are in use into a new directory; drop the oldest ones."""
    directory.mkdir(mode=0o700, exist_ok=True)
    name = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    unfinished = directory / f".{name}"
    unfinished.mkdir(mode=0o700)
    for path in databases:
        if path.exists():
            _copy(path, unfinished / path.name)
    finished = unfinished.rename(directory / name)
    for old in sorted(existing(directory))[: -max(keep, 1)]:
        _delete(old)
    for leftover in directory.glob(".2*"):
        _delete(leftover)
    return finished


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


def _delete(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
