"""A command of ours in a terminal, as a person sits before it."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.e2e.support.instance import Instance


class Terminal:
    """A command whose three streams are a terminal."""

    def __init__(
        self, kapelle: Instance, *arguments: str, columns: int = 120, cwd: Path | None = None
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns, 30)
        size = {"COLUMNS": str(columns), "LINES": "30"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kapelle", *arguments],
            env={**kapelle.env, "TERM": "xterm-256color", **size},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # Tests may themselves run in the background of a shell, which ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            cwd=cwd or "/",
        )
        os.close(slave)
        self.shown = ""

    def resize(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self._master, (rows, columns))

    def modes(self) -> list[object]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: str, timeout_s: float = 30) -> str:
        """Everything shown so far, once the text is in it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown and self._read(deadline):
            pass
        assert text in self.shown, self.shown
        return self.shown

    def finish(self, timeout_s: float = 30) -> int:
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        return self.process.wait(timeout_s)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        try:
            block = os.read(self._master, 65536) if ready else b""
        except OSError:
            block = b""
        self.shown += block.decode("utf-8", "replace")
        return bool(block)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
