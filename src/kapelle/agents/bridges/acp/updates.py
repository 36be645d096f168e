"""Turns the updates of an ACP session into Kapelle's events."""

import re
from collections import Counter

from kapelle.agents.bridges.acp.process import session_failure
from kapelle.agents.bridges.events import emit
from kapelle.agents.output import Json, count_of, mapping_of, mappings_of, plan, text_of

_LONGEST_OUTPUT = 100_000
_OUTPUTS = ("output", "stdout", "formatted_output", "text", "content", "result", "error")
_TOOL_NAME = re.compile(r"[\w.-]+")
# Gemini says this as if the model had; it is no part of an answer.
_MODE_NOTE = re.compile(r"\s*\[MODE_UPDATE\] \w+\s*")


class ToolCall:
    """What several updates together say about one call."""

    def __init__(self, first: Json) -> None:
        self._fields: Json = {}
        self._name = _name(first)
        self._terminal = ""
        self.emitted = False
        self.ended = False

    def take(self, update: Json) -> bool:
        """Add an update; whether the call has ended with it."""
        self._fields |= {key: value for key, value in update.items() if value is not None}
        terminal = mapping_of(mapping_of(update.get("_meta")).get("terminal_output_delta"))
        self._terminal = (self._terminal + text_of(terminal.get("data")))[-_LONGEST_OUTPUT:]
        status = text_of(update.get("status"))
        known = update.get("sessionUpdate") != "tool_call" and bool(update.get("rawInput"))
        if known or status not in {"", "pending"}:
            self.emit_call()
        if status not in {"completed", "failed"} or self.ended:
            return False
        self.ended = True
        failed = {"is_error": True} if status == "failed" else {}
        emit("tool_result", self._output()[:_LONGEST_OUTPUT], self._name, failed)
        return True

    def emit_call(self) -> None:
        """Print the call, once."""
        if not self.emitted:
            self.emitted = True
            emit("tool_call", "", self._name, self.input())

    @property
    def title(self) -> str:
        return text_of(self._fields.get("title")) or self._name

    def input(self) -> Json:
        raw = self._fields.get("rawInput")
        if isinstance(raw, dict) and raw:
            return raw
        places = mappings_of(self._fields.get("locations"))
        paths = [text_of(place.get("path")) for place in places]
        paths += [text_of(part.get("path")) for part in self._parts("diff")]
        given: Json = {"title": self.title}
        if any(paths):
            given["paths"] = sorted({path for path in paths if path})
        return given

    def _output(self) -> str:
        raw = self._fields.get("rawOutput")
        if isinstance(raw, dict):
            raw = next((raw[key] for key in _OUTPUTS if isinstance(raw.get(key), str)), None)
        if isinstance(raw, str) and raw:
            return raw
        texts = [
            text_of(mapping_of(part.get("content")).get("text")) for part in self._parts("content")
        ]
        return "\n".join(filter(None, texts)) or self._terminal

    def _parts(self, kind: str) -> list[Json]:
        parts = mappings_of(self._fields.get("content"))
        return [part for part in parts if part.get("type") == kind]


def _name(update: Json) -> str:
    """The tool's own name where the agent tells it, else its kind."""
    for extra in mapping_of(update.get("_meta")).values():
        if name := text_of(mapping_of(extra).get("toolName")):
            return name
    title = text_of(update.get("title"))
    alike = title if _TOOL_NAME.fullmatch(title) else ""
    return text_of(update.get("name")) or alike or text_of(update.get("kind")) or title or "tool"


class UsageMeter:
    """Watches one prompt; every event it prints holds the sums so far.

    ACP tells only how full the context is, after each answer or at its start and end. From that an
    answer's tokens are estimated, so that limits can be watched; the final totals replace them.
    """

    def __init__(self, agent: str) -> None:
        self._last_answer_only = agent == "OpenCode"  # what its final totals are of
        self._of_session = [] if "claude" in agent else ["cost_usd"]
        self.turns = 0
        self._fresh = True  # whether what the agent says next is a new answer of the model
        self._earlier: Counter[str] = Counter()  # tokens of the answers before this one
        self._now: Counter[str] = Counter()
        self._context = 0  # by the last word about it

    def start_answer(self) -> bool:
        """The model said something or called a tool; whether that begins a new answer."""
        if not self._fresh:
            return False
        self._begin()
        self._emit({})
        return True

    def end_tool(self) -> None:
        """A tool gave its result: what comes next is a new answer."""
        self._fresh = True

    def update(self, update: Json) -> None:
        """A usage_update: the context's size, and perhaps the session's cost so far."""
        used, cost = update.get("used"), mapping_of(update.get("cost"))
        if isinstance(used, int) and used > 0:
            # Some agents tell at an answer's start, some only after its tools have run.
            if self.turns == 0 or (self._fresh and self._now):
                self._begin()
            self._estimate(used)
        amount = cost.get("amount")
        if isinstance(amount, int | float) and cost.get("currency", "USD") == "USD":
            self._emit({"cost_usd": amount, "of_session": self._of_session})
        else:
            self._emit({})

    def finish(self, response: Json) -> None:
        """Report what the answer to session/prompt says was used."""
        usage = mapping_of(response.get("usage"))
        quota = mapping_of(mapping_of(response.get("_meta")).get("quota"))
        for entry in mappings_of(quota.get("model_usage")):
            if model := text_of(entry.get("model")):
                emit("model", model)
        tokens = _tokens(usage) if usage else _quota(mapping_of(quota.get("token_count")))
        if not tokens:
            return
        self._now = Counter(tokens)
        if not self._last_answer_only:
            self._earlier.clear()
        self._emit({})

    def _begin(self) -> None:
        self.turns += 1
        self._fresh = False
        self._earlier.update(self._now)
        self._now = Counter()

    def _estimate(self, used: int) -> None:
        if not self._now:
            # What an earlier answer has seen comes from the provider's cache, as a rule.
            self._now["input_tokens"] = used
            self._now["cached_tokens"] = min(self._context, used)
        self._now["output_tokens"] = max(0, used - self._now["input_tokens"])
        self._context = used

    def _emit(self, more: Json) -> None:
        tokens = {key: self._earlier[key] + self._now[key] for key in {*self._earlier, *self._now}}
        emit("usage", data={**tokens, "turns": self.turns, **more, "total": True})


