"""The terminal of an interactive agent and the input that people type; standard library only.

Input comes through a named pipe in the process directory, which outlives every daemon. Each message
is signed with the secret of the process and carries a rising stamp, so no other process can type or
replay input.
"""

import contextlib
import fcntl
import hmac
import os
import struct
import termios

from . import files

TYPE = b"t"
RESIZE = b"r"
# With its header, a message of this size is written to a pipe atomically, on macOS too.
LARGEST = 400
_SIZE = 2
_DIGEST = 32
_STAMP = 8


def make_message(secret: bytes, stamp: int, kind: bytes, data: bytes) -> bytes:
    """Return a message for the supervisor of a terminal; each stamp is above the last."""
    body = stamp.to_bytes(_STAMP, "big") + kind + data
    frame = _sign(secret, body) + body
    return len(frame).to_bytes(_SIZE, "big") + frame


def _sign(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, files.INPUT.encode() + b"\0" + body, "sha256")


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Set the number of rows and columns."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def make_controlling(terminal: int) -> None:
    """Make this the controlling terminal of the session, whose leader this process is."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


class Terminal:
    """The supervisor's side of a terminal, and the pipe with its input."""

    def __init__(self, process_dir: str, secret: bytes, file: int) -> None:
        self.file = file
        self.pending = b""
        self._secret = secret
        self._last = 0
        self._buffer = b""
        path = os.path.join(process_dir, files.INPUT)
        os.mkfifo(path, 0o600)
        # Opened for reading and writing, so that the pipe stays open while no daemon writes.
        self.input = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def receive(self) -> None:
        """Carry out the messages that have arrived; unsigned and repeated ones are dropped."""
        with contextlib.suppress(BlockingIOError):
            self._buffer += os.read(self.input, 65536)
        while len(self._buffer) > _SIZE:
            end = _SIZE + int.from_bytes(self._buffer[:_SIZE], "big")
            if end > _SIZE + _DIGEST + _STAMP + 1 + LARGEST:
                self._buffer = b""
            if len(self._buffer) < end:
                return
            frame = self._buffer[_SIZE:end]
            self._buffer = self._buffer[end:]
            body = frame[_DIGEST:]
            stamp = int.from_bytes(body[:_STAMP], "big")
            is_ours = hmac.compare_digest(frame[:_DIGEST], _sign(self._secret, body))
            if is_ours and stamp > self._last:
                self._last = stamp
                self._do(body[_STAMP : _STAMP + 1], body[_STAMP + 1 :])

    def _do(self, kind: bytes, data: bytes) -> None:
        if kind == RESIZE:
            set_size(self.file, *struct.unpack("!HH", data))
        elif kind == TYPE:
            self.pending += data
            self.type()

    def type(self) -> None:
        """Type as much pending input as the program accepts now."""
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.file, self.pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self.pending = b""  # the program has ended
