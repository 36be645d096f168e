"""Which process is meant: boot id, pid and start time together; a bare pid is never signalled."""

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
    """What names this boot of the machine."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"boot-{int(psutil.boot_time())}"


class Identity(Record):
    """One process, for ever: no later process can be mistaken for it."""

    boot_id: str
    pid: int = Field(strict=True, gt=1, le=_MAX_PID)
    start: StrictInt

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
        if self.same_boot:
            pidfd = tree.open_pidfd(self.pid, self.start)
        else:
            pidfd = None
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
    if start is None:
        return None
    # As it is: in a container, this process may well be the first.
    return Identity.model_construct(boot_id=boot_id(), pid=pid, start=start)
