"""Which process is meant: boot id, pid and start time together; a bare pid is never signalled."""

import asyncio
import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]

from kapelle.runner.shim import tree

_MAX_PID = 2**22
_POLL_S = 0.5


@functools.cache
def boot_id() -> str:
    """What names this boot of the machine."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"boot-{int(psutil.boot_time())}"


@dataclass(frozen=True)
class Identity:
    """One process, for ever: no later process can be mistaken for it."""

    boot_id: str
    pid: int
    start: int

    @classmethod
    def from_json(cls, fields: object) -> "Identity":
        """An identity out of untrusted JSON; ValueError if it cannot be one."""
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        boot, pid, start = (fields.get(name) for name in ("boot_id", "pid", "start"))
        if not isinstance(boot, str) or type(pid) is not int or type(start) is not int:
            raise ValueError("boot_id, pid or start is missing")
        if not 1 < pid <= _MAX_PID:
            raise ValueError("the pid is out of range")
        return cls(boot, pid, start)

    @property
    def same_boot(self) -> bool:
        return self.boot_id == boot_id()

    def is_alive(self) -> bool:
        """Whether this very process runs; a zombie does not."""
        return self.same_boot and tree.start_time(self.pid) == self.start

    def send(self, number: int) -> bool:
        """Signal this very process; False if it is dead."""
        return self.same_boot and tree.send(self.pid, self.start, number)

    async def wait_until_dead(self) -> None:
        """Return once this very process has ended, be it our child or not.

        By pidfd, without polling. Where there is none (macOS) its start time is compared every
        half second, which is weaker: an end is seen late.
        """
        if not tree.HAS_PIDFD:
            while self.is_alive():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            return
        pidfd = tree.open_pidfd(self.pid, self.start) if self.same_boot else None
        if pidfd is None:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)


def current(pid: int) -> Identity | None:
    """The identity of the process that has this pid now."""
    start = tree.start_time(pid)
    return None if start is None else Identity(boot_id(), pid, start)
