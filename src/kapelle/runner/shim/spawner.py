"""One warm process that forks a shim for each connection that the daemon hands over.

Standard library only. `python -I -S spawner.py <control fd> <warm-ups>`: each byte on the control
channel carries one descriptor, from which the shim reads its request. The spawner ends with its
daemon; its shims do not.

Memory that this loop writes between two forks is not shared by the next shim.
"""

import gc
import importlib
import os
import select
import socket
import sys


def serve(control: socket.socket, place: str, warm_ups: int) -> None:
    """Fork a shim for each connection until the daemon is gone."""
    shim, failpoints, system = (
        importlib.import_module(f"{os.path.basename(place)}.{name}")
        for name in ("shim", "failpoints", "system")
    )
    signals = system.Signals()
    if failpoints.VARIABLE not in os.environ:  # failpoints are meant for real shims
        for _ in range(warm_ups):
            shim.warm_up(place, signals)
    # A garbage collection would write to, and so copy, the pages that all shims share.
    gc.disable()
    gc.freeze()
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(signals.file, select.POLLIN)
    while not signals.stop:
        ready = {file for file, _ in poller.poll()}
        if signals.file in ready:
            signals.drain()
            _reap()
        if control.fileno() in ready:
            data, descriptors, _, _ = control.recvmsg(1, socket.CMSG_SPACE(4))
            if not data:
                return
            for _, _, descriptor_bytes in descriptors:
                connection = int.from_bytes(descriptor_bytes, sys.byteorder)
                try:
                    pid = os.fork()
                except OSError:
                    pid = -1  # the daemon notices the closed connection and retries
                if pid == 0:
                    try:
                        shim.main(connection, signals)
                    finally:
                        os._exit(0)
                failpoints.elder_siblings += 1  # type: ignore[attr-defined]
                os.close(connection)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    # Make this directory a package, as in the source tree, so that relative imports work.
    sys.path.insert(0, os.path.dirname(here))
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        serve(channel, here, int(sys.argv[2]))
