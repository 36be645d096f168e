"""One warm process that forks a shim whenever the daemon hands it a connection.

Standard library only. `python -I -S spawner.py <control fd>`: each byte on the control channel
carries one descriptor, on which a request waits. It ends with its daemon; its shims do not.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable


def serve(control: socket.socket, become_shim: Callable[[int, int], None]) -> None:
    """Fork a shim per connection until the daemon is gone."""
    wake, writer = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake, select.POLLIN)
    started = 0
    while True:
        ready = {file for file, _ in poller.poll()}
        if wake in ready:
            os.read(wake, 4096)
            _reap()
        if control.fileno() in ready:
            data, files, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                return
            for file in files:
                _fork(control, file, started, become_shim)
                started += 1


def _fork(
    control: socket.socket, file: int, started: int, become_shim: Callable[[int, int], None]
) -> None:
    try:
        pid = os.fork()
    except OSError:
        # The daemon sees its connection closed, and asks again.
        os.close(file)
        return
    if pid == 0:
        _be_shim(control, file, started, become_shim)
    os.close(file)


def _be_shim(
    control: socket.socket, file: int, started: int, become_shim: Callable[[int, int], None]
) -> None:
    try:
        control.close()
        become_shim(file, started)
    finally:
        os._exit(0)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    # This directory is a package here as in the source tree, so that relative imports work.
    sys.path.insert(0, os.path.dirname(here))
    shim = importlib.import_module(f"{os.path.basename(here)}.shim")
    importlib.import_module(f"{os.path.basename(here)}.signals").forget_all()
    failpoints = importlib.import_module(f"{os.path.basename(here)}.failpoints")

    def become_shim(file: int, started: int) -> None:
        failpoints.count_on_from(started)
        shim.main(file)

    with socket.socket(fileno=int(sys.argv[1])) as control:
        # No collection may touch, and thereby copy, the pages that all shims share.
        gc.disable()
        gc.freeze()
        serve(control, become_shim)


if __name__ == "__main__":
    main()
