"""What the kernel says about processes, and signals that cannot hit the wrong one.

Standard library only. A pid alone never names a process here: its start time goes with it.
"""

import contextlib
import os
import signal
import sys

from . import libc

LINUX = sys.platform == "linux"


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = _has_pidfd()


class Stat:
    """State, parent and start time of a process."""

    __slots__ = ("parent", "start", "state")

    def __init__(self, text: bytes) -> None:
        fields = text[text.rfind(b")") + 2 :].split()
        self.state = fields[0]
        self.parent = int(fields[1])
        self.start = int(fields[19])


def read_stat(pid: int) -> Stat | None:
    """What /proc says about a process; None if there is none."""
    try:
        return Stat(_read(f"/proc/{pid}/stat"))
    except (OSError, IndexError, ValueError):
        return None


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def set_oom_score(score: int) -> bool:
    """Say how soon the kernel may kill this process for its memory; whether that was allowed."""
    try:
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(file, b"%d" % score)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def start_time(pid: int) -> int | None:
    """When a living process was started, in the kernel's units; None for a dead one or a zombie."""
    if not LINUX:
        return libc.darwin_start_time(pid)
    stat = read_stat(pid)
    return None if stat is None or stat.state in (b"Z", b"X") else stat.start


def open_pidfd(pid: int, start: int) -> int | None:
    """A pidfd of exactly this process; None if it is dead."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError, ValueError):
        return None
    # Only now is the pid pinned, so only now does the comparison mean anything.
    if start_time(pid) == start:
        return pidfd
    os.close(pidfd)
    return None


def send(pid: int, start: int, *signals: int) -> bool:
    """Signal exactly this process; False if it is dead."""
    if not HAS_PIDFD:
        return _send_by_pid(pid, start, *signals)
    pidfd = open_pidfd(pid, start)
    if pidfd is None:
        return False
    try:
        for number in signals:
            signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def _send_by_pid(pid: int, start: int, *signals: int) -> bool:
    if start_time(pid) != start:
        return False
    with contextlib.suppress(OSError):
        for number in signals:
            os.kill(pid, number)
        return True
    return False


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if LINUX else []


def descendants(root: int) -> list[tuple[int, int]]:
    """Pid and start time of every living descendant of a process, as far as one look shows."""
    stats = {pid: stat for pid in all_pids() if (stat := read_stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.pop(queue.pop(), [])
        found += below
        queue += below
    return [(pid, stats[pid].start) for pid in found if stats[pid].state not in (b"Z", b"X")]
