"""The file beside its output in which an agent notes its usage while it works."""

import glob
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kapelle.runner.output import lines_of

_NOTE = "side_log.json"


def remember(process_dir: Path, pattern: str | None, session_id: str | None) -> None:
    """Keep where it will be, and what it holds already, for a daemon that comes later."""
    if pattern is not None:
        known = find(pattern, session_id) if session_id else None
        begin = known.stat().st_size if known else 0
        note = {"pattern": pattern, "from": begin, "session": session_id}
        (process_dir / _NOTE).write_text(json.dumps(note), encoding="utf-8")


@dataclass(frozen=True)
class SideLog:
    """Where it is, and the offset from which on it is about this attempt."""

    pattern: str
    begin: int
    session_id: str | None  # the one that is gone on with, unless it is forked


def of_run(process_dir: Path) -> SideLog | None:
    try:
        note = json.loads((process_dir / _NOTE).read_bytes())
        session = note["session"]
        return SideLog(str(note["pattern"]), int(note["from"]), session and str(session))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find(pattern: str, session_id: str | None) -> Path | None:
    """The newest file that fits; None while there is none, or the session is not known."""
    if "{session}" in pattern:
        if session_id is None:
            return None
        pattern = pattern.replace("{session}", glob.escape(session_id))
    found = glob.glob(pattern, recursive=True)
    return Path(max(found)) if found else None


def lines(process_dir: Path, session_id: str | None) -> Iterator[str]:
    """All that is noted there of this attempt, which may be nothing."""
    log = of_run(process_dir)
    path = find(log.pattern, session_id or log.session_id) if log else None
    if log is not None and path is not None:
        yield from lines_of(path, max(0, path.stat().st_size - log.begin))
