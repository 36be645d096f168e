"""The supervisor of one agent: claim a process directory, execute the command, record its end.

Standard library only, single-threaded, and independent of the daemon from the claim on.
"""

import contextlib
import os
import resource
import socket
import sys
import time

from . import exit_record, files, system, tree
from .exit_record import encode
from .failpoints import failpoint
from .redactor import Redactor
from .request import ShimRequest, receive
from .request import encode as encode_request
from .streams import PipeStream
from .supervisor import Child, Supervisor, explain_failure
from .system import Signals
from .terminal import Terminal
from .tree import make_leaf, remove_leaf

_MAX_FILES = 65536
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def main(connection: int, signals: Signals) -> None:
    """Serve the request that waits on this socket, then return."""
    os.setsid()
    _close_inherited_files(connection)
    signals.renew()
    try:
        request, stdin = receive(connection)
    except (EOFError, OSError):
        return
    failpoint("shim_before_claim")
    shim = Shim(request, connection, signals)
    if not shim.claim():
        return
    failpoint("shim_after_claim")
    try:
        shim.supervise(stdin)
    except Exception as error:
        shim.fail(error)


def warm_up(place: str, signals: Signals) -> None:
    """Run a command that does nothing through a shim, here in the spawner.

    Code and memory that are first used in a forked shim are copied in each of them; after a warm-up
    they are shared.
    """
    process_dir = os.path.join(place, f"warm-up.{os.getpid()}")
    fields = {
        "process_dir": process_dir,
        "argv": [b"true"],
        "cwd": b"/",
        "env": dict(os.environb),
        "redact": (b"secret",),
        "timeout_s": 60.0,
        "secret": b"secret",
        # Not a cgroup, which is noticed when the child is moved to it.
        "leaf": process_dir if tree.LINUX else None,
    }
    system.adopt_orphans(yes=False)
    daemon, connection = socket.socketpair()
    with daemon, contextlib.suppress(OSError):
        os.mkdir(process_dir, 0o700)
        daemon.sendall(encode_request(fields, b""))
        request, stdin = receive(connection.fileno())
        shim = Shim(request, connection.detach(), signals)
        if shim.claim() and shim.begin(stdin):
            shim.watch()
        shim.leave_no_trace()


