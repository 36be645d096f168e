"""Turns the updates of an ACP session into Kapelle's events."""

import re
from typing import Any

from kapelle.agents.bridges.acp.errors import session_failure
from kapelle.agents.bridges.acp.events import emit
from kapelle.agents.bridges.acp.tools import ToolCall
from kapelle.agents.bridges.acp.usage import Meter
from kapelle.agents.reading import list_of, mapping_of, text_of

_MARKS = {"completed": "[x]", "in_progress": "[>]"}
# Gemini says this as if the model had; it is no part of an answer.
_NO_SPEECH = re.compile(r"\s*\[MODE_UPDATE\] \w+\s*")


class Updates:
    """Prints one prompt's updates; text is held back until its line, or the answer, is complete."""

    def __init__(self, agent: str) -> None:
        self.meter = Meter(agent)
        self._line = ""
        self._answer = ""
        self._message_id: object = None
        self._spoke_in = 0  # the turn of the last text
        self._tools: dict[str, ToolCall] = {}
        self.refused = ""  # what was not permitted, until the agent says something about it

    def take(self, update: dict[str, Any]) -> None:
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            self._say(update)
            return
        if kind in {"tool_call", "tool_call_update"}:
            self._flush()
            self._use(update)
        elif kind == "agent_thought_chunk":
            self.meter.speaks()
        elif kind == "plan":
            self._flush()
            emit("plan", _plan(list_of(update.get("entries"))))
        elif kind == "usage_update":
            self.meter.update(update)
        elif kind == "session_info_update":
            _retries(update)

    def asks(self, call: dict[str, Any]) -> ToolCall:
        """The tool call that a request for permission is about; it is told as a call, too."""
        self._flush()
        tool = self._tool(call)
        tool.take({**call, "status": "pending"})
        tool.tell()
        return tool

    def refuse(self, tool: ToolCall) -> None:
        """A call is not permitted: what comes next is a new answer, or nothing at all."""
        self.refused = tool.title
        self.meter.works()

    def finish(self) -> str:
        """Print what is still held back; returns the final answer."""
        self._flush()
        return self._answer.strip()

    def _say(self, update: dict[str, Any]) -> None:
        text = text_of(mapping_of(update.get("content")).get("text"))
        if not text or _NO_SPEECH.fullmatch(text):
            return
        message_id = update.get("messageId", self._message_id)
        if message_id != self._message_id and self._spoke_in == self.meter.turns:
            self.meter.works()
        if self.meter.speaks() or message_id != self._message_id:
            self._flush()
            self._answer = ""
        self._message_id, self._spoke_in = message_id, self.meter.turns
        self._answer += text
        self.refused = ""
        head, newline, self._line = (self._line + text).rpartition("\n")
        if newline and head:
            emit("text", head)

    def _flush(self) -> None:
        if self._line.strip():
            emit("text", self._line)
        self._line = ""

    def _use(self, update: dict[str, Any]) -> None:
        tool = self._tool(update)
        if not tool.told:
            self.meter.speaks()
        if tool.take(update):
            self.meter.works()

    def _tool(self, update: dict[str, Any]) -> ToolCall:
        key = text_of(update.get("toolCallId"))
        if key not in self._tools:
            self._tools[key] = ToolCall(update)
        return self._tools[key]


def _plan(entries: list[Any]) -> str:
    steps = [mapping_of(entry) for entry in entries]
    return "\n".join(
        f"{_MARKS.get(text_of(step.get('status')), '[ ]')} {text_of(step.get('content'))}"
        for step in steps
    )


def _retries(update: dict[str, Any]) -> None:
    """Codex tells of errors that it outlasts in fields of its own."""
    meta = mapping_of(update.get("_meta"))
    error = mapping_of(mapping_of(meta.get("codex")).get("error"))
    message = text_of(error.get("message")) or text_of(session_failure(meta).get("title"))
    if message:
        emit("notice", message)
