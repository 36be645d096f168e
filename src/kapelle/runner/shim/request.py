"""The request that tells a shim what to run: how it is written and read; standard library only.

It travels over a socket and never touches the disk or an argument list, because the environment
and the standard input may hold secrets.
"""

import contextlib
import marshal
import os
import select
import sys
from collections.abc import Mapping

_LENGTH_BYTES = 8
_CHUNK = 65536
_PATIENCE_MS = 60_000


class Confinement:
    """The paths that a process may read and write, and the rung of the ladder that enforces them.

    All paths are absolute, without links, and existed when the daemon looked. A path that is in
    none of the lists can be read but not written.
    """

    # "namespaces" mounts everything anew, "landlock" only gives up rights.
    rung: str
    # Directories and files that look empty, such as ~/.ssh.
    hidden: tuple[str, ...] = ()
    # Paths below hidden ones or below /run that can be read all the same.
    shown: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    # Paths below writable ones that cannot be written, such as an agent's own settings.
    pinned: tuple[str, ...] = ()
    # Directories that stand at another path: (directory, path).
    binds: tuple[tuple[str, str], ...] = ()
    # The same, but for reading only.
    read_only_binds: tuple[tuple[str, str], ...] = ()
    # Layers, the topmost first, with a directory for changes and one for the kernel's work,
    # mounted at a path: (layers, changes, work, path).
    overlays: tuple[tuple[tuple[str, ...], str, str, str], ...] = ()
    # Sockets of other programs that the process may connect to.
    sockets: tuple[str, ...] = ()
    # The directory that stands at /tmp and /var/tmp.
    tmp: str
    devices: tuple[str, ...] = ()
    # "open", "proxy" (only a port of the loopback device leads out) or "off".
    network: str = "open"

    def __init__(self, fields: dict[str, object]) -> None:
        vars(self).update(fields)


class ShimRequest:
    """What to run; everything that reaches the kernel is bytes."""

    process_dir: str
    argv: list[bytes]
    cwd: bytes
    env: dict[bytes, bytes]
    secret: bytes
    redact: tuple[bytes, ...] = ()
    timeout_s: float | None = None
    grace_s: float = 5.0
    boot_id: str = ""
    terminal: tuple[int, int] | None = None  # rows and columns of the one that it is given
    leaf: str | None = None
    confinement: Confinement | None = None
    stdin_bytes: int | None

    def __init__(self, header: bytes) -> None:
        fields = marshal.loads(header)
        if fields.get("confinement") is not None:
            fields["confinement"] = Confinement(fields["confinement"])
        vars(self).update(fields)


def encode(fields: Mapping[str, object], stdin: bytes | None) -> bytes:
    """The bytes of a request, for a process of this very Python."""
    header = marshal.dumps({**fields, "stdin_bytes": None if stdin is None else len(stdin)})
    return len(header).to_bytes(_LENGTH_BYTES, "big") + header + (stdin or b"")


def receive(connection: int) -> tuple[ShimRequest, int]:
    """The request and an open file with the agent's standard input; EOFError if it is cut short."""
    length = int.from_bytes(_receive_exactly(connection, _LENGTH_BYTES), "big")
    request = ShimRequest(_receive_exactly(connection, length))
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
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.memfd_create("stdin")
    path = os.path.join(process_dir, f"stdin.{os.getpid()}.tmp")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return file


def _receive_some(connection: int, limit: int) -> bytes:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    # A daemon that stopped halfway must not keep us here for ever.
    if poller.poll(_PATIENCE_MS):
        chunk = os.read(connection, min(limit, _CHUNK))
    else:
        chunk = b""
    if not chunk:
        raise EOFError("the request was cut short")
    return chunk


def _receive_exactly(connection: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        data += _receive_some(connection, length - len(data))
    return bytes(data)
