"""Run the agent process, exchange messages with it, and read the errors in them.

Each agent puts the provider's status into another field of an error.
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

# A message is one line and may hold the output of a tool.
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
        """Start the program; raise OSError if there is none."""
        return cls(
            await asyncio.create_subprocess_exec(
                *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_LONGEST_LINE
            )
        )

    async def send(self, message: dict[str, Any]) -> None:
        self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._stdin.drain()

    async def receive(self) -> JsonObject | None:
        """Return the next message, or None at the end.

        Any other line is treated as standard error.
        """
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
        """End the agent: close its input, then send signals, which some agents need."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        process = self._process
        for seconds, end in ((_CLOSING_S, process.terminate), (_TERMINATING_S, process.kill)):
            if await self._has_ended(seconds):
                break
            with contextlib.suppress(ProcessLookupError):
                end()
        await self._process.wait()
        # A grandchild may hold standard error open for as long as it likes.
        await asyncio.wait({self._reading}, timeout=0.2)
        self._reading.cancel()

    async def _has_ended(self, within_s: float) -> bool:
        try:
            await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def describe_end(self) -> str:
        """Return how the agent ended, as the end of a sentence, with its last output."""
        await self._has_ended(1.0)
        await asyncio.wait({self._reading}, timeout=0.2)
        code = self._process.returncode
        ending = "closed its output" if code is None else f"ended with exit code {code}"
        words = self.last_words()
        if words:
            return f"{ending}: {words}"
        return f"{ending} without any error output"

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
    """Tell whether an object is a valid JSON-RPC message."""
    return (
        isinstance(message.get("method", ""), str)
        and isinstance(message.get("id"), int | str | None)
        and isinstance(message.get("error"), dict | None)
        and ("method" in message or "id" in message)
    )


def describe_error(error: RpcError) -> BridgeFailed:
    """Return the failure that a JSON-RPC error reports, with the provider's status and type."""
    facts = list(_facts(error.data))
    details = []
    error_type = None
    for key, value in facts:
        if not isinstance(value, str):
            continue
        if key in _TEXT_KEYS and value not in str(error):
            details.append(value)
        if error_type is None and key in _TYPE_KEYS and len(value) <= _LONGEST_TYPE:
            error_type = value
    text = ": ".join(dict.fromkeys(filter(None, [str(error), *details])))
    status = _status(error, facts, text)
    name = ""
    if needs_login(error) and status in {None, 401, 403}:
        name = "authentication"
    return BridgeFailed(text, name, status=status, type=error_type)


def session_failure(message: JsonObject) -> JsonObject:
    """Return the failure that codex-acp reports in an extension of a message without an error."""
    return message.mapping("_meta", "jetbrains", "air", "sessionFailure")


def describe_failure(text: str) -> BridgeFailed:
    """Return the failure that a text reports."""
    name = "context_overflow" if "context window" in text else ""
    return BridgeFailed(text, name, status=_status_in(text))


def needs_login(error: RpcError) -> bool:
    return error.code == _AUTHENTICATION_REQUIRED


def _status(error: RpcError, facts: list[tuple[str, Any]], text: str) -> int | None:
    """Return the HTTP status of the provider's answer, or None."""
    # Gemini reports 500 if it does not know the status.
    if error.code == 500 and "not found" in text.lower():
        return 404
    values = [error.code, *(value for key, value in facts if key in _STATUS_KEYS)]
    for value in values:
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return _status_in(text)


def _status_in(text: str) -> int | None:
    match = _STATUS.search(text)
    if match is None:
        return None
    return int(match[1])


def _facts(value: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, of nested objects, too."""
    if isinstance(value, str) and depth == 0:
        yield "message", value
    if not isinstance(value, dict) or depth > 4:
        return
    for key, inner in value.items():
        yield key, inner
        yield from _facts(inner, depth + 1)
