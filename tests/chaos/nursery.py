"""Daemons that are there in a moment, so that hundreds can be killed: forked from a process that
has imported everything already. Run as a script, this is that process."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from tests.e2e.instance import Instance


class Nursery:
    """One warm process, from which daemons are forked until it is closed."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery"],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fork(self, env: dict[str, str], log: Path) -> "Fledgling":
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"env": env, "log": str(log)}).encode() + b"\n")
        self._process.stdin.flush()
        return Fledgling(int(self._process.stdout.readline()))

    def close(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


class Fledgling:
    """A forked daemon, as much like a Popen as an Instance needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._descriptor = None

    def poll(self) -> int | None:
        """None while it lives; how it ended is not known."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self._descriptor is not None:
            ended, _, _ = select.select([self._descriptor], [], [], timeout)
            if not ended:
                raise subprocess.TimeoutExpired("daemon", timeout or 0)
            os.close(self._descriptor)
            self._descriptor = None
        return -1

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)


class WarmInstance(Instance):
    """An instance whose daemons come from a nursery."""

    def __init__(self, nursery: Nursery, home: Path, **settings: str) -> None:
        super().__init__(home, **settings)
        self._nursery = nursery

    def spawn(self, **extra: str) -> "subprocess.Popen[bytes]":
        if self.process is not None:
            self.process.wait(30)
        self.home.root.mkdir(parents=True, exist_ok=True)
        self._await_lock()
        daemon = self._nursery.fork({**self.env, **extra}, self.home.log)
        self.process = cast("subprocess.Popen[bytes]", daemon)
        return self.process

    def _await_lock(self) -> None:
        """What a daemon was forking when it was killed holds its lock for another moment."""
        with self.home.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def await_death(self, timeout_s: float = 60) -> None:
        """Return when the daemon has died at its failpoint."""
        assert self.process is not None
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not die:\n{self.log_tail()}") from None


def _hatch(asked: dict[str, Any]) -> None:
    """Be a daemon, in the forked process."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, descriptor in ((0, nothing), (1, log), (2, log)):
        os.dup2(descriptor, target)
    os.closerange(3, 256)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = ["kapelle"]
    from kapelle.daemon import main

    main()


def _brood() -> None:
    """Fork a daemon for every line, until there are no more."""
    import kapelle.daemon  # noqa: F401  this is what makes it warm

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            try:
                _hatch(json.loads(line))
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    _brood()
