"""A door in front of the daemon's own that loses an answer: the request arrives, nobody hears."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class ForgetfulDoor:
    """Passes connections on to a unix socket; the first request that holds a mark is answered
    to nobody."""

    def __init__(self, target: Path, mark: bytes) -> None:
        self._target = target
        self._mark = mark
        self._lost = False
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                daemon = socket.socket(socket.AF_UNIX)
                daemon.connect(str(self._target))
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(client, daemon), daemon=True).start()

    def _ask(self, client: socket.socket, daemon: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                self.received += data
                daemon.sendall(data)
            daemon.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, daemon: socket.socket) -> None:
        with client, daemon, contextlib.suppress(OSError):
            while data := daemon.recv(1 << 16):
                if not self._lost and self._mark in self.received:
                    self._lost = True
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


@contextlib.contextmanager
def forgetful_door(target: Path, mark: bytes) -> Iterator[ForgetfulDoor]:
    door = ForgetfulDoor(target, mark)
    try:
        yield door
    finally:
        door.close()
