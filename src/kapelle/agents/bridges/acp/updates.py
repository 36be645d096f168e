"""Turn the updates of an ACP session into Kapelle's events."""

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
# Gemini sends this note as the model's text; it is no part of an answer.
_MODE_NOTE = re.compile(r"\s*\[MODE_UPDATE\] \w+\s*")

# A query of opencode's own database.
_OPENCODE_SESSION = """
SELECT tokens_input + tokens_cache_read + tokens_cache_write, tokens_output + tokens_reasoning,
       tokens_cache_read
FROM session WHERE id = ?
"""
_TOKEN_NAMES = ("input_tokens", "output_tokens", "cached_tokens")


class ToolCallState:
    """The state of one tool call after several updates."""

    def __init__(self, first: JsonObject, first_is_whole: bool = False) -> None:
        self._first_is_whole = first_is_whole  # the first update has the whole input
        self._fields = JsonObject()
        self._name = _name(first)
        self._terminal = ""
        self.is_printed = False
        self._has_ended = False

    def take(self, update: JsonObject) -> bool:
        """Add an update; tell whether the call has ended with it."""
        self._fields |= {key: value for key, value in update.items() if value is not None}
        terminal = update.mapping("_meta", "terminal_output_delta")
        self._terminal = (self._terminal + terminal.text("data"))[-_LONGEST_OUTPUT:]
        status = update.text("status")
        is_whole = self._first_is_whole or update.get("sessionUpdate") != "tool_call"
        if (is_whole and update.get("rawInput")) or status not in {"", "pending"}:
            self.emit_call()
        if status not in {"completed", "failed"} or self._has_ended:
            return False
        self._has_ended = True
        data = {"is_error": True} if status == "failed" else {}
        emit("tool_result", self._output()[:_LONGEST_OUTPUT], self._name, data)
        return True

    def emit_call(self) -> None:
        """Print the call, once."""
        if not self.is_printed:
            self.is_printed = True
            emit("tool_call", "", self._name, self.input())

    @property
    def title(self) -> str:
        return self._fields.text("title") or self._name

    def input(self) -> Mapping[str, Any]:
        """Return the tool's input, or else the title and the paths of the call."""
        raw = self._fields.mapping("rawInput")
        if raw:
            return raw
        locations = [*self._fields.mappings("locations"), *self._parts("diff")]
        paths = sorted({location.text("path") for location in locations} - {""})
        if paths:
            return {"title": self.title, "paths": paths}
        return {"title": self.title}

    def _output(self) -> str:
        """Return the output from the first of the fields that agents use for it."""
        raw = self._fields.mapping("rawOutput")
        field = next((raw[key] for key in _OUTPUTS if isinstance(raw.get(key), str)), "")
        texts = [part.text("content", "text") for part in self._parts("content")]
        content = "\n".join(filter(None, texts))
        return self._fields.text("rawOutput") or field or content or self._terminal

    def _parts(self, kind: str) -> list[JsonObject]:
        parts = self._fields.mappings("content")
        return [part for part in parts if part.get("type") == kind]


def _name(update: JsonObject) -> str:
    """Return the tool's name if the agent reports it, else its kind."""
    meta = update.mapping("_meta")
    for key in meta:
        name = meta.text(key, "toolName")
        if name:
            return name
    title = update.text("title")
    title_as_name = title if _TOOL_NAME.fullmatch(title) else ""
    return update.text("name") or title_as_name or update.text("kind") or title or "tool"


