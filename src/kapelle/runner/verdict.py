"""The exit record of a run as an `Ended`, read from the disk or declared by the daemon."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.domain.task import Exit
from kapelle.runner import rundir
from kapelle.runner.launch import Ended


class UnreadableVerdict(ValueError):
    """The exit record is there, but it cannot be read."""


def read(process_dir: Path) -> Ended | None:
    """The verdict on a run, None if there is none yet; UnreadableVerdict if it makes no sense."""
    data = rundir.read(str(process_dir / rundir.EXIT))
    if data is None:
        return None
    try:
        return _parse(json.loads(data))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UnreadableVerdict(f"exit.json cannot be read: {error}") from error


def set_unreadable_aside(process_dir: Path) -> None:
    path = process_dir / rundir.EXIT
    path.rename(path.with_suffix(".unreadable"))


def declare(process_dir: Path, kind: str, detail: str | None, survivors: int = 0) -> None:
    """Record a verdict of the daemon's own, unless there is one already."""
    reason = rundir.read(str(process_dir / rundir.STOP))
    started_at = None if kind == "not_started" else _started_at(process_dir)
    now = time.time()
    record = {
        "protocol": rundir.PROTOCOL,
        "kind": kind,
        "ended_by": None if reason is None else "stop",
        "stop_reason": None if reason is None else reason.decode("utf-8", "replace"),
        "detail": detail,
        "out_bytes": rundir.size(str(process_dir / rundir.OUT)),
        "err_bytes": rundir.size(str(process_dir / rundir.ERR)),
        "started_at": started_at,
        "ended_at": now,
        "duration_s": 0.0 if started_at is None else max(0.0, now - started_at),
        "leftovers": survivors,
    }
    rundir.publish(str(process_dir / rundir.EXIT), json.dumps(record).encode(), durable=True)


def agent_pid(process_dir: Path) -> int | None:
    """The agent's pid as the shim noted it, to be shown and never to be signalled."""
    pid = _run_facts(process_dir).get("agent", {}).get("pid")
    return pid if isinstance(pid, int) else None


def _started_at(process_dir: Path) -> float | None:
    at = _run_facts(process_dir).get("started_at")
    return float(at) if isinstance(at, int | float) and 0 < at <= time.time() else None


def _run_facts(process_dir: Path) -> dict[str, Any]:
    try:
        facts = json.loads(rundir.read(str(process_dir / rundir.RUN)) or b"{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(facts, dict) or not isinstance(facts.get("agent", {}), dict):
        return {}
    return facts


def _parse(record: dict[str, Any]) -> Ended:
    ended_by = record.get("ended_by")
    if ended_by not in (None, "timeout", "stop"):
        raise ValueError("unknown ended_by")
    return Ended(
        exit=_exit(record),
        ended_by=ended_by,
        stop_reason=record.get("stop_reason"),
        detail=record.get("detail"),
        out_bytes=int(record["out_bytes"]),
        err_bytes=int(record["err_bytes"]),
        started_at=None if record["started_at"] is None else _moment(record["started_at"]),
        ended_at=_moment(record["ended_at"]),
        duration_s=float(record["duration_s"]),
        leftovers=int(record.get("leftovers", 0)),
        cpu_s=float(record.get("cpu_s", 0.0)),
        max_rss_bytes=int(record.get("max_rss_bytes", 0)),
    )


def _exit(record: dict[str, Any]) -> Exit:
    found = Exit(kind=record["kind"], code=record.get("code"), signal=record.get("signal"))
    if (found.kind == "exited") != (found.code is not None):
        raise ValueError("an exit code belongs to a process that exited")
    if (found.kind == "signaled") != (found.signal is not None):
        raise ValueError("a signal belongs to a process that was signalled")
    return found


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
