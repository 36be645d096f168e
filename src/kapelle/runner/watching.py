"""Waiting for the end of a process that need not be our child."""

import asyncio
import os

from kapelle.runner import procs
from kapelle.runner.identity import Identity

_POLL_S = 0.5


async def wait_until_dead(who: Identity) -> None:
    """Return once this very process has ended.

    By pidfd, without polling. Where there is none (macOS) its start time is compared every half
    second, which is weaker: an end is seen late.
    """
    if not procs.HAS_PIDFD:
        while who.is_alive():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return
    pidfd = who.open_pidfd()
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
