"""How a process that was forked from a warm one takes the place of one that was asked for."""

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

LARGEST_REQUEST = 1 << 20


def receive(requests: socket.socket, descriptors: int) -> tuple[dict[str, Any], list[int]]:
    """What somebody asks for with `socket.send_fds`, and the descriptors that come with it; nothing
    from one who is gone."""
    data, received, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, descriptors)
    return json.loads(data or b"{}"), received


def become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Look like a process that was started afresh, with these streams, environment and place."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    os.closerange(3, 256)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
