"""Runs an Agent Client Protocol agent for one attempt and prints Kapelle's events.

    python -m kapelle.agents.bridges.acp --job FILE -- COMMAND…

The prompt comes by standard input, and the working directory is the workspace. The exit code is 0
with a result or a question, 1 with an error, and 128 and the signal's number when stopped.
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
    failure_of,
    failure_told,
    session_failure,
)
from kapelle.agents.bridges.acp.session import AcpSession
from kapelle.agents.bridges.acp.updates import Updates, opencode_session_tokens
from kapelle.agents.bridges.base import BridgeFailed, emit
from kapelle.agents.bridges.hook import new_messages, refusal, take_messages
from kapelle.agents.events import JsonObject, mapping_of

_ACKNOWLEDGING_S = 10.0
_REPLAY_S = 10.0
_PAUSE_S = 0.3
_KINDS = {"allow": ("allow_always", "allow_once"), "deny": ("reject_once", "reject_always")}
_ENDINGS = {
    "max_tokens": ("The model's answer or its context reached the limit.", "context_overflow"),
    "max_turn_requests": ("The agent reached its own limit of requests in a turn.", "limit"),
    "refusal": ("The model refused to go on.", "task"),
    "cancelled": ("The turn was cancelled.", "task"),
}
_LONGEST_DETAIL = 2000
_HOW_TO_ANSWER = (
    'The answer "allow" permits this and all that it asks for in its next attempt; any other'
    " answer is a no."
)
_CANCELLING_S = 2.0
_LISTENING_S = 0.5
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
    """Until the turn has ended, or until a signal has ended it."""
    work = asyncio.create_task(turn.execute())
    stopped = asyncio.create_task(signals.get())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        return work.result()
    await turn.stop()
    await asyncio.wait({work}, timeout=_CANCELLING_S)
    work.cancel()
    await asyncio.wait({work})
    return 128 + stopped.result()


class AgentTurn:
    """Talks to one agent; execute() prints events and returns the exit code."""

    def __init__(self, process: AgentProcess, job: Job, prompt: str) -> None:
        self._process = process
        self._job = job
        self._prompt = prompt
        self._connection = AcpConnection(self._handle, process)
        self._session_id = ""
        self._updates: Updates | None = None  # only while it works on the prompt
        self._asked = asyncio.Event()
        self._stopping = False
        self._update_count = 0  # updates so far
        self._agent_name = ""
        self._tokens_before: Counter[str] | None = None  # of the session, before the prompt

    async def execute(self) -> int:
        try:
            await self._prompt_agent()
        except BridgeFailed as failed:
            self._fail(failed)
        except RpcError as error:
            self._fail(failure_of(error))
        except ConnectionError:
            text = f"The agent {await self._process.ending()}"
            self._fail(BridgeFailed(text, "crash" if self._session_id else "environment"))
        else:
            return 0
        return 0 if self._asked.is_set() else 1

    async def stop(self) -> None:
        """Cancel the turn, if there is one; nothing is reported any more."""
        self._stopping = True
        if self._updates:
            with contextlib.suppress(ConnectionError):
                await self._cancel()

    def _fail(self, failed: BridgeFailed) -> None:
        if self._updates:
            self._updates.finish()
        if not self._stopping and not self._asked.is_set():
            failed.emit()

    async def _prompt_agent(self) -> None:
        session = AcpSession(self._connection, self._job)
        try:
            await session.initialize()
        except BridgeFailed as failed:
            words = self._process.last_words()
            raise BridgeFailed(f"{failed} {words}".strip(), failed.name) from None
        self._session_id = await session.open()
        await self._wait_for_replay()
        text = self._prompt
        if self._job.system_prompt and not session.system_prompt_taken:
            text = f"<instructions>\n{self._job.system_prompt}\n</instructions>\n\n{text}"
        # What came until now is the replay of an earlier attempt.
        self._agent_name = session.name
        self._tokens_before = self._session_tokens()
        updates = self._updates = Updates(session.name)
        while text:
            response = await self._answer(text)
            answer = updates.finish()
            updates.meter.finish(response, self._tokens_used())
            if self._stopping or self._asked.is_set():
                return
            text = self._take_messages()
        _check(response, updates.refused)
        if updates.failure:
            raise failure_told(updates.failure)
        emit("result", answer)

    def _session_tokens(self) -> Counter[str] | None:
        """The tokens of the whole session, where the protocol does not tell them."""
        if self._agent_name == "OpenCode":
            return opencode_session_tokens(self._session_id)
        return None

    def _tokens_used(self) -> Counter[str] | None:
        """The tokens of the session since the prompt; None where only the protocol tells them."""
        before = self._tokens_before
        after = self._session_tokens()
        if before is None and not self._job.session_id:
            before = Counter()  # a new session is stored with its first prompt
        if before is None or after is None:
            return None
        return after - before

    async def _wait_for_replay(self) -> None:
        """Let the replay of an earlier session end: some go on with it after the answer."""
        deadline = time.monotonic() + _REPLAY_S
        while self._job.session_id and time.monotonic() < deadline:
            before = self._update_count
            await asyncio.sleep(_PAUSE_S)
            if self._update_count == before:
                return

    async def _answer(self, text: str) -> JsonObject:
        """The agent's answer to a prompt; one that asks is not waited for much longer."""
        params = {"sessionId": self._session_id, "prompt": [{"type": "text", "text": text}]}
        request = asyncio.ensure_future(self._connection.request("session/prompt", params))
        try:
            is_told = False
            looks_left = math.ceil(_ACKNOWLEDGING_S / _LISTENING_S)
            while looks_left and not (await asyncio.wait({request}, timeout=_LISTENING_S))[0]:
                looks_left -= self._asked.is_set()
                # What a person says is its next prompt, once it has left off.
                if not is_told and new_messages(self._job.messages or "", self._job.message_key):
                    is_told = True
                    await self._cancel()
            return mapping_of(request.result() if request.done() else None)
        finally:
            request.cancel()

    def _take_messages(self) -> str:
        """Return what people have said meanwhile; until then there is no folder."""
        texts = take_messages(self._job.messages or "", self._job.message_key)
        for text in texts:
            emit("notice", f"A person says: {text}")
        return "\n\n".join(texts)

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        """What the agent tells or asks; updates are taken in order, so none waits for anything."""
        given = mapping_of(params)
        ours = given.get("sessionId") == self._session_id
        if method == "session/update":
            self._update_count += 1
            if self._updates and ours and not self._stopping:
                self._updates.take(given.mapping("update"))
            return None
        if method == "session/request_permission":
            return await self._answer_permission(given)
        if method == "fs/read_text_file" and self._job.daemon:
            return {"content": await asyncio.to_thread(_read, given)}
        if method == "fs/write_text_file" and self._job.daemon:
            return await self._write(Path(given.text("path")), given.text("content"))
        if is_notification:
            return None
        raise RpcError.method_not_found(method)

    async def _write(self, path: Path, content: str) -> dict[str, Any]:
        """Write a file unless somebody else holds it."""
        if reason := await self._refusal({"path": str(path)}):
            raise RpcError(-32000, reason)
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(path.write_text, content, "utf-8")
        return {}

    async def _refusal(self, given: Mapping[str, Any]) -> str | None:
        if self._job.daemon is None:
            return None
        return await asyncio.to_thread(refusal, self._job.daemon, given, str(Path.cwd()))

    async def _answer_permission(self, request: JsonObject) -> dict[str, Any]:
        cancelled = {"outcome": {"outcome": "cancelled"}}
        if self._updates is None or self._stopping or self._asked.is_set():
            return cancelled
        tool = self._updates.requested_call(request.mapping("toolCall"))
        if self._job.decision == "ask":
            self._asked.set()
            detail = json.dumps(tool.input(), ensure_ascii=False)[:_LONGEST_DETAIL]
            emit("question", f"May the agent do this? {tool.title}\n{detail}\n{_HOW_TO_ANSWER}")
            await self._cancel()
            return cancelled
        options = {option.text("kind"): option for option in reversed(request.mappings("options"))}
        locked = request.text("toolCall", "kind") not in _READING and await self._refusal(
            tool.input()
        )
        writes = self._job.read_only and request.text("toolCall", "kind") in _WRITING
        if locked or writes:
            decision = "deny"
        else:
            decision = self._job.decision
        kinds = reversed(_KINDS[decision]) if self._job.read_only else _KINDS[decision]
        picked = next((kind for kind in kinds if kind in options), None)
        if picked is None:
            emit("notice", f"The agent offers no way to {decision}: {tool.title}")
            return cancelled
        if decision == "deny":
            self._updates.refuse(tool)
            emit("notice", locked or f"Not permitted: {tool.title}")
        return {"outcome": {"outcome": "selected", "optionId": options[picked].get("optionId")}}

    async def _cancel(self) -> None:
        params = {"sessionId": self._session_id}
        await self._connection.notify("session/cancel", params)


def _read(given: JsonObject) -> str:
    lines = Path(given.text("path")).read_text("utf-8", "replace").splitlines(keepends=True)
    first = max(given.count("line") - 1, 0)
    return "".join(lines[first : first + (given.count("limit") or len(lines))])


def _check(response: JsonObject, refused: str) -> None:
    """Raises BridgeFailed unless the turn ended well."""
    # codex-acp tells a failure within an answer that looks like a success.
    failure = session_failure(response)
    if failure.get("severity") == "error":
        raise failure_told(failure.text("title") or "The turn failed.")
    reason = response.text("stopReason")
    if reason != "end_turn":
        raise BridgeFailed(*_ENDINGS.get(reason, (f"The turn ended with {reason!r}.", "task")))
    # opencode ends a turn as if all were well when it was not permitted to go on.
    if refused:
        raise BridgeFailed(f"It stopped, because this was not permitted: {refused}", "task")


if __name__ == "__main__":
    sys.exit(main())
