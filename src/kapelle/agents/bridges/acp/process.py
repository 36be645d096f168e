"""The agent process, its messages, and the errors in them.

Each agent puts the provider's status into another place of an error.
"""

import asyncio
import contextlib
import json
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from typing import Any

from kapelle.agents.bridges.acp.connection import RpcError
from kapelle.agents.bridges.base import BridgeFailed
from kapelle.agents.events import JsonObject, json_object

# Tool output travels within one line, so lines may be large.
_LONGEST_LINE = 64 * 2**20
_LAST_WORDS = 2000
_CLOSING_S = 1.0
_TERMINATING_S = 3.0
_AUTHENTICATION_REQUIRED = -32000
_STATUS = re.compile(
    r"(?:\berror|status(?: code)?|HTTP|request rejected)\W{0,4}([45]\d\d)\b", re.IGNORECASE
)
_STATUS_KEYS = frozenset({"status", "statusCode", "status_code", "httpStatusCode", "code"})
_TYPE_KEYS = frozenset({"errorKind", "codexErrorInfo", "type", "status"})
_TEXT_KEYS = frozenset({"message", "details", "additionalDetails"})
_LONGEST_TYPE = 60


class AgentProcess:
    """One agent over its standard input and output; a MessageTransport."""

    def __init__(self, process: Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = b""
        self._reading = asyncio.create_task(self._read_stderr(process.stderr))

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

    async def receive(self) -> JsonObject | None:
        """The next message, or None at the end; what is no message is treated as standard error."""
        while True:
            try:
                line = await self._stdout.readline()
            except ValueError:
                self._add_stderr(b"(a line that is too long)\n")
                continue
            if not line:
                return None
            message = json_object(line.decode("utf-8", "replace"))
            if _is_message(message):
                return message
            self._add_stderr(line)

    async def close(self) -> None:
        """Ask the agent to end by closing its input, then by signals; some need those."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        process = self._process
        for seconds, end in ((_CLOSING_S, process.terminate), (_TERMINATING_S, process.kill)):
            if await self.ended(seconds):
                break
            with contextlib.suppress(ProcessLookupError):
                end()
        await self._process.wait()
        # A grandchild may hold standard error open for as long as it likes.
        await asyncio.wait({self._reading}, timeout=0.2)
        self._reading.cancel()

    async def ended(self, within_s: float) -> bool:
        try:
            await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def ending(self) -> str:
        """How it ended, as the end of a sentence, with its last words; waits for them briefly."""
        await self.ended(1.0)
        await asyncio.wait({self._reading}, timeout=0.2)
        code = self._process.returncode
        if code is None:
            how = "closed its output"
        else:
            how = f"ended with exit code {code}"
        words = self.last_words()
        if words:
            return f"{how}: {words}"
        return f"{how} without a word"

    def last_words(self) -> str:
        return self._stderr.decode("utf-8", "replace").strip()

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(65536):
            self._add_stderr(chunk)

    def _add_stderr(self, chunk: bytes) -> None:
        self._stderr = (self._stderr + chunk)[-_LAST_WORDS:]
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()


def _is_message(message: JsonObject) -> bool:
    """Whether the acp package can take it without stumbling."""
    return (
        isinstance(message.get("method", ""), str)
        and isinstance(message.get("id"), int | str | None)
        and isinstance(message.get("error"), dict | None)
        and ("method" in message or "id" in message)
    )


def failure_of(error: RpcError) -> BridgeFailed:
    """The message of a JSON-RPC error, with what it says about the provider's answer."""
    facts = list(_facts(error.data))
    strings = [(key, value) for key, value in facts if isinstance(value, str)]
    said = [value for key, value in strings if key in _TEXT_KEYS and value not in str(error)]
    text = ": ".join(dict.fromkeys(filter(None, [str(error), *said])))
    types = [v for key, v in strings if key in _TYPE_KEYS and len(v) <= _LONGEST_TYPE]
    status = _status(error, facts, text)
    kind = next(iter(types), None)
    refused = needs_login(error) and status in {None, 401, 403}
    return BridgeFailed(text, "authentication" if refused else "", status=status, type=kind)


def session_failure(message: JsonObject) -> JsonObject:
    """What codex-acp tells of a failure to clients that ask for it; there is no error then."""
    return message.mapping("_meta", "jetbrains", "air", "sessionFailure")


def failure_told(text: str) -> BridgeFailed:
    """The failure that a text tells of."""
    found = _STATUS.search(text)
    if "context window" in text:
        name = "context_overflow"
    else:
        name = ""
    return BridgeFailed(text, name, status=int(found[1]) if found else None)


def needs_login(error: RpcError) -> bool:
    return error.code == _AUTHENTICATION_REQUIRED


def _status(error: RpcError, facts: list[tuple[str, Any]], text: str) -> int | None:
    # Gemini says 500 for whatever it does not know the status of.
    if error.code == 500 and "not found" in text.lower():
        return 404
    stated = [error.code, *(value for key, value in facts if key in _STATUS_KEYS)]
    for value in stated:
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _facts(value: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every key with its value, however deep."""
    if isinstance(value, str) and depth == 0:
        yield "message", value
    if not isinstance(value, dict) or depth > 4:
        return
    for key, inner in value.items():
        yield key, inner
        yield from _facts(inner, depth + 1)
