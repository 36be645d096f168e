"""Turns the updates of an ACP session into Kapelle's events."""

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from kapelle.agents.bridges.acp.process import session_failure
from kapelle.agents.bridges.base import LinePrinter, emit
from kapelle.agents.events import JsonObject, plan

_LONGEST_OUTPUT = 100_000
_OUTPUTS = ("output", "stdout", "formatted_output", "text", "content", "result", "error")
_TOOL_NAME = re.compile(r"[\w.-]+")
# Gemini says this as if the model had; it is no part of an answer.
_MODE_NOTE = re.compile(r"\s*\[MODE_UPDATE\] \w+\s*")

# From opencode's own database.
_OPENCODE_SESSION = """
SELECT tokens_input + tokens_cache_read + tokens_cache_write, tokens_output + tokens_reasoning,
       tokens_cache_read
FROM session WHERE id = ?
"""
_TOKEN_NAMES = ("input_tokens", "output_tokens", "cached_tokens")


class ToolCallState:
    """What several updates together say about one call."""

    def __init__(self, first: JsonObject, first_is_whole: bool = False) -> None:
        self._first_is_whole = first_is_whole  # whether its first update holds all of its input
        self._fields = JsonObject()
        self._name = _name(first)
        self._terminal = ""
        self.emitted = False
        self.ended = False

    def take(self, update: JsonObject) -> bool:
        """Add an update; whether the call has ended with it."""
        self._fields |= {key: value for key, value in update.items() if value is not None}
        terminal = update.mapping("_meta", "terminal_output_delta")
        self._terminal = (self._terminal + terminal.text("data"))[-_LONGEST_OUTPUT:]
        status = update.text("status")
        is_whole = self._first_is_whole or update.get("sessionUpdate") != "tool_call"
        if (is_whole and update.get("rawInput")) or status not in {"", "pending"}:
            self.emit_call()
        if status not in {"completed", "failed"} or self.ended:
            return False
        self.ended = True
        if status == "failed":
            failed = {"is_error": True}
        else:
            failed = {}
        emit("tool_result", self._output()[:_LONGEST_OUTPUT], self._name, failed)
        return True

    def emit_call(self) -> None:
        """Print the call, once."""
        if not self.emitted:
            self.emitted = True
            emit("tool_call", "", self._name, self.input())

    @property
    def title(self) -> str:
        return self._fields.text("title") or self._name

    def input(self) -> Mapping[str, Any]:
        if raw := self._fields.mapping("rawInput"):
            return raw
        places = [*self._fields.mappings("locations"), *self._parts("diff")]
        paths = sorted({place.text("path") for place in places} - {""})
        if paths:
            return {"title": self.title, "paths": paths}
        return {"title": self.title}

    def _output(self) -> str:
        raw = self._fields.mapping("rawOutput")
        given = next((raw[key] for key in _OUTPUTS if isinstance(raw.get(key), str)), "")
        texts = [part.text("content", "text") for part in self._parts("content")]
        said = "\n".join(filter(None, texts))
        return self._fields.text("rawOutput") or given or said or self._terminal

    def _parts(self, kind: str) -> list[JsonObject]:
        parts = self._fields.mappings("content")
        return [part for part in parts if part.get("type") == kind]


def _name(update: JsonObject) -> str:
    """The tool's own name where the agent tells it, else its kind."""
    meta = update.mapping("_meta")
    for key in meta:
        if name := meta.text(key, "toolName"):
            return name
    title = update.text("title")
    if _TOOL_NAME.fullmatch(title):
        alike = title
    else:
        alike = ""
    return update.text("name") or alike or update.text("kind") or title or "tool"