def _tokens(usage: Json) -> dict[str, int]:
    """Totals in our counting; whether cached and thought tokens are extra tells the sum."""
    count = {key: count_of(value) for key, value in usage.items()}.get
    sent, said = count("inputTokens", 0), count("outputTokens", 0)
    cached, stored = count("cachedReadTokens", 0), count("cachedWriteTokens", 0)
    thought, total = count("thoughtTokens", 0), count("totalTokens", 0)
    if total >= sent + said + cached + stored:
        sent += cached + stored
    if total >= sent + said + thought:
        said += thought
    return {"input_tokens": sent, "output_tokens": said, "cached_tokens": cached}


def _quota(count: Json) -> dict[str, int]:
    names = ("input_tokens", "output_tokens", "cached_tokens")
    return {name: count_of(count.get(name)) for name in names if "input_tokens" in count}


class Updates:
    """Prints one prompt's updates; text is held back until its line, or the answer, is complete."""

    def __init__(self, agent: str) -> None:
        self.meter = UsageMeter(agent)
        self._line = ""
        self._answer = ""
        self._message_id: object = None
        self._text_turn = 0  # the turn of the last text
        self._tools: dict[str, ToolCall] = {}
        self.refused = ""  # what was not permitted, until the agent says something about it

    def take(self, update: Json) -> None:
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            self._add_text(update)
            return
        if kind in {"tool_call", "tool_call_update"}:
            self._flush()
            self._update_call(update)
        elif kind == "agent_thought_chunk":
            self.meter.start_answer()
        elif kind == "plan":
            self._flush()
            steps = mappings_of(update.get("entries"))
            given = [(text_of(step.get("status")), text_of(step.get("content"))) for step in steps]
            emit("plan", plan(given).text)
        elif kind == "usage_update":
            self.meter.update(update)
        elif kind == "session_info_update":
            _emit_retry(update)

    def requested_call(self, call: Json) -> ToolCall:
        """The tool call that a request for permission is about; it is printed as a call, too."""
        self._flush()
        tool = self._tool(call)
        tool.take({**call, "status": "pending"})
        tool.emit_call()
        return tool

    def refuse(self, tool: ToolCall) -> None:
        """A call is not permitted: what comes next is a new answer, or nothing at all."""
        self.refused = tool.title
        self.meter.end_tool()

    def finish(self) -> str:
        """Print what is still held back; returns the final answer."""
        self._flush()
        return self._answer.strip()

    def _add_text(self, update: Json) -> None:
        text = text_of(mapping_of(update.get("content")).get("text"))
        if not text or _MODE_NOTE.fullmatch(text):
            return
        message_id = update.get("messageId", self._message_id)
        if message_id != self._message_id and self._text_turn == self.meter.turns:
            self.meter.end_tool()
        if self.meter.start_answer() or message_id != self._message_id:
            self._flush()
            self._answer = ""
        self._message_id, self._text_turn = message_id, self.meter.turns
        self._answer += text
        self.refused = ""
        head, newline, self._line = (self._line + text).rpartition("\n")
        if newline and head:
            emit("text", head)

    def _flush(self) -> None:
        if self._line.strip():
            emit("text", self._line)
        self._line = ""

    def _update_call(self, update: Json) -> None:
        tool = self._tool(update)
        if not tool.emitted:
            self.meter.start_answer()
        if tool.take(update):
            self.meter.end_tool()

    def _tool(self, update: Json) -> ToolCall:
        key = text_of(update.get("toolCallId"))
        if key not in self._tools:
            self._tools[key] = ToolCall(update)
        return self._tools[key]


def _emit_retry(update: Json) -> None:
    """Codex tells of errors that it outlasts in fields of its own."""
    meta = mapping_of(update.get("_meta"))
    error = mapping_of(mapping_of(meta.get("codex")).get("error"))
    message = text_of(error.get("message")) or text_of(session_failure(meta).get("title"))
    if message:
        emit("notice", message)
