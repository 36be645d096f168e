"""The terminal of an interactive agent and what people type into it; standard library only.

What is typed comes through a named pipe in the process directory, which outlives every daemon. Each
message is signed with the secret of the process and newer than the one before: nobody else types.
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
# With what stands before it a message is written to a pipe in one piece, also on macOS.
LARGEST = 400
_SIZE = 2
_DIGEST = 32
_STAMP = 8


def message(secret: bytes, stamp: int, kind: bytes, data: bytes) -> bytes:
    """A message for the supervisor of a terminal; stamps rise from one to the next."""
    body = stamp.to_bytes(_STAMP, "big") + kind + data
    signed = _digest(secret, body) + body
    return len(signed).to_bytes(_SIZE, "big") + signed


def _digest(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, files.INPUT.encode() + b"\0" + body, "sha256")


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def control(terminal: int) -> None:
    """Make it the terminal of this session, whose leader we are."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


class Terminal:
    """Our side of a terminal, and the pipe with what is to be typed into it."""

    def __init__(self, process_dir: str, secret: bytes, file: int) -> None:
        self.file = file
        self.pending = b""
        self._secret = secret
        self._last = 0
        self._begun = b""
        path = os.path.join(process_dir, files.INPUT)
        os.mkfifo(path, 0o600)
        # For both directions: it stays open while nobody writes to it.
        self.input = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def receive(self) -> None:
        """Do what the messages say that have come; what somebody else wrote is thrown away."""
        with contextlib.suppress(BlockingIOError):
            self._begun += os.read(self.input, 65536)
        while len(self._begun) > _SIZE:
            end = _SIZE + int.from_bytes(self._begun[:_SIZE], "big")
            if end > _SIZE + _DIGEST + _STAMP + 1 + LARGEST:
                self._begun = b""
            if len(self._begun) < end:
                return
            signed = self._begun[_SIZE:end]
            self._begun = self._begun[end:]
            body = signed[_DIGEST:]
            stamp = int.from_bytes(body[:_STAMP], "big")
            ours = hmac.compare_digest(signed[:_DIGEST], _digest(self._secret, body))
            if ours and stamp > self._last:
                self._last = stamp
                self._do(body[_STAMP : _STAMP + 1], body[_STAMP + 1 :])

    def _do(self, kind: bytes, data: bytes) -> None:
        if kind == RESIZE:
            set_size(self.file, *struct.unpack("!HH", data))
        elif kind == TYPE:
            self.pending += data
            self.type()

    def type(self) -> None:
        """Type what waits for the program to read what came before."""
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.file, self.pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self.pending = b""  # its program has gone
