"""Runs commands so that the daemon's death neither loses nor repeats them."""

import asyncio
import contextlib
import json
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kapelle.runner import cgroup, claims, following, intent, rundir, verdict
from kapelle.runner.claims import Claim, UnreadableClaim
from kapelle.runner.failpoints import failpoint
from kapelle.runner.install import install
from kapelle.runner.launch import Ended, Launch
from kapelle.runner.spawning import Spawner
from kapelle.runner.verdict import UnreadableVerdict

_START_TRIES = 5
_START_PAUSE_S = 0.1

OnStarted = Callable[[int], None]


class Runner:
    """The daemon's one way to run a process; every promise rests on the process directory.

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
        self._stops: weakref.WeakValueDictionary[Path, asyncio.Event] = (
            weakref.WeakValueDictionary()
        )

    @property
    def spawner_pid(self) -> int | None:
        return None if self._spawner is None else self._spawner.pid

    async def start(self) -> None:
        """Make ready to run; earlier runs are not touched."""
        self._spawner = Spawner(self._python, install(self._home))
        if self._use_cgroup:
            self._root = cgroup.find_root(self._home)
        if self._root is not None:
            cgroup.sweep(self._root)
        self._spawner.ensure()

    async def close(self) -> None:
        """End the spawner and leave everything that runs alone."""
        if self._spawner is not None:
            await asyncio.to_thread(self._spawner.close)
        if self._root is not None:
            # It can only be removed when no run is left in it.
            with contextlib.suppress(OSError):
                self._root.rmdir()

    async def execute(self, launch: Launch, on_started: OnStarted | None = None) -> Ended:
        """Start a command or find the one that was started, and wait for its end.

        Safe to call again for the same process directory, at once or after a crash: the command is
        executed at most once. Cancelling only ends the watching. OSError if the process directory
        cannot be written, in which case nothing was started.
        """
        if not launch.process_dir.is_absolute():
            raise ValueError("a process directory is given by its absolute path")
        ended = await self._execute(launch, on_started)
        failpoint("runner_before_return")
        return ended

    def stop(self, process_dir: Path, reason: str) -> None:
        """Have a run ended, whatever it is at; harmless if it has ended or is being stopped.

        To be called in the thread of the event loop. OSError if nothing can be written.
        """
        if (process_dir / rundir.EXIT).exists():
            return
        process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = reason.encode("utf-8", "replace")
        # With a full disk the signal still goes out, only its reason is lost.
        with contextlib.suppress(OSError):
            rundir.publish(str(process_dir / rundir.STOP), text, durable=False)
        if claims.exists(process_dir) or not claims.take(process_dir, None):
            self._stop_claimed(process_dir)
        else:
            verdict.declare(process_dir, "not_started", None)

    def _stop_claimed(self, process_dir: Path) -> None:
        with contextlib.suppress(UnreadableClaim):
            claim = claims.read(process_dir)
            if claim is not None and claim.kind == "shim":
                claim.owner.send(signal.SIGTERM)
        if process_dir in self._stops:
            self._stops[process_dir].set()

    async def _execute(self, launch: Launch, on_started: OnStarted | None) -> Ended:
        for number in range(_START_TRIES):
            known = await self._known(launch, on_started)
            if known is not None:
                return known
            await asyncio.sleep(number**2 * _START_PAUSE_S)
            reply = await self._start(launch)
            if on_started is not None and "started" in reply:
                on_started(reply["started"]["pid"])
            if "started" in reply or "not_started" in reply:
                on_started = None
        claims.take(launch.process_dir, "the supervisor could not be started")
        known = await self._known(launch, on_started)
        assert known is not None
        return known

    async def _known(self, launch: Launch, on_started: OnStarted | None) -> Ended | None:
        """The verdict on a run, once it has ended; None if it was never begun."""
        process_dir = launch.process_dir
        with contextlib.suppress(UnreadableVerdict):
            if (ended := verdict.read(process_dir)) is not None:
                return ended
        try:
            claim = claims.read(process_dir)
        except UnreadableClaim as error:
            return await following.lose(process_dir, None, self._root, str(error))
        if claim is not None:
            return await self._follow(claim, launch, on_started)
        if (process_dir / rundir.EXIT).exists():
            return await following.lose(process_dir, None, self._root, "exit.json cannot be read")
        if intent.is_from_an_earlier_boot(process_dir):
            return await following.declare(process_dir, "lost", "the machine was rebooted")
        return None

    async def _follow(self, claim: Claim, launch: Launch, on_started: OnStarted | None) -> Ended:
        process_dir, shim = launch.process_dir, claim.owner
        if claim.kind == "daemon":
            return await following.declare(process_dir, "not_started", claim.detail)
        if on_started is not None:
            pid = await following.agent_pid(shim, process_dir)
            if pid is not None:
                on_started(pid)
        stopped = self._stops.setdefault(process_dir, asyncio.Event())
        if (process_dir / rundir.STOP).exists():
            stopped.set()
        reason = await following.watch(shim, stopped, launch.grace_s)
        return await following.conclude(process_dir, claim, reason, self._root)

    async def _start(self, launch: Launch) -> dict[str, Any]:
        """Have a shim forked; what it replied, which is nothing if it died first."""
        assert self._spawner is not None, "the runner was not started"
        intent.write(launch)
        failpoint("runner_after_intent")
        leaf = None if self._root is None else cgroup.leaf(self._root, launch.process_dir)
        try:
            data = intent.to_request(launch, leaf)
        except ValueError as error:
            claims.take(launch.process_dir, f"cannot be run: {error}")
            return {}
        line = await self._spawner.start_shim(data)
        failpoint("runner_after_spawn")
        reply: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        if "refused" in reply:
            raise OSError(reply["errno"], reply["refused"], str(launch.process_dir))
        return reply
