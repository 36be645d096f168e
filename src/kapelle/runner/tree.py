"""Kills what a dead shim left behind."""

import os
import signal
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]

from kapelle.runner import cgroup, procs
from kapelle.runner.rundir import MARKER
from kapelle.runner.subtree import kill_leaf, remove_leaf

LIMIT_S = 10.0
_PAUSE_S = 0.01


def kill(process_dir: Path, leaf: Path | None) -> list[int]:
    """Kill every process of a run, by its cgroup and by its mark; returns who survived 10 s."""
    limit = time.monotonic() + LIMIT_S
    while True:
        if leaf is not None:
            kill_leaf(str(leaf))
        survivors = [pid for pid in marked(process_dir) if _kill_marked(pid, process_dir)]
        if not survivors and not (leaf is not None and cgroup.is_populated(leaf)):
            break
        if time.monotonic() > limit:
            return survivors
        time.sleep(_PAUSE_S)
    if leaf is not None:
        remove_leaf(str(leaf))
    return []


def marked(process_dir: Path) -> list[int]:
    """The pids of all processes that carry the mark of a run in their environment."""
    mark = MARKER.encode() + b"=" + os.fsencode(process_dir)
    pids = procs.all_pids() if procs.LINUX else psutil.pids()
    return [pid for pid in pids if pid != os.getpid() and mark in _environment(pid)]


def _kill_marked(pid: int, process_dir: Path) -> bool:
    """Kill a process if it carries the mark; whether it did."""
    start = procs.start_time(pid)
    mark = MARKER.encode() + b"=" + os.fsencode(process_dir)
    # The start time is older than this look, and is compared again once the pid is pinned.
    if start is None or mark not in _environment(pid):
        return False
    procs.send(pid, start, signal.SIGKILL)
    return True


def _environment(pid: int) -> list[bytes]:
    try:
        if procs.LINUX:
            return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        pairs = psutil.Process(pid).environ().items()
        return [os.fsencode(f"{name}={value}") for name, value in pairs]
    except (OSError, psutil.Error):
        return []
