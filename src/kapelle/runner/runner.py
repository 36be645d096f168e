"""Executes commands so that the daemon's death neither loses nor repeats them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import weakref
from pathlib import Path
from typing import Any

from kapelle.runner import process_dir as records
from kapelle.runner import process_tree
from kapelle.runner.identity import Identity
from kapelle.runner.process_dir import (
    Launch,
    ProcessClaim,
    ProcessEnd,
    UnreadableRecord,
    read_claim,
    read_exit,
)
from kapelle.runner.shim import files
from kapelle.runner.shim.failpoints import failpoint
from kapelle.runner.spawner_client import Spawner, install

_START_TRIES = 5
_START_PAUSE_S = 0.1
_STUCK_S = 10.0
_TRACES = frozenset({files.CLAIM, files.EXIT, files.INTENT, files.STOP})


class Runner:
    """The daemon's one way to execute a command; every promise rests on the process directory.

    On Linux an end is seen by pidfd and a tree dies by cgroup or subreaper. On macOS ends are
    polled for, and what leaves the agent's process group is found by its environment only.
    """

    def __init__(
        self, home: Path, python: str = sys.executable, *, use_cgroup: bool = True
    ) -> None:
        self._home = home.absolute()
        self._python = python
        self._use_cgroup = use_cgroup
        self._root: Path | None = None
        self._spawner: Spawner | None = None
        self._stops = weakref.WeakValueDictionary[Path, asyncio.Event]()

    @property
    def spawner_pid(self) -> int | None:
        if self._spawner is None:
            return None
        return self._spawner.pid

    async def start(self) -> None:
        """Make ready to execute; what runs already is not touched."""
        # What has no cgroup is a program's, which executes one command by it.
        script = install(self._home)
        self._spawner = Spawner(self._python, script, for_many=self._use_cgroup)
        if self._use_cgroup:
            self._root = process_tree.find_root(self._home)
        if self._root is not None:
            process_tree.sweep(self._root)
        self._spawner.ensure()

    async def close(self) -> None:
        """End the spawner and leave everything that runs alone."""
        if self._spawner is not None:
            await asyncio.to_thread(self._spawner.close)
        if self._root is not None:
            # It can only be removed when no process is left in it.
            with contextlib.suppress(OSError):
                self._root.rmdir()

    async def execute(self, launch: Launch) -> ProcessEnd:
        """Start a command or find the one that was started, and wait for its end.

        Safe to call again for the same process directory, at once or after a crash: the command is
        executed at most once. Cancelling only ends the watching. OSError if the process directory
        cannot be written, in which case nothing was started.
        """
        if not launch.process_dir.is_absolute():
            raise ValueError("a process directory is given by its absolute path")
        ended = await self._execute(launch)
        failpoint("runner_before_return")
        return ended

    def stop(self, process_dir: Path, reason: str) -> None:
        """Have an execution ended, at whatever point; harmless if it has or is being stopped.

        To be called in the thread of the event loop. OSError if nothing can be written.
        """
        process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = reason.encode("utf-8", "replace")
        try:
            # Before the look at the claim: a shim does these in the other order.
            files.publish(str(process_dir / files.STOP), text, durable=False)
        except OSError:
            # With a full disk the signal still goes out, only its reason is lost.
            if not (process_dir / files.CLAIM).exists():
                raise
        if process_dir in self._stops:
            # Whoever follows it knows its supervisor, whatever the claim says by now.
            self._stops[process_dir].set()
            return
        claim = records.claim_shown(process_dir)
        if claim is not None and claim.kind == "shim":
            claim.owner.send(signal.SIGTERM)

    async def _execute(self, launch: Launch) -> ProcessEnd:
        for number in range(_START_TRIES):
            known = await self._known(launch)
            if known is not None:
                return known
            await asyncio.sleep(number**2 * _START_PAUSE_S)
            await self._start(launch)
        failed = "the supervisor could not be started"
        records.take_claim(launch.process_dir, launch.secret, failed)
        known = await self._known(launch)
        assert known is not None
        return known

    async def _known(self, launch: Launch) -> ProcessEnd | None:
        """How it ended, once it has; None if it was never begun."""
        process_dir = launch.process_dir
        secret = launch.secret
        if not _is_begun(process_dir):
            return None
        claim = None
        forged = None
        try:
            claim = read_claim(process_dir, secret)
        except UnreadableRecord as error:
            forged = str(error)
        # While its shim lives, an end that is recorded was written by somebody else.
        if claim is not None and claim.kind == "shim" and claim.owner.is_alive():
            return await self._follow(claim, launch)
        try:
            if (ended := read_exit(process_dir, secret)) is not None:
                return ended
        except UnreadableRecord as error:
            forged = forged or str(error)
        if claim is not None:
            return await self._follow(claim, launch)
        if records.is_from_earlier_boot(process_dir):
            # The claim may have come back empty.
            return await _declare(launch, "lost", "the machine was rebooted")
        if forged is not None:
            return await self._lose(launch, None, "tampered", forged)
        if (process_dir / files.STOP).exists() and records.take_claim(process_dir, secret, None):
            return await _declare(launch, "not_started", None)
        return None

    async def _follow(self, claim: ProcessClaim, launch: Launch) -> ProcessEnd:
        """Wait until whoever claims an execution is dead, and see how it ended."""
        process_dir = launch.process_dir
        shim = claim.owner
        if claim.kind == "daemon":
            return await _declare(launch, "not_started", claim.detail)
        stopped = self._stops.setdefault(process_dir, asyncio.Event())
        if (process_dir / files.STOP).exists():
            stopped.set()
        reason = await _watch(shim, stopped, launch.grace_s)
        kind = "lost"
        detail = reason or "the supervisor was killed"
        try:
            # A shim signs only when its tree is gone; after any other end that may be alive.
            if (found := read_exit(process_dir, launch.secret)) is not None:
                return found
        except UnreadableRecord as error:
            kind = "tampered"
            detail = str(error)
        if not shim.same_boot:
            return await _declare(launch, "lost", "the machine was rebooted")
        leaf = process_tree.trusted_leaf(claim.cgroup, process_dir)
        return await self._lose(launch, leaf, kind, detail)

    async def _lose(self, launch: Launch, leaf: Path | None, kind: str, detail: str) -> ProcessEnd:
        """Kill whatever is left of an execution and record that nobody saw its end."""
        process_dir = launch.process_dir
        if leaf is None and self._root is not None:
            expected = process_tree.leaf(self._root, process_dir)
            leaf = expected if expected.is_dir() else None
        survivors = await asyncio.to_thread(process_tree.kill_tree, process_dir, leaf)
        if survivors:
            detail += f"; kill_incomplete: {survivors} processes survived"
        return await _declare(launch, kind, detail, survivors)

    async def _start(self, launch: Launch) -> None:
        """Have a shim forked, and wait until it has begun, or died first."""
        assert self._spawner is not None, "the runner was not started"
        records.write_intent(launch)
        failpoint("runner_after_intent")
        if self._root is None:
            leaf = None
        else:
            leaf = process_tree.leaf(self._root, launch.process_dir)
        try:
            data = records.encode_request(launch, leaf)
        except ValueError as error:
            records.take_claim(launch.process_dir, launch.secret, f"cannot be run: {error}")
            return
        line = await self._spawner.start_shim(data)
        failpoint("runner_after_spawn")
        if line.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(line)
        else:
            reply = {}
        if "refused" in reply:
            raise OSError(reply["errno"], reply["refused"], str(launch.process_dir))


def _is_begun(process_dir: Path) -> bool:
    """Whether anything is there that an execution, or a request to stop it, leaves."""
    try:
        return not _TRACES.isdisjoint(os.listdir(process_dir))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # what cannot be listed may still be opened


async def _watch(shim: Identity, stopped: asyncio.Event, grace_s: float) -> str | None:
    """Wait for a shim to end; one that ignores a stop is killed, and that is what is returned."""
    death = asyncio.create_task(shim.wait_until_dead())
    stop = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({death, stop}, return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            return None
        # A daemon that crashed may have noted the stop and never have sent the signal.
        shim.send(signal.SIGTERM)
        await asyncio.wait({death}, timeout=grace_s + _STUCK_S)
        if death.done():
            return None
        shim.send(signal.SIGKILL)
        await death
        return "the supervisor did not answer and was killed"
    finally:
        death.cancel()
        stop.cancel()


async def _declare(launch: Launch, kind: str, detail: str | None, survivors: int = 0) -> ProcessEnd:
    """Record an end durably; what a shim recorded meanwhile goes first."""
    while True:
        try:
            records.declare_exit(launch.process_dir, launch.secret, kind, detail, survivors)
            if (found := read_exit(launch.process_dir, launch.secret)) is not None:
                return found
        except UnreadableRecord:
            pass  # somebody else is quicker than we; the next record replaces his
        except OSError as error:
            if error.errno not in files.DISK_TROUBLE:
                raise
        await asyncio.sleep(files.RETRY_S)
