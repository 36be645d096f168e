"""One warm process that forks a shim whenever the daemon hands it a connection.

Standard library only. `python -I -S spawner.py <control fd>`: each byte on the control channel
carries one descriptor, on which a request waits. It ends with its daemon; its shims do not.
"""

import gc
import importlib
import os
import select
import socket
import sys
from types import ModuleType


class Spawner:
    """Forks a shim per connection until the daemon is gone."""

    def __init__(self, control: socket.socket, package: str) -> None:
        self._control = control
        self._shim = _module(package, "shim")
        self._failpoints = _module(package, "failpoints")
        self._signals = _module(package, "system").Signals()
        self._started = 0

    def serve(self) -> None:
        self._shim.warm_up()
        # No collection may touch, and thereby copy, the pages that all shims share.
        gc.disable()
        gc.freeze()
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._signals.file, select.POLLIN)
        while not self._signals.stop:
            ready = {file for file, _ in poller.poll()}
            if self._signals.file in ready:
                self._signals.drain()
                _reap()
            if self._control.fileno() in ready:
                data, files, _, _ = socket.recv_fds(self._control, 1, 1)
                if not data:
                    return
                for file in files:
                    self._fork(file)

    def _fork(self, file: int) -> None:
        try:
            pid = os.fork()
        except OSError:
            # The daemon sees its connection closed, and asks again.
            pid = -1
        if pid == 0:
            self._become_shim(file)
        self._started += 1
        os.close(file)

    def _become_shim(self, file: int) -> None:
        try:
            self._control.close()
            self._failpoints.count_on_from(self._started)
            self._shim.main(file, self._signals)
        finally:
            os._exit(0)


def _module(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{package}.{name}")


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
    with socket.socket(fileno=int(sys.argv[1])) as control:
        Spawner(control, os.path.basename(here)).serve()


if __name__ == "__main__":
    main()
