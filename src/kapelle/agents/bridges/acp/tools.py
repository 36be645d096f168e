"""Tells an ACP agent's tool calls: a call when its input is known, a result when it has ended."""

import re
from typing import Any

from kapelle.agents.bridges.acp.events import emit
from kapelle.agents.reading import list_of, mapping_of, text_of

_LONGEST_OUTPUT = 100_000
_OUTPUTS = ("output", "stdout", "formatted_output", "text", "content", "result", "error")
_A_NAME = re.compile(r"[\w.-]+")


class ToolCall:
    """What several updates together say about one call."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._fields: dict[str, Any] = {}
        self._name = _name(first)
        self._terminal = ""
        self.told = False
        self.ended = False

    def take(self, update: dict[str, Any]) -> bool:
        """Add an update; whether the call has ended with it."""
        self._fields |= {key: value for key, value in update.items() if value is not None}
        terminal = mapping_of(mapping_of(update.get("_meta")).get("terminal_output_delta"))
        self._terminal = (self._terminal + text_of(terminal.get("data")))[-_LONGEST_OUTPUT:]
        status = text_of(update.get("status"))
        known = update.get("sessionUpdate") != "tool_call" and bool(update.get("rawInput"))
        if known or status not in {"", "pending"}:
            self.tell()
        if status not in {"completed", "failed"} or self.ended:
            return False
        self.ended = True
        failed = {"is_error": True} if status == "failed" else {}
        emit("tool_result", self._output()[:_LONGEST_OUTPUT], self._name, failed)
        return True

    def tell(self) -> None:
        """Print the call, once."""
        if not self.told:
            self.told = True
            emit("tool_call", "", self._name, self.input())

    @property
    def title(self) -> str:
        return text_of(self._fields.get("title")) or self._name

    def input(self) -> dict[str, Any]:
        raw = self._fields.get("rawInput")
        if isinstance(raw, dict) and raw:
            return raw
        paths = [text_of(mapping_of(place).get("path")) for place in self._list("locations")]
        paths += [text_of(part.get("path")) for part in self._parts("diff")]
        told: dict[str, Any] = {"title": self.title}
        if any(paths):
            told["paths"] = sorted({path for path in paths if path})
        return told

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

    def _parts(self, kind: str) -> list[dict[str, Any]]:
        return [part for part in map(mapping_of, self._list("content")) if part.get("type") == kind]

    def _list(self, key: str) -> list[Any]:
        return list_of(self._fields.get(key))


def _name(update: dict[str, Any]) -> str:
    """The tool's own name where the agent tells it, else its kind."""
    for extra in mapping_of(update.get("_meta")).values():
        if name := text_of(mapping_of(extra).get("toolName")):
            return name
    title = text_of(update.get("title"))
    alike = title if _A_NAME.fullmatch(title) else ""
    return text_of(update.get("name")) or alike or text_of(update.get("kind")) or title or "tool"
