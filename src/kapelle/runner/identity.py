"""Identify a process by boot id, pid and start time; a bare pid is never signalled."""

import asyncio
import functools
import os
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]
from pydantic import Field, StrictInt

from kapelle.domain.task import Record
from kapelle.runner.shim import tree

_MAX_PID = 2**22
_POLL_S = 0.5


@functools.cache
def boot_id() -> str:
    """Return a text that identifies the current boot of this machine."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    # Elsewhere the time of the boot stands for it.
    return f"boot-{int(psutil.boot_time())}"


class Identity(Record):
    """The identity of one process: no later process can be mistaken for it."""

    boot_id: str
    pid: int = Field(strict=True, gt=1, le=_MAX_PID)
    start: StrictInt

    @property
    def is_same_boot(self) -> bool:
        """Tell whether the machine has not been rebooted since the process started."""
        return self.boot_id == boot_id()

    def is_alive(self) -> bool:
        """Tell whether exactly this process runs; a zombie does not."""
        return self.is_same_boot and tree.start_time(self.pid) == self.start

    def send(self, number: int) -> bool:
        """Send a signal to exactly this process; return False if it is dead."""
        return self.is_same_boot and tree.send(self.pid, self.start, number)

    async def wait_until_dead(self) -> None:
        """Return once exactly this process has ended, whether it is our child or not.

        Linux: by pidfd, without polling. Without pidfd (macOS) the start time is compared every
        half second, so an end is noticed up to half a second late.
        """
        if not tree.HAS_PIDFD:
            while self.is_alive():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            return
        if self.is_same_boot:
            pidfd = tree.open_pidfd(self.pid, self.start)
        else:
            pidfd = None
        if pidfd is None:
            return
        loop = asyncio.get_running_loop()
        end = asyncio.Event()
        loop.add_reader(pidfd, end.set)
        try:
            await end.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)


def identify_process(pid: int) -> Identity | None:
    """Return the identity of the process that has this pid now; None if there is none."""
    start = tree.start_time(pid)
    if start is None:
        return None
    # Not validated: in a container this process may have pid 1, which Identity refuses in records.
    return Identity.model_construct(boot_id=boot_id(), pid=pid, start=start)
