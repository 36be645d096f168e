"""What the daemon does with a run that somebody has claimed: watch it, conclude it."""

import asyncio
import signal
from pathlib import Path

from kapelle.runner import cgroup, rundir, tree, verdict
from kapelle.runner.claims import Claim
from kapelle.runner.identity import Identity
from kapelle.runner.launch import Ended
from kapelle.runner.verdict import UnreadableVerdict
from kapelle.runner.watching import wait_until_dead

STUCK_S = 10.0
_FACTS_TRIES = 250
_FACTS_PAUSE_S = 0.02


async def agent_pid(shim: Identity, process_dir: Path) -> int | None:
    """The agent's pid, as soon as a living shim has noted it."""
    for _ in range(_FACTS_TRIES):
        pid = verdict.agent_pid(process_dir)
        if pid is not None or not shim.is_alive():
            return pid
        await asyncio.sleep(_FACTS_PAUSE_S)
    return None


async def watch(shim: Identity, stopped: asyncio.Event, grace_s: float) -> str | None:
    """Wait for a shim to end; one that ignores a stop is killed, and that is what is returned."""
    death = asyncio.create_task(wait_until_dead(shim))
    stop = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({death, stop}, return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            return None
        # A daemon that crashed may have noted the stop and never have sent the signal.
        shim.send(signal.SIGTERM)
        await asyncio.wait({death}, timeout=grace_s + STUCK_S)
        if death.done():
            return None
        shim.send(signal.SIGKILL)
        await death
        return "the supervisor did not answer and was killed"
    finally:
        death.cancel()
        stop.cancel()


async def conclude(process_dir: Path, claim: Claim, reason: str | None, root: Path | None) -> Ended:
    """The verdict on a run whose shim is dead."""
    try:
        if (found := verdict.read(process_dir)) is not None:
            return found
    except UnreadableVerdict as error:
        reason = str(error)
    if not claim.owner.same_boot:
        return await declare(process_dir, "lost", "the machine was rebooted")
    leaf = cgroup.trusted_leaf(claim.cgroup, process_dir)
    return await lose(process_dir, leaf, root, reason or "the supervisor was killed")


async def lose(process_dir: Path, leaf: Path | None, root: Path | None, detail: str) -> Ended:
    """Kill whatever is left of a run and declare that nobody saw it end."""
    if leaf is None and root is not None and cgroup.leaf(root, process_dir).is_dir():
        leaf = cgroup.leaf(root, process_dir)
    survivors = await asyncio.to_thread(tree.kill, process_dir, leaf)
    if survivors:
        detail += f"; kill_incomplete: {len(survivors)} processes survived"
    return await declare(process_dir, "lost", detail, len(survivors))


async def declare(process_dir: Path, kind: str, detail: str | None, survivors: int = 0) -> Ended:
    """Make a verdict last; what a shim recorded meanwhile goes first."""
    while True:
        try:
            verdict.declare(process_dir, kind, detail, survivors)
            if (found := verdict.read(process_dir)) is not None:
                return found
        except UnreadableVerdict:
            verdict.set_unreadable_aside(process_dir)
        except OSError as error:
            if error.errno not in rundir.DISK_TROUBLE:
                raise
            await asyncio.sleep(rundir.RETRY_S)
