"""What bridges share: event lines, the error that ends an attempt, the program behind a bridge."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

from kapelle.agents.events import AgentEvent, EventKind

_CHUNK = 1 << 16
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def emit(
    kind: EventKind, text: str = "", name: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """Print one event; ASCII only, so that neither locale nor half a surrogate pair matters."""
    print(json.dumps(AgentEvent(kind, text, name, data or {}).to_json()), flush=True)


class Failed(Exception):
    """Why there is no result: name is a FailureClass where that is certain, data is ErrorData."""

    def __init__(self, text: str, name: str = "", **data: Any) -> None:
        super().__init__(text)
        self.name = name
        self.data = {key: value for key, value in data.items() if value is not None}

    def emit(self) -> None:
        emit("error", str(self), self.name, self.data)


def is_address(url: str) -> bool:
    """Whether requests can go to it; a password in it is refused, for logs show addresses."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return bool(fits) and "@" not in parts.netloc and is_plain


class Child:
    """A process whose standard output we read; our signals are passed on, and its end is ours."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            # What a shell says of a program that it cannot start.
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._wake, waker = os.pipe()
        for descriptor in (self._output, self._wake, waker):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in _PASSED_ON:
            signal.signal(number, lambda number, frame: self._process.send_signal(number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Without us nobody would read what it prints.
        if kind is not None:
            self.stop()

    def lines(self) -> Iterator[bytes]:
        """Each line without its end, until the process is gone, whoever else holds its output."""
        parts: list[bytes] = []
        for chunk in self._chunks():
            first, *more = chunk.split(b"\n")
            parts.append(first)
            if more:
                yield b"".join(parts)
                yield from more[:-1]
                parts = more[-1:]
        if last := b"".join(parts):
            yield last

    def _chunks(self) -> Iterator[bytes]:
        while True:
            # Asked before the reading: what it wrote until its end is then all there.
            is_over = self._process.poll() is not None
            try:
                chunk = os.read(self._output, _CHUNK)
            except BlockingIOError:
                if is_over:
                    return
                # Until there is output, or a signal such as that of its end.
                ready, _, _ = select.select([self._output, self._wake], [], [])
                if self._wake in ready:
                    os.read(self._wake, _CHUNK)
                continue
            if not chunk:
                return
            yield chunk

    def stop(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        return self._process.wait()

    def end_likewise(self) -> NoReturn:
        """End this process as the child ended."""
        code = self.wait()
        sys.stdout.flush()
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if -code in _PASSED_ON:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        sys.exit(code)
