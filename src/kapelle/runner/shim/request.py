"""The request that tells a shim what to run: how it is written and read; standard library only.

It travels over a socket and never touches the disk or an argument list, because the environment
and the standard input may hold secrets.
"""

import json
import os
import select
from collections.abc import Mapping

from .system import memory_file

_LENGTH_BYTES = 8
_CHUNK = 65536
_PATIENCE_MS = 60_000

# Kept at hand, it touches far less memory in each forked process than json.loads.
_decoder = json.JSONDecoder()


class Request:
    """What to run; everything that reaches the kernel is bytes."""

    def __init__(self, header: bytes) -> None:
        fields = _decoder.raw_decode(header.decode())[0]
        self.process_dir: str = os.fsdecode(_from_wire(fields["process_dir"]))
        self.argv: list[bytes] = [_from_wire(text) for text in fields["argv"]]
        self.cwd: bytes = _from_wire(fields["cwd"])
        self.env: dict[bytes, bytes] = {
            _from_wire(name): _from_wire(value) for name, value in fields["env"].items()
        }
        self.redact: tuple[bytes, ...] = tuple(_from_wire(text) for text in fields["redact"])
        self.timeout_s: float | None = fields["timeout_s"]
        self.grace_s: float = fields["grace_s"]
        self.boot_id: str = fields["boot_id"]
        self.secret: bytes = _from_wire(fields["secret"])
        # Rows and columns of the terminal that it is given, if it is.
        self.terminal: list[int] | None = fields["terminal"]
        leaf = fields["leaf"]
        self.leaf: str | None = None if leaf is None else os.fsdecode(_from_wire(leaf))
        self.stdin_bytes: int | None = fields["stdin_bytes"]


def encode(fields: Mapping[str, object], stdin: bytes | None) -> bytes:
    """The bytes of a request; UnicodeEncodeError if some text has no bytes."""
    wire = _to_wire({**fields, "stdin_bytes": None if stdin is None else len(stdin)})
    header = json.dumps(wire).encode()
    return len(header).to_bytes(_LENGTH_BYTES, "big") + header + (stdin or b"")


def receive(connection: int) -> tuple[Request, int]:
    """The request and an open file with the agent's standard input; EOFError if it is cut short."""
    length = int.from_bytes(_receive_exactly(connection, _LENGTH_BYTES), "big")
    request = Request(_receive_exactly(connection, length))
    if request.stdin_bytes is None:
        return request, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    stdin = _open_unnamed(request.process_dir)
    left = request.stdin_bytes
    while left:
        chunk = _receive_some(connection, left)
        left -= len(chunk)
        while chunk:
            chunk = chunk[os.write(stdin, chunk) :]
    os.lseek(stdin, 0, os.SEEK_SET)
    return request, stdin


def _open_unnamed(process_dir: str) -> int:
    try:
        return memory_file("stdin")
    except OSError:
        path = os.path.join(process_dir, f"stdin.{os.getpid()}.tmp")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        return file


def _receive_some(connection: int, limit: int) -> bytes:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    # A daemon that stopped halfway must not keep us here for ever.
    chunk = os.read(connection, min(limit, _CHUNK)) if poller.poll(_PATIENCE_MS) else b""
    if not chunk:
        raise EOFError("the request was cut short")
    return chunk


def _receive_exactly(connection: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        data += _receive_some(connection, length - len(data))
    return bytes(data)


def _to_wire(value: object) -> object:
    # One character per byte: JSON cannot carry bytes, and not all of them are UTF-8.
    if isinstance(value, str):
        if value.isascii():
            return value
        value = os.fsencode(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {_to_wire(name): _to_wire(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_wire(item) for item in value]
    return value


def _from_wire(text: str) -> bytes:
    return text.encode("latin-1")
