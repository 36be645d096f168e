"""The program behind a bridge: its output by lines, our signals passed on, its end made ours."""

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import NoReturn, Self

_CHUNK = 1 << 16
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Child:
    """A process whose standard output we read; the other two streams are ours."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            # What a shell says of a program that it cannot start.
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._wake, waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)

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
                self._rest()
                continue
            if not chunk:
                return
            yield chunk

    def _rest(self) -> None:
        """Until there is output, or a signal such as that of its end."""
        ready, _, _ = select.select([self._output, self._wake], [], [])
        if self._wake in ready:
            os.read(self._wake, _CHUNK)

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

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._process.send_signal(number)
