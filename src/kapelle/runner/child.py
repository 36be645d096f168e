"""The birth of the agent: a fork that waits to be let go, then executes; standard library only."""

import contextlib
import errno
import os

from . import libc, procs
from .request import Request
from .rundir import MARKER
from .signals import forget_ours

_DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


class Child:
    """A forked process that executes the command once it is let go."""

    def __init__(self, request: Request, stdin: int, leaf: str | None) -> None:
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        go, self._go = os.pipe()
        self.report, report = os.pipe()
        self.in_leaf = False
        shim = os.getpid()
        self.pid = self._fork(leaf)
        if self.pid == 0:
            os.close(self._go)
            _become_agent(request, shim, (stdin, out, err), go, report)
        self.start = procs.start_time(self.pid)
        for end in (out, err, go, report, stdin):
            os.close(end)
        if leaf is not None and not self.in_leaf:
            self.in_leaf = _move(self.pid, leaf)

    def let_go(self) -> None:
        # The child may have been killed meanwhile, which its exit status will say.
        with contextlib.suppress(OSError):
            os.write(self._go, b"!")
        os.close(self._go)

    def _fork(self, leaf: str | None) -> int:
        if leaf is not None:
            with contextlib.suppress(OSError):
                directory = os.open(leaf, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    pid = libc.fork_into_cgroup(directory)
                    self.in_leaf = True
                    return pid
                finally:
                    os.close(directory)
        return os.fork()


def explain(report: bytes, request: Request) -> str:
    """Why a command could not be started, from what the child reported."""
    reason = os.strerror(int(report[1:]))
    if report[:1] == b"d":
        return f"cannot enter {os.fsdecode(request.cwd)}: {reason}"
    return f"cannot run {os.fsdecode(request.argv[0])}: {reason}"


def _move(pid: int, leaf: str) -> bool:
    try:
        with open(f"{leaf}/cgroup.procs", "wb") as file:
            file.write(b"%d" % pid)
    except OSError:
        return False
    return True


def _become_agent(
    request: Request, shim: int, standard: tuple[int, int, int], go: int, report: int
) -> None:
    stage = b"x"
    try:
        os.setsid()
        libc.die_with_parent()
        # The shim may have died before the kernel was told to watch it.
        if os.getppid() != shim or not os.read(go, 1):
            os._exit(127)
        for target, source in enumerate(standard):
            os.dup2(source, target)
        # When memory runs out, the agent should die rather than the shim or the daemon.
        procs.set_oom_score(500)
        forget_ours()
        stage = b"d"
        os.chdir(request.cwd)
        stage = b"x"
        _execute(request)
    except OSError as error:
        os.write(report, stage + b"%d" % (error.errno or errno.EINVAL))
    except ValueError:
        os.write(report, stage + b"%d" % errno.EINVAL)
    finally:
        os._exit(127)


def _execute(request: Request) -> None:
    env = {**request.env, MARKER.encode(): os.fsencode(request.process_dir)}
    program = request.argv[0]
    if b"/" in program:
        os.execve(program, request.argv, env)
    trouble = FileNotFoundError(errno.ENOENT, "not found")
    for directory in env.get(b"PATH", _DEFAULT_PATH).split(b":"):
        try:
            os.execve(os.path.join(directory or b".", program), request.argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            trouble = error  # type: ignore[assignment]
    raise trouble
