"""One warm process that forks a shim whenever the daemon hands it a connection.

Standard library only. `python -I -S spawner.py <control fd> <warm-ups>`: each byte on the control
channel carries one descriptor, on which a request waits. It ends with its daemon; its shims do not.

Whatever this loop touches between two forks is memory that the next shim does not share.
"""

import gc
import importlib
import os
import select
import socket
import sys


def serve(control: socket.socket, place: str, warm_ups: int) -> None:
    """Fork a shim per connection until the daemon is gone."""
    shim, failpoints, system = (
        importlib.import_module(f"{os.path.basename(place)}.{name}")
        for name in ("shim", "failpoints", "system")
    )
    signals = system.Signals()
    if failpoints.VARIABLE not in os.environ:  # they are for the shims themselves
        for _ in range(warm_ups):
            shim.warm_up(place, signals)
    # No collection may touch, and thereby copy, the pages that all shims share.
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
            for _, _, packed in descriptors:
                connection = int.from_bytes(packed, sys.byteorder)
                try:
                    pid = os.fork()
                except OSError:
                    pid = -1  # the daemon sees its connection closed, and asks again
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
    # This directory is a package here as in the source tree, so that relative imports work.
    sys.path.insert(0, os.path.dirname(here))
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        serve(channel, here, int(sys.argv[2]))
