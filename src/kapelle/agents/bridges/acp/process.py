"""The agent process: starts it, carries its messages, keeps its last words, ends it."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

from kapelle.agents.reading import json_object

# Tool output travels within one line, so lines may be large.
_LONGEST_LINE = 64 * 2**20
_LAST_WORDS = 2000
_CLOSING_S = 1.0
_TERMINATING_S = 3.0


class AgentProcess:
    """One agent over its standard input and output; satisfies the acp package's Transport."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._words = b""
        self._listening = asyncio.create_task(self._pass_on(process.stderr))

    @classmethod
    async def start(cls, argv: list[str]) -> "AgentProcess":
        """Raises OSError when there is no such program."""
        return cls(
            await asyncio.create_subprocess_exec(
                *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_LONGEST_LINE
            )
        )

    async def send(self, message: dict[str, Any]) -> None:
        self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._stdin.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message, or None at the end; what is no message is treated as standard error."""
        while True:
            try:
                line = await self._stdout.readline()
            except ValueError:
                self._hear(b"(a line that is too long)\n")
                continue
            if not line:
                return None
            message = json_object(line.decode("utf-8", "replace"))
            if message is not None and _is_message(message):
                return message
            self._hear(line)

    async def close(self) -> None:
        """Ask the agent to end by closing its input, then by signals; some need those."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        for seconds, signal in (
            (_CLOSING_S, self._process.terminate),
            (_TERMINATING_S, self._process.kill),
        ):
            if await self.ended(seconds):
                break
            with contextlib.suppress(ProcessLookupError):
                signal()
        await self._process.wait()
        # A grandchild may hold standard error open for as long as it likes.
        await asyncio.wait({self._listening}, timeout=0.2)
        self._listening.cancel()

    async def ended(self, within_s: float) -> bool:
        try:
            await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def ending(self) -> str:
        """How it ended, as the end of a sentence, with its last words; waits for them briefly."""
        await self.ended(1.0)
        await asyncio.wait({self._listening}, timeout=0.2)
        code = self._process.returncode
        how = "closed its output" if code is None else f"ended with exit code {code}"
        words = self.last_words()
        return f"{how}: {words}" if words else f"{how} without a word"

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace").strip()

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(65536):
            self._hear(chunk)

    def _hear(self, chunk: bytes) -> None:
        self._words = (self._words + chunk)[-_LAST_WORDS:]
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()


def _is_message(message: dict[str, Any]) -> bool:
    """Whether the acp package can take it without stumbling."""
    return (
        isinstance(message.get("method", ""), str)
        and isinstance(message.get("id"), int | str | None)
        and isinstance(message.get("error"), dict | None)
        and ("method" in message or "id" in message)
    )