class UsageMeter:
    """Watches one prompt; every event it prints holds the sums so far.

    ACP tells only how full the context is, after each answer or at its start and end. From that an
    answer's tokens are estimated, so that limits can be watched; the final totals replace them.
    """

    def __init__(self, agent: str) -> None:
        self._last_answer_only = agent == "OpenCode"  # what its final totals are of
        if "claude" in agent:
            self._of_session = []
        else:
            self._of_session = ["cost_usd"]
        self.turns = 0
        self._fresh = True  # whether what the agent says next is a new answer of the model
        self._earlier: Counter[str] = Counter()  # tokens of the answers before this one
        self._ended: Counter[str] = Counter()  # tokens of the prompts before this one
        self._now: Counter[str] = Counter()
        self._exact = False  # whether they are counted, not estimated
        self._context = 0  # by the last word about it

    def start_answer(self) -> bool:
        """The model said something or called a tool; whether that begins a new answer."""
        if not self._fresh:
            return False
        self._begin()
        self._emit()
        return True

    def end_tool(self) -> None:
        """A tool gave its result: what comes next is a new answer."""
        self._fresh = True

    def update(self, update: JsonObject) -> None:
        """A usage_update: the context's size, and perhaps the session's cost so far."""
        used = update.get("used")
        cost = update.mapping("cost")
        if used == self._context and not cost:
            return  # Copilot says it again with each request that it makes again
        if isinstance(used, int) and used > 0:
            # Some agents tell at an answer's start, some only after its tools have run.
            if self.turns == 0 or (self._fresh and self._now):
                self._begin()
            self._estimate(used)
        amount = cost.get("amount")
        # OpenCode counts 0 for a model whose price it does not know.
        if amount and isinstance(amount, int | float) and cost.get("currency", "USD") == "USD":
            self._emit(cost_usd=amount, of_session=self._of_session)
        else:
            self._emit()

    def count(self, usage: JsonObject) -> None:
        """What Qwen says at its end that an answer took."""
        self._now = Counter(_tokens(usage))
        self._exact = True
        self._emit()

    def finish(self, response: JsonObject, since_prompt: Counter[str] | None = None) -> None:
        """Report what the answer to session/prompt says was used.

        since_prompt: the tokens of all answers since the first prompt, where that is known.
        """
        if since_prompt:
            self._earlier = Counter()
            self._now = since_prompt
            self._emit()
            return
        usage = response.mapping("usage")
        quota = response.mapping("_meta", "quota")
        for entry in quota.mappings("model_usage"):
            if model := entry.text("model"):
                emit("model", model)
        tokens = _tokens(usage) if usage else {}
        count = quota.mapping("token_count")
        if not usage and "input_tokens" in count:
            names = ("input_tokens", "output_tokens", "cached_tokens")
            tokens = {name: count.count(name) for name in names}
        if not tokens:
            return
        self._now = Counter(tokens)
        if not self._last_answer_only:
            self._earlier = Counter(self._ended)
        self._emit()
        self._ended = self._earlier + self._now

    def _begin(self) -> None:
        self.turns += 1
        self._fresh = False
        self._earlier.update(self._now)
        self._now = Counter()
        self._exact = False

    def _estimate(self, used: int) -> None:
        if self._exact:
            return
        if not self._now:
            # What an earlier answer has seen comes from the provider's cache, as a rule.
            self._now["input_tokens"] = used
            self._now["cached_tokens"] = min(self._context, used)
        self._now["output_tokens"] = max(0, used - self._now["input_tokens"])
        self._context = used

    def _emit(self, **more: Any) -> None:
        tokens = {key: self._earlier[key] + self._now[key] for key in {*self._earlier, *self._now}}
        emit("usage", data={**tokens, "turns": self.turns, **more, "total": True})


def _tokens(usage: JsonObject) -> dict[str, int]:
    """Totals in our counting; whether cached and thought tokens are extra tells the sum."""
    sent = usage.count("inputTokens")
    said = usage.count("outputTokens")
    cached = usage.count("cachedReadTokens")
    stored = usage.count("cachedWriteTokens")
    thought = usage.count("thoughtTokens")
    total = usage.count("totalTokens")
    if total >= sent + said + cached + stored:
        sent += cached + stored
    if total >= sent + said + thought:
        said += thought
    return {"input_tokens": sent, "output_tokens": said, "cached_tokens": cached}


