"""Execute commands so that the death of the daemon neither loses nor repeats them."""

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
    """The daemon's way to execute a command; all guarantees rest on the process directory.

    On Linux an end is noticed by pidfd, and a process tree is killed by cgroup or subreaper. On
    macOS ends are polled for, and processes that left the agent's process group are found by their
    environment only.
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
        """Install and start the spawner; processes that run already are not touched."""
        # Without cgroups, the runner belongs to a program that executes a single command.
        script = install(self._home)
        self._spawner = Spawner(self._python, script, for_many=self._use_cgroup)
        if self._use_cgroup:
            self._root = process_tree.find_root(self._home)
        if self._root is not None:
            process_tree.sweep(self._root)
        self._spawner.ensure()

    async def close(self) -> None:
        """End the spawner; supervised processes keep running."""
        if self._spawner is not None:
            await asyncio.to_thread(self._spawner.close)
        if self._root is not None:
            # Fails, as intended, while a process is left in the cgroup.
            with contextlib.suppress(OSError):
                self._root.rmdir()

    async def execute(self, launch: Launch) -> ProcessEnd:
        """Start a command, or find the one already started, and wait for its end.

        Safe to call again for the same process directory, at once or after a crash: the command is
        executed at most once. Cancelling ends only the waiting. Raises OSError if the process
        directory cannot be written; then nothing was started.
        """
        if not launch.process_dir.is_absolute():
            raise ValueError("the path of a process directory must be absolute")
        result = await self._execute(launch)
        failpoint("runner_before_return")
        return result

    def stop(self, process_dir: Path, reason: str) -> None:
        """Stop an execution, whether it is about to start, runs, or has ended already.

        Call it in the thread of the event loop. Raises OSError if nothing can be written.
        """
        process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = reason.encode("utf-8", "replace")
        try:
            # Written before the claim is read. A shim does these in the opposite order, so one of
            # the two sees the other.
            files.publish(str(process_dir / files.STOP), text, durable=False)
        except OSError:
            # On a full disk the signal is still sent; only the reason is lost.
            if not (process_dir / files.CLAIM).exists():
                raise
        if process_dir in self._stops:
            # _follow holds the verified identity of the supervisor; the claim may have been
            # replaced since.
            self._stops[process_dir].set()
            return
        claim = records.read_claim_unverified(process_dir)
        if claim is not None and claim.kind == "shim":
            claim.owner.send(signal.SIGTERM)

    async def _execute(self, launch: Launch) -> ProcessEnd:
        """Find the result of an execution, or start it and try again."""
        for number in range(_START_TRIES):
            result = await self._find_result(launch)
            if result is not None:
                return result
            await asyncio.sleep(number**2 * _START_PAUSE_S)
            await self._start(launch)
        detail = "the supervisor could not be started"
        records.take_claim(launch.process_dir, launch.secret, detail)
        result = await self._find_result(launch)
        assert result is not None
        return result

    async def _find_result(self, launch: Launch) -> ProcessEnd | None:
        """Wait for the end of an execution that has begun; None if it has not begun."""
        process_dir = launch.process_dir
        secret = launch.secret
        if not _has_traces(process_dir):
            return None
        claim = None
        forgery = None
        try:
            claim = read_claim(process_dir, secret)
        except UnreadableRecord as error:
            forgery = str(error)
        # While its shim lives, an exit record can only be forged, so it is not read before.
        if claim is not None and claim.kind == "shim" and claim.owner.is_alive():
            return await self._follow(claim, launch)
        try:
            if (result := read_exit(process_dir, secret)) is not None:
                return result
        except UnreadableRecord as error:
            forgery = forgery or str(error)
        if claim is not None:
            return await self._follow(claim, launch)
        if records.is_from_earlier_boot(process_dir):
            # A power cut may have emptied the claim.
            return await _declare_end(launch, "lost", "the machine was rebooted")
        if forgery is not None:
            return await self._kill_and_declare(launch, None, "tampered", forgery)
        if (process_dir / files.STOP).exists() and records.take_claim(process_dir, secret, None):
            return await _declare_end(launch, "not_started", None)
        return None

    async def _follow(self, claim: ProcessClaim, launch: Launch) -> ProcessEnd:
        """Wait until the claiming process is dead, and return the result."""
        process_dir = launch.process_dir
        shim = claim.owner
        if claim.kind == "daemon":
            return await _declare_end(launch, "not_started", claim.detail)
        stop_request = self._stops.setdefault(process_dir, asyncio.Event())
        if (process_dir / files.STOP).exists():
            stop_request.set()
        reason = await _wait_for_shim(shim, stop_request, launch.grace_s)
        kind = "lost"
        detail = reason or "the supervisor was killed"
        try:
            # A shim signs the record after its process tree is gone. After any other end of the
            # shim the tree may be alive, so it is killed below.
            if (result := read_exit(process_dir, launch.secret)) is not None:
                return result
        except UnreadableRecord as error:
            kind = "tampered"
            detail = str(error)
        if not shim.is_same_boot:
            return await _declare_end(launch, "lost", "the machine was rebooted")
        leaf = process_tree.verify_leaf(claim.cgroup, process_dir)
        return await self._kill_and_declare(launch, leaf, kind, detail)

    async def _kill_and_declare(
        self, launch: Launch, leaf: Path | None, kind: str, detail: str
    ) -> ProcessEnd:
        """Kill what is left of an execution, and record that its end was not observed."""
        process_dir = launch.process_dir
        if leaf is None and self._root is not None:
            own_leaf = process_tree.leaf(self._root, process_dir)
            leaf = own_leaf if own_leaf.is_dir() else None
        survivors = await asyncio.to_thread(process_tree.kill_tree, process_dir, leaf)
        if survivors:
            detail += f"; kill_incomplete: {survivors} processes survived"
        return await _declare_end(launch, kind, detail, survivors)

    async def _start(self, launch: Launch) -> None:
        """Have a shim forked, and wait until it runs the command, refuses, or dies."""
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


def _has_traces(process_dir: Path) -> bool:
    """Tell whether the directory holds a trace of an execution or of a request to stop it."""
    try:
        return not _TRACES.isdisjoint(os.listdir(process_dir))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # a directory that cannot be listed may have traces


async def _wait_for_shim(shim: Identity, stop_request: asyncio.Event, grace_s: float) -> str | None:
    """Wait for a shim to end; kill one that ignores a stop, and return that as the detail."""
    death = asyncio.create_task(shim.wait_until_dead())
    stop = asyncio.create_task(stop_request.wait())
    try:
        await asyncio.wait({death, stop}, return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            return None
        # A daemon that crashed may have written the stop file without sending the signal.
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


async def _declare_end(
    launch: Launch, kind: str, detail: str | None, survivors: int = 0
) -> ProcessEnd:
    """Record a result durably and return it; a record that a shim wrote has precedence."""
    while True:
        try:
            records.declare_exit(launch.process_dir, launch.secret, kind, detail, survivors)
            if (result := read_exit(launch.process_dir, launch.secret)) is not None:
                return result
        except UnreadableRecord:
            pass  # another process wrote a record in between; the next round replaces it
        except OSError as error:
            if error.errno not in files.DISK_TROUBLE:
                raise
        await asyncio.sleep(files.RETRY_S)