class Shim(Supervisor):
    """One process directory from its claim to its exit record."""

    def __init__(self, request: ShimRequest, daemon: int, signals: Signals) -> None:
        super().__init__(request, signals)
        self._daemon = daemon
        self._logs: list[int] = []
        self._not_started: str | None = None
        self._started_at: float | None = None
        self._began_at = time.monotonic()
        self._start = tree.start_time(os.getpid())

    def claim(self) -> bool:
        """Claim the directory; False if it is claimed already or cannot be written."""
        identity = {
            "kind": "shim",
            "boot_id": self._request.boot_id,
            "pid": os.getpid(),
            "start": self._start,
            "cgroup": self._request.leaf,
        }
        path = self._path(files.CLAIM)
        try:
            data = files.sign(self._request.secret, files.CLAIM, encode(identity))
            ours = files.publish(path, data, durable=False)
        except OSError as error:
            self._reply({"refused": error.strerror, "errno": error.errno})
            return False
        if not ours:
            self._reply({"claimed": True})
        return ours

    def supervise(self, stdin: int) -> None:
        """Run the command and record its result."""
        system.adopt_orphans()
        if self.begin(stdin):
            self.watch()
            self._conclude()
        else:
            self._record({"kind": "not_started", "ended_by": "stop"})

    def begin(self, stdin: int) -> bool:
        """Start the command; False if it was stopped before."""
        if not files.retry_while_full(self._open_logs, self._must_stop) or self._must_stop():
            return False
        self._fork_agent(stdin)
        failpoint("shim_after_fork")
        self._started_at = time.time()
        self._began_at = time.monotonic()
        files.retry_while_full(self._write_run_json, self._must_stop)
        failpoint("shim_after_run_json")
        if self._request.timeout_s is not None:
            self._deadline = self._began_at + self._request.timeout_s
        self._agent.release()
        if not tree.set_oom_score(-500):
            tree.set_oom_score(0)
        return True

    def leave_no_trace(self) -> None:
        """Close all files and remove the directory, after a warm-up."""
        for file in (*self._logs, *(stream.pipe for stream in self._streams)):
            os.close(file)
        for name in os.listdir(self._request.process_dir):
            os.unlink(self._path(name))
        os.rmdir(self._request.process_dir)

    def fail(self, error: Exception) -> None:
        """Record an error of the shim itself, and kill everything it started."""
        with contextlib.suppress(OSError, ImportError):
            import traceback  # not at the top, to keep it out of the memory of every shim

            with open(self._path(files.SHIM_LOG), "a", encoding="utf-8") as log:
                traceback.print_exception(error, file=log)
        self._tree.kill_to_the_end()
        self._tree.remove()
        detail = f"the supervisor failed: {type(error).__name__}: {error}"
        self._record({"kind": "lost", "detail": detail})

    def _path(self, name: str) -> str:
        return os.path.join(self._request.process_dir, name)

    def _must_stop(self) -> bool:
        return self._signals.stop or os.path.exists(self._path(files.STOP))

    def _open_logs(self) -> None:
        self._logs = [os.open(self._path(n), _LOG_FLAGS, 0o600) for n in (files.OUT, files.ERR)]

    def _fork_agent(self, stdin: int) -> None:
        leaf = self._request.leaf
        agent = Child(self._request, stdin, leaf if leaf and make_leaf(leaf) else None)
        self._agent = agent
        self._report = agent.report
        self._tree.agent = agent.pid
        if agent.in_leaf:
            self._tree.leaf = leaf
        elif leaf:
            remove_leaf(leaf)
        in_terminal = self._request.terminal is not None
        if in_terminal:
            place = self._request.process_dir
            secret = self._request.secret
            self._terminal = Terminal(place, secret, agent.out)
        self._streams = tuple(
            PipeStream(pipe, log, Redactor(self._request.redact, eager=in_terminal))
            for pipe, log in zip((agent.out, agent.err), self._logs, strict=True)
        )

    def _write_run_json(self) -> None:
        facts = {
            "protocol": files.PROTOCOL,
            "shim": {"pid": os.getpid(), "start": self._start},
            "agent": {"pid": self._agent.pid, "start": self._agent.start},
            "boot_id": self._request.boot_id,
            "cgroup": self._tree.leaf,
            "started_at": self._started_at,
        }
        files.replace(self._path(files.RUN), encode(facts))

    def _on_exec(self, report: bytes) -> None:
        if report:
            self._not_started = explain_failure(report, self._request)
            self._reply({"not_started": self._not_started})
        else:
            self._reply({"started": {"pid": self._agent.pid, "start": self._agent.start}})

    def _reply(self, answer: dict[str, object]) -> None:
        # The daemon may be gone, and can read everything important from the directory.
        with contextlib.suppress(OSError):
            os.write(self._daemon, encode(answer) + b"\n")
        os.close(self._daemon)

    def _conclude(self) -> None:
        self._tree.remove()
        details = [self._not_started, *(stream.sync() for stream in self._streams)]
        if self._survivors:
            details.append(f"kill_incomplete: {self._survivors} processes survived")
        outcome = _describe_exit(self._status, self._not_started)
        if changed_names := self._list_changed_logs():
            outcome = {"kind": "tampered", "code": None, "signal": None}
            details.insert(0, f"another process changed {' and '.join(changed_names)}")
        outcome["detail"] = "; ".join(text for text in details if text) or None
        outcome["ended_by"] = self._ended_by
        outcome["out_sha256"], outcome["err_sha256"] = (s.digest.hexdigest() for s in self._streams)
        outcome["leftovers"] = max(self._leftovers or 0, self._survivors)
        self._record(outcome)

    def _list_changed_logs(self) -> list[str]:
        """Return the names of logs that hold other bytes than this shim wrote."""
        names = []
        for name, stream in zip((files.OUT, files.ERR), self._streams, strict=True):
            try:
                is_intact = stream.is_intact(self._path(name))
            except OSError as error:
                # An unreadable disk is no evidence that another process wrote to the log.
                is_intact = error.errno in files.DISK_TROUBLE
            if not is_intact:
                names.append(name)
        return names

    def _record(self, outcome: dict[str, object]) -> None:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        has_started = self._not_started is None and self._started_at is not None
        record = {
            "ended_by": None,
            **outcome,
            "started_at": self._started_at if has_started else None,
            "ended_at": time.time(),
            "duration_s": time.monotonic() - self._began_at if has_started else 0.0,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        }
        failpoint("shim_before_exit_json")
        process_dir = self._request.process_dir
        secret = self._request.secret
        files.retry_while_full(
            lambda: exit_record.write(process_dir, secret, record), lambda: False
        )
        failpoint("shim_after_exit_json")


def _describe_exit(status: int | None, not_started: str | None) -> dict[str, object]:
    """Return the kind of the end, with its exit code or signal."""
    if not_started is not None:
        return {"kind": "not_started"}
    if status is None:
        return {"kind": "lost"}
    if os.WIFSIGNALED(status):
        return {"kind": "signaled", "signal": os.WTERMSIG(status)}
    return {"kind": "exited", "code": os.WEXITSTATUS(status)}


def _close_inherited_files(connection: int) -> None:
    """Close every inherited descriptor except the connection to the daemon."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.closerange(3, connection)
    os.closerange(connection + 1, _MAX_FILES)
    os.set_inheritable(connection, False)
    os.chdir("/")