def opencode_session_tokens(session_id: str) -> Counter[str] | None:
    """Return the tokens of all answers of an opencode session so far; None if they are unknown.

    Over ACP opencode reports the tokens of its last answer only. Its own table of sessions counts
    all of them. That table may change with any version: if it is not as expected, nothing is known.
    """
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    database = Path(data) / "opencode" / "opencode.db"
    try:
        with closing(
            sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=2)
        ) as opened:
            row = opened.execute(_OPENCODE_SESSION, (session_id,)).fetchone()
    except (sqlite3.Error, ValueError):
        return None
    if row is None or not all(isinstance(number, int) for number in row):
        return None
    return Counter(dict(zip(_TOKEN_NAMES, row, strict=True)))


class Updates:
    """Prints one prompt's updates; text is held back until its line, or the answer, is complete."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self.meter = UsageMeter(agent)
        self._lines = LinePrinter()
        self._answer = ""
        self._chunks = 0  # of the answer so far
        self._message_id: object = None
        self._text_turn = 0  # the turn of the last text
        self._tools: dict[str, ToolCallState] = {}
        self.refused = ""  # what was not permitted, until the agent says something about it

    def take(self, update: JsonObject) -> None:
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            self._add_text(update)
            return
        if kind in {"tool_call", "tool_call_update"}:
            self._lines.flush()
            tool = self._tool(update)
            if not tool.emitted:
                self.meter.start_answer()
            if tool.take(update):
                self.meter.end_tool()
        elif kind == "agent_thought_chunk":
            self.meter.start_answer()
        elif kind == "plan":
            self._lines.flush()
            emit("plan", plan(update.mappings("entries")).text)
        elif kind == "usage_update":
            self.meter.update(update)
        elif kind == "session_info_update":
            _emit_retry(update)

    def requested_call(self, call: JsonObject) -> ToolCallState:
        """The tool call that a request for permission is about; it is printed as a call, too."""
        self._lines.flush()
        tool = self._tool(call)
        tool.take(JsonObject(call, status="pending"))
        tool.emit_call()
        return tool

    def refuse(self, tool: ToolCallState) -> None:
        """A call is not permitted: what comes next is a new answer, or nothing at all."""
        self.refused = tool.title
        self.meter.end_tool()

    @property
    def failure(self) -> str:
        """What the agent itself tells as an answer, where it calls it an error: in one piece."""
        if self._chunks == 1 and self._answer.startswith("Error: "):
            return self._answer
        return ""

    def finish(self) -> str:
        """Print what is still held back; returns the final answer."""
        self._lines.flush()
        return self._answer.strip()

    def _add_text(self, update: JsonObject) -> None:
        text = update.text("content", "text")
        if usage := update.mapping("_meta", "usage"):
            self.meter.count(usage)
        if not text or _MODE_NOTE.fullmatch(text):
            return
        if self._agent == "Copilot" and text.startswith("Info: "):
            self._lines.flush()
            emit("notice", text, "overloaded" if "API error" in text else "")
            return
        message_id = update.get("messageId", self._message_id)
        if message_id != self._message_id and self._text_turn == self.meter.turns:
            self.meter.end_tool()
        begins = self.meter.start_answer()  # unless a usage or a thought came before the text
        begins |= message_id != self._message_id or self._text_turn != self.meter.turns
        if begins:
            self._lines.flush()
            self._answer = ""
        self._message_id = message_id
        self._text_turn = self.meter.turns
        self._answer += text
        if begins:
            self._chunks = 1
        else:
            self._chunks = self._chunks + 1
        self.refused = ""
        self._lines.add(text)

    def _tool(self, update: JsonObject) -> ToolCallState:
        key = update.text("toolCallId")
        if key not in self._tools:
            # Copilot sends nothing more about a call until it has ended.
            self._tools[key] = ToolCallState(update, first_is_whole=self._agent == "Copilot")
        return self._tools[key]


def _emit_retry(update: JsonObject) -> None:
    """Codex tells of errors that it outlasts in fields of its own."""
    failure = session_failure(update)
    if said := update.text("_meta", "codex", "error", "message") or failure.text("title"):
        if said.startswith("Reconnecting"):
            again = "overloaded"
        else:
            again = ""
        emit("notice", said, "rate_limit" if failure.get("category") == "limit" else again)
