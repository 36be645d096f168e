"""Find processes, signal them by pid and start time, and kill everything below a shim.

Standard library only. A pid is always accompanied by its start time, because the kernel reuses
pids.
"""

import contextlib
import os
import signal
import sys
import time

from .system import read_darwin_start_time

LINUX = sys.platform == "linux"
KILL_LIMIT_S = 10.0
_ROUNDS = 20


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = _has_pidfd()


def _read_stat(pid: int) -> tuple[bool, int, int] | None:
    """Return from /proc whether a process lives, its parent and its start time; None if absent."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(4096) or b""
        state, parent, *more = text[text.rfind(b")") + 2 :].split()
        return state not in (b"Z", b"X"), int(parent), int(more[17])
    except (OSError, IndexError, ValueError):
        return None


def set_oom_score(score: int) -> bool:
    """Set how soon the kernel kills this process for memory; return whether it may be set."""
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
    """Return the start time of a living process in the kernel's units; None for a zombie too."""
    if not LINUX:
        return read_darwin_start_time(pid)
    is_alive, _, start = _read_stat(pid) or (False, 0, 0)
    return start if is_alive else None


def open_pidfd(pid: int, start: int) -> int | None:
    """Return a pidfd of exactly this process; None if it is dead."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError, ValueError):
        return None
    # The pidfd pins the pid, so the comparison is reliable from here on.
    if start_time(pid) == start:
        return pidfd
    os.close(pidfd)
    return None


def send(pid: int, start: int, *signals: int) -> bool:
    """Send signals to exactly this process; return False if it is dead."""
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


def list_pids() -> list[int]:
    """Return the pids of all processes; none on macOS."""
    if LINUX:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def list_descendants(root: int) -> list[tuple[int, int]]:
    """Return pid and start time of every living descendant found in one pass over /proc."""
    children: dict[int, list[tuple[bool, int, int]]] = {}
    for pid in list_pids():
        if (stat := _read_stat(pid)) is not None:
            is_alive, parent, start = stat
            children.setdefault(parent, []).append((is_alive, pid, start))
    living = list[tuple[int, int]]()
    queue = [root]
    while queue:
        for is_alive, pid, start in children.pop(queue.pop(), ()):
            queue.append(pid)
            living += [(pid, start)] if is_alive else []
    return living


class Subtree:
    """The agent and every process it started."""

    def __init__(self) -> None:
        self.leaf: str | None = None
        self.agent: int | None = None

    def terminate(self) -> None:
        """Send SIGTERM to every process; SIGCONT wakes stopped ones to receive it."""
        self._signal_group(signal.SIGTERM, signal.SIGCONT)
        for pid, start in list_descendants(os.getpid()):
            send(pid, start, signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to every process; the caller repeats this until it has no children."""
        self._signal_group(signal.SIGKILL)
        if self.leaf is not None:
            kill_leaf(self.leaf)
        # Processes that left the cgroup are still descendants. Those forked meanwhile need another
        # round.
        for _ in range(_ROUNDS):
            living = list_descendants(os.getpid())
            for pid, start in living:
                send(pid, start, signal.SIGKILL)
            if not living:
                return

    def _signal_group(self, *signals: int) -> None:
        # Without /proc only the process group can be found, not the processes that left it.
        if not LINUX and self.agent is not None:
            with contextlib.suppress(OSError):
                for number in signals:
                    os.killpg(self.agent, number)

    def kill_to_the_end(self) -> None:
        """Kill until no child is left, at most for 10 seconds."""
        limit = time.monotonic() + KILL_LIMIT_S
        while time.monotonic() < limit:
            self.kill()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.01)

    def remove(self) -> None:
        """Remove the cgroup of the execution."""
        if self.leaf is not None:
            remove_leaf(self.leaf)


def make_leaf(leaf: str) -> bool:
    """Make a cgroup for one execution; return whether it exists now."""
    try:
        # Another daemon of the same home may have removed the empty parent directory.
        os.makedirs(leaf, exist_ok=True)
    except OSError:
        return False
    return True


def kill_leaf(leaf: str) -> None:
    """Kill all processes of a cgroup, by the kernel."""
    with contextlib.suppress(OSError), open(f"{leaf}/cgroup.kill", "wb") as file:
        file.write(b"1")


def remove_leaf(leaf: str) -> None:
    """Remove an empty leaf and the cgroups that the agent made below it."""
    with contextlib.suppress(OSError):
        os.rmdir(leaf)
        return
    for _ in range(20):
        for directory, _, _ in os.walk(leaf, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if not os.path.isdir(leaf):
            return
        time.sleep(0.005)
