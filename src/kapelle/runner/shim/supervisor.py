"""Supervise the agent's process from fork to end: output, limits, stops, leftovers.

Standard library only.
"""

import contextlib
import errno
import os
import select
import time

from . import confinement, system, terminal, tree
from .files import MARKER
from .request import ShimRequest
from .streams import PipeStream
from .system import Signals, restore_signals
from .terminal import Terminal
from .tree import KILL_LIMIT_S, Subtree

_LINGER_S = 0.3
_LEFTOVER_GRACE_S = 2.0
_KILL_ROUND_S = 0.02
_LONGEST_REASON = 300
_MAX_FILES = 65536


class Child:
    """A forked process that executes the command once it is released."""

    def __init__(self, request: ShimRequest, stdin: int, leaf: str | None) -> None:
        self.out, out = os.pipe() if request.terminal is None else os.openpty()
        self.err, err = os.pipe()
        standard = (stdin, out, err)
        if request.terminal is not None:
            terminal.set_size(self.out, *request.terminal)
            standard = (out, out, out)
        go, self._go = os.pipe()
        self.report, report = os.pipe()
        self.in_leaf = False
        shim = os.getpid()
        self.pid = self._fork(leaf)
        if self.pid == 0:
            os.close(self._go)
            _become_agent(request, shim, standard, go, report)
        self.start = tree.start_time(self.pid)
        for end in (out, err, go, report, stdin):
            os.close(end)
        if leaf is not None and not self.in_leaf:
            self.in_leaf = _move_to_cgroup(self.pid, leaf)

    def release(self) -> None:
        """Let the child execute the command."""
        # A child that was killed meanwhile is noticed by its exit status.
        with contextlib.suppress(OSError):
            os.write(self._go, b"!")
        os.close(self._go)

    def _fork(self, leaf: str | None) -> int:
        if leaf is not None:
            with contextlib.suppress(OSError):
                directory = os.open(leaf, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    pid = system.fork_into_cgroup(directory)
                    self.in_leaf = True
                    return pid
                finally:
                    os.close(directory)
        return os.fork()


def explain_failure(report: bytes, request: ShimRequest) -> str:
    """Return why the command could not be started, from the child's report."""
    number, _, step = report[1:].decode("utf-8", "replace").partition(" ")
    reason = os.strerror(int(number))
    if report[:1] == b"c":
        return f"cannot confine the process: {step}"
    if report[:1] == b"d":
        return f"cannot enter {os.fsdecode(request.cwd)}: {reason}"
    return f"cannot run {os.fsdecode(request.argv[0])}: {reason}"


def _move_to_cgroup(pid: int, leaf: str) -> bool:
    try:
        with open(f"{leaf}/cgroup.procs", "wb") as file:
            file.write(b"%d" % pid)
    except OSError:
        return False
    return True


def _become_agent(
    request: ShimRequest, shim: int, standard: tuple[int, int, int], go: int, report: int
) -> None:
    stage = b"x"
    try:
        os.setsid()
        system.die_with_parent()
        # The shim may have died before the kernel was asked to watch it.
        if os.getppid() != shim or not os.read(go, 1):
            os._exit(127)
        if request.terminal is not None:
            terminal.make_controlling(standard[0])
        for target, source in enumerate(standard):
            os.dup2(source, target)
        # When memory runs out, the kernel should kill the agent rather than the shim or the daemon.
        tree.set_oom_score(500)
        restore_signals()
        prefix: list[bytes] = []
        if request.confinement is not None:
            stage = b"c"
            # The confined command must not find an open file of the shim.
            os.closerange(3, report)
            os.closerange(report + 1, _MAX_FILES)
            prefix = confinement.apply(request.confinement, os.fsdecode(request.cwd))
        if not prefix:
            stage = b"d"
            os.chdir(request.cwd)
        stage = b"x"
        env = {**request.env, MARKER.encode(): os.fsencode(request.process_dir)}
        argv = [*prefix, *request.argv]
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        reason = str(error.strerror).encode()[:_LONGEST_REASON]
        os.write(report, stage + b"%d %s" % (error.errno or errno.EINVAL, reason))
    except ValueError:
        os.write(report, stage + b"%d" % errno.EINVAL)
    finally:
        os._exit(127)


class Supervisor:
    """Runs one agent from its exec until no process of it is left."""

    _agent: Child

    def __init__(self, request: ShimRequest, signals: Signals) -> None:
        self._request = request
        self._signals = signals
        self._tree = Subtree()
        self._streams: tuple[PipeStream, ...] = ()
        self._terminal: Terminal | None = None
        self._status: int | None = None
        self._ended_by: str | None = None
        self._leftovers: int | None = None
        self._survivors = 0
        self._report: int | None = None
        self._deadline: float | None = None
        self._linger_until: float | None = None
        self._kill_at: float | None = None
        self._kill_since: float | None = None
        self._gone = False

    def _on_exec(self, report: bytes) -> None:
        """Handle the child's report: empty when the command runs, else why it does not."""
        raise NotImplementedError

    def watch(self) -> None:
        """Return when the process tree is dead or cannot be killed, and the logs are written."""
        while not (self._gone and self._report is None and self._is_output_written()):
            ready = self._wait()
            now = time.monotonic()
            self._serve(ready, now)
            self._reap()
            self._advance(now)

    def _is_output_written(self) -> bool:
        return all(stream.is_finished for stream in self._streams)

    def _wait(self) -> set[int]:
        """Wait for output, a signal, input or the next deadline; return the ready files."""
        poller = select.poll()
        files = [stream.pipe for stream in self._streams if stream.is_readable]
        files += [self._signals.file] + ([] if self._report is None else [self._report])
        for file in files:
            poller.register(file, select.POLLIN)
        if self._terminal is not None and self._terminal.pending:
            if self._terminal.file in files:
                reads = select.POLLIN
            else:
                reads = 0
            poller.register(self._terminal.file, select.POLLOUT | reads)
        elif self._terminal is not None:
            poller.register(self._terminal.input, select.POLLIN)
        due = self._due()
        if due is None:
            pause = None
        else:
            pause = max(0.0, due - time.monotonic()) * 1000
        return {file for file, _ in poller.poll(None if pause is None else pause + 1)}

    def _due(self) -> float | None:
        """Return the time at which the supervisor has to act next; None if there is none."""
        times = [stream.retry_at for stream in self._streams]
        if not self._gone:
            if self._kill_since is None:
                again = None
            else:
                again = time.monotonic() + _KILL_ROUND_S
            times.append(again or self._kill_at)
            if self._status is None and self._ended_by is None:
                times.append(self._deadline)
            if self._leftovers is None:
                times.append(self._linger_until)
        return min((at for at in times if at is not None), default=None)

    def _serve(self, ready: set[int], now: float) -> None:
        if self._signals.file in ready:
            self._signals.drain()
        if self._report is not None and self._report in ready:
            self._on_exec(os.read(self._report, _LONGEST_REASON + 64))
            os.close(self._report)
            self._report = None
        if self._terminal is not None and self._terminal.input in ready:
            self._terminal.receive()
        elif self._terminal is not None and self._terminal.file in ready:
            self._terminal.type()
        for stream in self._streams:
            late = stream.retry_at is not None and now >= stream.retry_at
            if late or stream.pipe in ready:
                stream.pump(now)
            if self._gone:
                stream.drain(now)

    def _reap(self) -> None:
        if not self._signals.child:
            return
        self._signals.child = False
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._agent.pid:
                    self._status = status
        except ChildProcessError:
            # This process is a subreaper: it has no child only when no descendant is left.
            self._no_more_children()

    def _no_more_children(self) -> None:
        if not self._gone:
            self._gone = True
            for stream in self._streams:
                stream.drain(time.monotonic())

    def _advance(self, now: float) -> None:
        if self._gone:
            return
        if self._status is None:
            self._keep_limits(now)
        else:
            self._clear_leftovers(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill(now)

    def _keep_limits(self, now: float) -> None:
        if self._ended_by is not None:
            return
        if self._signals.stop:
            self._end("stop", now)
        elif self._deadline is not None and now >= self._deadline:
            self._end("timeout", now)

    def _end(self, reason: str, now: float) -> None:
        self._ended_by = reason
        self._tree.terminate()
        # Before its exec the child is a copy of the shim, which ignores SIGTERM.
        if self._report is not None:
            self._kill_at = now
        else:
            self._kill_at = now + self._request.grace_s

    def _clear_leftovers(self, now: float) -> None:
        """End processes that outlive the agent by more than a moment."""
        if self._linger_until is None:
            self._linger_until = now + _LINGER_S
        elif now >= self._linger_until and self._leftovers is None:
            self._leftovers = len(tree.list_descendants(os.getpid()))
            self._tree.terminate()
            soon = now + min(self._request.grace_s, _LEFTOVER_GRACE_S)
            if self._kill_at is None:
                self._kill_at = soon
            else:
                self._kill_at = min(soon, self._kill_at)

    def _kill(self, now: float) -> None:
        """Kill the tree again; give up after the limit and count the survivors."""
        self._tree.kill()
        self._signals.child = True
        if self._kill_since is None:
            self._kill_since = now
        elif now - self._kill_since > KILL_LIMIT_S:
            self._survivors = len(tree.list_descendants(os.getpid()))
            self._no_more_children()