class UsageMeter:
    """Counts the usage of one attempt; every event that it prints holds the sums so far.

    ACP reports only the size of the context, after each answer or at its start and end. The tokens
    of an answer are estimated by it, so that limits can be watched; the final totals replace them.
    """

    def __init__(self, agent: str) -> None:
        # The final totals of opencode are those of its last answer only.
        self._last_answer_only = agent == "OpenCode"
        self._of_session = [] if "claude" in agent else ["cost_usd"]
        self.turns = 0
        self._is_between_answers = True  # the next text or tool call begins a new answer
        self._earlier: Counter[str] = Counter()  # tokens of the answers before this one
        self._of_earlier_prompts: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        self._is_exact = False  # the tokens of this answer are counted, not estimated
        self._context = 0  # the last reported size of the context

    def start_answer(self) -> bool:
        """Note a text or a tool call of the model; tell whether it begins a new answer."""
        if not self._is_between_answers:
            return False
        self._begin()
        self._emit()
        return True

    def end_tool(self) -> None:
        """Note the end of a tool call: the next text or tool call begins a new answer."""
        self._is_between_answers = True

    def update(self, update: JsonObject) -> None:
        """Take a usage_update: the context's size, and perhaps the session's cost so far."""
        context = update.get("used")
        cost = update.mapping("cost")
        if context == self._context and not cost:
            return  # Copilot repeats it at each retry of a request
        if isinstance(context, int) and context > 0:
            # Some agents report at the start of an answer, others only after its tools have run.
            if self.turns == 0 or (self._is_between_answers and self._now):
                self._begin()
            self._estimate(context)
        amount = cost.get("amount")
        # OpenCode reports 0 for a model whose price it does not know.
        if amount and isinstance(amount, int | float) and cost.get("currency", "USD") == "USD":
            self._emit(cost_usd=amount, of_session=self._of_session)
        else:
            self._emit()

    def count(self, usage: JsonObject) -> None:
        """Take the exact usage of an answer, which Qwen reports at its end."""
        self._now = Counter(_tokens(usage))
        self._is_exact = True
        self._emit()

    def finish(self, response: JsonObject, since_prompt: Counter[str] | None = None) -> None:
        """Print the usage that the response to session/prompt reports.

        since_prompt are the tokens of all answers since the first prompt, if they are known.
        """
        if since_prompt:
            self._earlier = Counter()
            self._now = since_prompt
            self._emit()
            return
        usage = response.mapping("usage")
        quota = response.mapping("_meta", "quota")
        for entry in quota.mappings("model_usage"):
            model = entry.text("model")
            if model:
                emit("model", model)
        tokens = _tokens(usage) if usage else {}
        count = quota.mapping("token_count")
        if not usage and "input_tokens" in count:
            tokens = {name: count.count(name) for name in _TOKEN_NAMES}
        if not tokens:
            return
        self._now = Counter(tokens)
        if not self._last_answer_only:
            self._earlier = Counter(self._of_earlier_prompts)
        self._emit()
        self._of_earlier_prompts = self._earlier + self._now

    def _begin(self) -> None:
        self.turns += 1
        self._is_between_answers = False
        self._earlier.update(self._now)
        self._now = Counter()
        self._is_exact = False

    def _estimate(self, context: int) -> None:
        """Estimate the tokens of this answer by the size of the context."""
        if self._is_exact:
            return
        if not self._now:
            # The context of earlier answers usually comes from the provider's cache.
            self._now["input_tokens"] = context
            self._now["cached_tokens"] = min(self._context, context)
        self._now["output_tokens"] = max(0, context - self._now["input_tokens"])
        self._context = context

    def _emit(self, **more: Any) -> None:
        tokens = {key: self._earlier[key] + self._now[key] for key in {*self._earlier, *self._now}}
        emit("usage", data={**tokens, "turns": self.turns, **more, "total": True})


def _tokens(usage: JsonObject) -> dict[str, int]:
    """Return the tokens of a usage as Kapelle counts them.

    The total tells whether the input already includes cached tokens, and the output thoughts.
    """
    input_tokens = usage.count("inputTokens")
    output_tokens = usage.count("outputTokens")
    cache_read = usage.count("cachedReadTokens")
    cache_write = usage.count("cachedWriteTokens")
    thoughts = usage.count("thoughtTokens")
    total = usage.count("totalTokens")
    if total >= input_tokens + output_tokens + cache_read + cache_write:
        input_tokens += cache_read + cache_write
    if total >= input_tokens + output_tokens + thoughts:
        output_tokens += thoughts
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": cache_read,
    }


