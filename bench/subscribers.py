"""Many who follow the history at once. `python -m bench.subscribers SOCKET TOKEN COUNT`.

Prints a line when all follow it, reads until its input ends, then prints how many have seen
everything that the first has, and in milliseconds how late the last was told.
"""

import json
import re
import selectors
import socket
import sys
import time
from datetime import datetime

_ID = re.compile(rb"^id: (\d+)", re.MULTILINE)
_AT = re.compile(rb'"at":"([^"]+)"')


def main() -> None:
    path, token, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n"
    waiting = selectors.DefaultSelector()
    streams = [_follow(path, request.encode()) for _ in range(count)]
    for stream in streams:
        stream.recv(65536)
        waiting.register(stream, selectors.EVENT_READ)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    seen: dict[int, list[bytes]] = {stream.fileno(): [] for stream in streams}
    late_ms: list[float] = []
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                told = {stream: _ID.findall(b"".join(data)) for stream, data in seen.items()}
                most = told[streams[0].fileno()]
                everything = sum(ids == most for ids in told.values())
                print(json.dumps({"everything": everything, "late_ms": late_ms}), flush=True)
                return
            data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
            seen[key.fd].append(data)
            if key.fileobj is streams[-1] and (at := _AT.search(data)):
                began = datetime.fromisoformat(at[1].decode()).timestamp()
                late_ms.append((time.time() - began) * 1000)


def _follow(path: str, request: bytes) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect(path)
    stream.sendall(request)
    return stream


if __name__ == "__main__":
    main()
