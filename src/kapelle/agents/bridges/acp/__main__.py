"""Run an Agent Client Protocol agent for one attempt and print Kapelle's events.

    python -m kapelle.agents.bridges.acp --job FILE -- COMMAND…

The prompt comes on standard input, and the working directory is the workspace. The exit code is 0
with a result or a question, 1 with an error, and 128 plus the signal's number after a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kapelle.agents.bridges.acp import Job
from kapelle.agents.bridges.acp.connection import AcpConnection, RpcError
from kapelle.agents.bridges.acp.process import (
    AgentProcess,
    describe_error,
    describe_failure,
    session_failure,
)
from kapelle.agents.bridges.acp.session import AcpSession
from kapelle.agents.bridges.acp.updates import ToolCallState, Updates, opencode_session_tokens
from kapelle.agents.bridges.base import BridgeFailed, emit
from kapelle.agents.bridges.hook import new_messages, refusal, take_messages
from kapelle.agents.events import JsonObject, mapping_of

_CANCEL_S = 10.0
_REPLAY_S = 10.0
_PAUSE_S = 0.3
_KINDS = {"allow": ("allow_always", "allow_once"), "deny": ("reject_once", "reject_always")}
_ENDINGS = {
    "max_tokens": ("The model's answer or its context reached the limit.", "context_overflow"),
    "max_turn_requests": ("The agent reached its own limit of requests in a turn.", "limit"),
    "refusal": ("The model refused to continue.", "task"),
    "cancelled": ("The turn was cancelled.", "task"),
}
_LONGEST_DETAIL = 2000
_HOW_TO_ANSWER = (
    'Answer "allow" to permit this and all other requests of the next attempt. Any other answer'
    " refuses them."
)
_STOP_S = 2.0
_LOOK_S = 0.5
_READING = ("read", "search", "fetch", "think")
_WRITING = ("edit", "delete", "move")


def main() -> int:
    option, path, dashes, *command = sys.argv[1:]
    if (option, dashes) != ("--job", "--") or not command:
        sys.exit(__doc__)
    job = Job.of_text(Path(path).read_text("utf-8"))
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    return asyncio.run(_run(job, prompt, command))


async def _run(job: Job, prompt: str, command: list[str]) -> int:
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    try:
        process = await AgentProcess.start(command)
    except OSError as error:
        BridgeFailed(f"{command[0]} cannot be started: {error.strerror}", "environment").emit()
        return 1
    try:
        return await _follow(AgentTurn(process, job, prompt), signals)
    finally:
        await process.close()


async def _follow(turn: AgentTurn, signals: asyncio.Queue[int]) -> int:
    """Execute the turn until it ends or a signal ends it; return the exit code."""
    work = asyncio.create_task(turn.execute())
    interrupt = asyncio.create_task(signals.get())
    await asyncio.wait({work, interrupt}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        return work.result()
    await turn.stop()
    await asyncio.wait({work}, timeout=_STOP_S)
    work.cancel()
    await asyncio.wait({work})
    return 128 + interrupt.result()


class AgentTurn:
    """Talks to one agent; execute() prints events and returns the exit code."""

    def __init__(self, process: AgentProcess, job: Job, prompt: str) -> None:
        self._process = process
        self._job = job
        self._prompt = prompt
        self._connection = AcpConnection(self._handle, process)
        self._session_id = ""
        self._updates: Updates | None = None  # from the prompt on
        self._has_asked = False  # a question to a person ends the turn
        self._stopping = False
        self._update_count = 0
        self._agent_name = ""
        self._tokens_before: Counter[str] | None = None  # of the session, before the prompt

    async def execute(self) -> int:
        try:
            await self._prompt_agent()
        except BridgeFailed as failure:
            self._fail(failure)
        except RpcError as error:
            self._fail(describe_error(error))
        except ConnectionError:
            text = f"The agent {await self._process.describe_end()}"
            self._fail(BridgeFailed(text, "crash" if self._session_id else "environment"))
        else:
            return 0
        return 0 if self._has_asked else 1

    async def stop(self) -> None:
        """Cancel the turn, if there is one; print no further events."""
        self._stopping = True
        if self._updates:
            with contextlib.suppress(ConnectionError):
                await self._cancel()

    def _fail(self, failure: BridgeFailed) -> None:
        if self._updates:
            self._updates.finish()
        if not self._stopping and not self._has_asked:
            failure.emit()

    async def _prompt_agent(self) -> None:
        session = AcpSession(self._connection, self._job)
        try:
            await session.initialize()
        except BridgeFailed as failure:
            words = self._process.last_words()
            raise BridgeFailed(f"{failure} {words}".strip(), failure.name) from None
        self._session_id = await session.open()
        await self._wait_for_replay()
        text = self._prompt
        if self._job.system_prompt and not session.takes_system_prompt:
            text = f"<instructions>\n{self._job.system_prompt}\n</instructions>\n\n{text}"
        # The updates until now were the replay of earlier attempts.
        self._agent_name = session.name
        self._tokens_before = self._session_tokens()
        updates = self._updates = Updates(session.name)
        while text:
            response = await self._send_prompt(text)
            answer = updates.finish()
            updates.meter.finish(response, self._tokens_used())
            if self._stopping or self._has_asked:
                return
            text = self._take_messages()
        _require_success(response, updates.refusal)
        if updates.failure:
            raise describe_failure(updates.failure)
        emit("result", answer)

    def _session_tokens(self) -> Counter[str] | None:
        """Return the tokens of the whole session if the protocol does not report them."""
        if self._agent_name == "OpenCode":
            return opencode_session_tokens(self._session_id)
        return None

    def _tokens_used(self) -> Counter[str] | None:
        """Return the tokens since the prompt; None if only the protocol reports them."""
        before = self._tokens_before
        after = self._session_tokens()
        if before is None and not self._job.session_id:
            before = Counter()  # a new session is stored with its first prompt
        if before is None or after is None:
            return None
        return after - before

    async def _wait_for_replay(self) -> None:
        """Wait for the end of a session's replay, which some agents continue after their answer."""
        deadline = time.monotonic() + _REPLAY_S
        while self._job.session_id and time.monotonic() < deadline:
            before = self._update_count
            await asyncio.sleep(_PAUSE_S)
            if self._update_count == before:
                return

    async def _send_prompt(self, text: str) -> JsonObject:
        """Return the agent's response to a prompt.

        After a question to a person, and the cancellation that follows it, wait a short time only.
        """
        params = {"sessionId": self._session_id, "prompt": [{"type": "text", "text": text}]}
        request = asyncio.ensure_future(self._connection.request("session/prompt", params))
        try:
            has_cancelled = False
            looks_left = math.ceil(_CANCEL_S / _LOOK_S)
            while looks_left and not (await asyncio.wait({request}, timeout=_LOOK_S))[0]:
                if self._has_asked:
                    looks_left -= 1
                # A person's message becomes the next prompt, once this one is cancelled.
                if not has_cancelled and self._has_messages():
                    has_cancelled = True
                    await self._cancel()
            if not request.done():
                return JsonObject()
            return mapping_of(request.result())
        finally:
            request.cancel()

    def _has_messages(self) -> bool:
        return bool(new_messages(self._job.messages or "", self._job.message_key))

    def _take_messages(self) -> str:
        """Return the new messages of people; without any there is no folder."""
        texts = take_messages(self._job.messages or "", self._job.message_key)
        for text in texts:
            emit("notice", f"A person says: {text}")
        return "\n\n".join(texts)

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        """Handle one message of the agent.

        Updates are handled without waiting for anything, so that they are taken in their order.
        """
        fields = mapping_of(params)
        if method == "session/update":
            self._update_count += 1
            is_of_session = fields.get("sessionId") == self._session_id
            if self._updates and is_of_session and not self._stopping:
                self._updates.take(fields.mapping("update"))
            return None
        if method == "session/request_permission":
            return await self._answer_permission(fields)
        if method == "fs/read_text_file" and self._job.daemon:
            return {"content": await asyncio.to_thread(_read, fields)}
        if method == "fs/write_text_file" and self._job.daemon:
            return await self._write(Path(fields.text("path")), fields.text("content"))
        if is_notification:
            return None
        raise RpcError.method_not_found(method)

    async def _write(self, path: Path, content: str) -> dict[str, Any]:
        """Write a file unless another agent holds it."""
        reason = await self._refusal({"path": str(path)})
        if reason:
            raise RpcError(-32000, reason)
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(path.write_text, content, "utf-8")
        return {}

    async def _refusal(self, tool_input: Mapping[str, Any]) -> str | None:
        """Return why a tool may not write because of another agent, or None."""
        if self._job.daemon is None:
            return None
        return await asyncio.to_thread(refusal, self._job.daemon, tool_input, str(Path.cwd()))

    async def _answer_permission(self, request: JsonObject) -> dict[str, Any]:
        """Answer a request for permission by the job's permissions."""
        cancel = {"outcome": {"outcome": "cancelled"}}
        if self._updates is None or self._stopping or self._has_asked:
            return cancel
        tool = self._updates.requested_call(request.mapping("toolCall"))
        if self._job.decision == "ask":
            await self._ask_person(tool)
            return cancel
        tool_kind = request.text("toolCall", "kind")
        lock = None
        if tool_kind not in _READING:
            lock = await self._refusal(tool.input())
        decision = self._job.decision
        if lock or (self._job.read_only and tool_kind in _WRITING):
            decision = "deny"
        option_id = self._pick_option(request.mappings("options"), decision)
        if option_id is None:
            emit("notice", f"The agent offers no way to {decision}: {tool.title}")
            return cancel
        if decision == "deny":
            self._updates.refuse(tool)
            emit("notice", lock or f"Not permitted: {tool.title}")
        return {"outcome": {"outcome": "selected", "optionId": option_id}}

    async def _ask_person(self, tool: ToolCallState) -> None:
        """Print the request as a question to a person, and end the turn."""
        self._has_asked = True
        detail = json.dumps(tool.input(), ensure_ascii=False)[:_LONGEST_DETAIL]
        emit("question", f"May the agent do this? {tool.title}\n{detail}\n{_HOW_TO_ANSWER}")
        await self._cancel()

    def _pick_option(self, options: list[JsonObject], decision: str) -> Any:
        """Return the id of the option for a decision, or None if the agent offers none."""
        kinds = list(_KINDS[decision])
        if self._job.read_only:
            # A permission once: the next request may be one to write.
            kinds.reverse()
        for kind in kinds:
            for option in options:
                if option.text("kind") == kind:
                    return option.get("optionId")
        return None

    async def _cancel(self) -> None:
        params = {"sessionId": self._session_id}
        await self._connection.notify("session/cancel", params)


def _read(params: JsonObject) -> str:
    """Return the lines of a file that the agent asks for."""
    lines = Path(params.text("path")).read_text("utf-8", "replace").splitlines(keepends=True)
    start = max(params.count("line") - 1, 0)
    count = params.count("limit") or len(lines)
    return "".join(lines[start : start + count])


def _require_success(response: JsonObject, refusal: str) -> None:
    """Raise BridgeFailed unless the turn ended well."""
    # codex-acp reports a failure within a response that looks like a success.
    failure = session_failure(response)
    if failure.get("severity") == "error":
        raise describe_failure(failure.text("title") or "The turn failed.")
    reason = response.text("stopReason")
    if reason != "end_turn":
        raise BridgeFailed(*_ENDINGS.get(reason, (f"The turn ended with {reason!r}.", "task")))
    # opencode reports a normal end after a refused permission.
    if refusal:
        raise BridgeFailed(f"The agent stopped, because this was not permitted: {refusal}", "task")


if __name__ == "__main__":
    sys.exit(main())