def opencode_session_tokens(session_id: str) -> Counter[str] | None:
    """Return the tokens of all answers of an opencode session so far; None if they are unknown.

    Over ACP opencode reports the tokens of its last answer only, while its own table of sessions
    counts all of them. Any version may change that table; the tokens are then unknown.
    """
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    database = Path(data) / "opencode" / "opencode.db"
    try:
        address = f"{database.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=2)) as connection:
            row = connection.execute(_OPENCODE_SESSION, (session_id,)).fetchone()
    except (sqlite3.Error, ValueError):
        return None
    if row is None or not all(isinstance(number, int) for number in row):
        return None
    return Counter(dict(zip(_TOKEN_NAMES, row, strict=True)))


class Updates:
    """Prints the updates of an attempt; text is printed in whole lines."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self.meter = UsageMeter(agent)
        self._lines = LinePrinter()
        self._answer = ""
        self._chunks = 0  # the pieces of the answer so far
        self._message_id: object = None
        self._text_turn = 0  # the turn of the last text
        self._tools: dict[str, ToolCallState] = {}
        self.refusal = ""  # the title of a refused call, until the agent writes a text after it

    def take(self, update: JsonObject) -> None:
        """Print the events of one update."""
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            self._add_text(update)
            return
        if kind in {"tool_call", "tool_call_update"}:
            self._lines.flush()
            tool = self._tool(update)
            if not tool.is_printed:
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
        """Print and return the tool call that a request for permission is about."""
        self._lines.flush()
        tool = self._tool(call)
        tool.take(JsonObject(call, status="pending"))
        tool.emit_call()
        return tool

    def refuse(self, tool: ToolCallState) -> None:
        """Note that a tool call was refused: the next text begins a new answer."""
        self.refusal = tool.title
        self.meter.end_tool()

    @property
    def failure(self) -> str:
        """The answer if it is an error, which some agents send as one text; else empty."""
        if self._chunks == 1 and self._answer.startswith("Error: "):
            return self._answer
        return ""

    def finish(self) -> str:
        """Print the last incomplete line; return the final answer."""
        self._lines.flush()
        return self._answer.strip()

    def _add_text(self, update: JsonObject) -> None:
        text = update.text("content", "text")
        usage = update.mapping("_meta", "usage")
        if usage:
            self.meter.count(usage)
        if not text or _MODE_NOTE.fullmatch(text):
            return
        if self._agent == "Copilot" and text.startswith("Info: "):
            self._lines.flush()
            emit("notice", text, "overloaded" if "API error" in text else "")
            return
        message_id = update.get("messageId", self._message_id)
        is_new_message = message_id != self._message_id
        if is_new_message and self._text_turn == self.meter.turns:
            self.meter.end_tool()
        # A usage or a thought before the text may have begun the answer already.
        begins = self.meter.start_answer()
        begins = begins or is_new_message or self._text_turn != self.meter.turns
        if begins:
            self._lines.flush()
            self._answer = ""
            self._chunks = 0
        self._message_id = message_id
        self._text_turn = self.meter.turns
        self._answer += text
        self._chunks += 1
        self.refusal = ""
        self._lines.add(text)

    def _tool(self, update: JsonObject) -> ToolCallState:
        key = update.text("toolCallId")
        if key not in self._tools:
            # Copilot sends no further update of a call before its end.
            self._tools[key] = ToolCallState(update, first_is_whole=self._agent == "Copilot")
        return self._tools[key]


def _emit_retry(update: JsonObject) -> None:
    """Print the notice of an error that Codex survives, which it reports in an extension."""
    failure = session_failure(update)
    text = update.text("_meta", "codex", "error", "message") or failure.text("title")
    if not text:
        return
    name = ""
    if failure.get("category") == "limit":
        name = "rate_limit"
    elif text.startswith("Reconnecting"):
        name = "overloaded"
    emit("notice", text, name)
