"""All processes below the shim, as a cgroup leaf or as descendants; standard library only."""

import contextlib
import os
import signal
import time

from . import procs

KILL_LIMIT_S = 10.0
_ROUNDS = 20


class Subtree:
    """The agent and everything it started."""

    def __init__(self) -> None:
        self.leaf: str | None = None
        self.agent: int | None = None

    def members(self) -> list[tuple[int, int]]:
        """Pid and start time of every living process below the shim."""
        if self.leaf is None:
            return procs.descendants(os.getpid())
        before = leaf_pids(self.leaf)
        starts = [(pid, procs.start_time(pid)) for pid in before]
        # A pid that was reused while we looked is no longer listed.
        after = set(leaf_pids(self.leaf))
        return [(pid, start) for pid, start in starts if start is not None and pid in after]

    def terminate(self) -> None:
        """Ask every process to end; a stopped one is continued, or it would never hear it."""
        self._signal_group(signal.SIGTERM, signal.SIGCONT)
        for pid, start in self.members():
            procs.send(pid, start, signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        """Kill every process; the caller repeats this until it has no children."""
        self._signal_group(signal.SIGKILL)
        if self.leaf is not None:
            kill_leaf(self.leaf)
        # What left the cgroup is still below us; what is forked meanwhile needs another round.
        for _ in range(_ROUNDS):
            found = procs.descendants(os.getpid())
            for pid, start in found:
                procs.send(pid, start, signal.SIGKILL)
            if not found:
                return

    def _signal_group(self, *signals: int) -> None:
        # Without /proc the process group is all that can be found, and what left it is not.
        if not procs.LINUX and self.agent is not None:
            with contextlib.suppress(OSError):
                for number in signals:
                    os.killpg(self.agent, number)

    def kill_to_the_end(self) -> None:
        """Kill until no child is left, or for as long as that makes sense."""
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
        if self.leaf is not None:
            remove_leaf(self.leaf)


def make_leaf(leaf: str) -> bool:
    """Make a cgroup for one run; whether there is one now."""
    try:
        # Another daemon of the same home may have removed the empty directory above.
        os.makedirs(leaf, exist_ok=True)
    except OSError:
        return False
    return True


def leaf_pids(leaf: str) -> list[int]:
    try:
        with open(f"{leaf}/cgroup.procs", "rb") as file:
            return [pid for line in file if (pid := int(line)) > 0]
    except OSError:
        return []


def kill_leaf(leaf: str) -> None:
    with contextlib.suppress(OSError), open(f"{leaf}/cgroup.kill", "wb") as file:
        file.write(b"1")


def remove_leaf(leaf: str) -> None:
    """Remove an empty leaf and what the agent made below it."""
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
