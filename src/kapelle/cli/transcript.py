"""What an agent said and did, one readable line or block per event."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from kapelle.cli.format import clean, last_lines, one_line, paint, short
from kapelle.cli.output import json_line
from kapelle.client.http import ServerEvent

LINE_WIDTH = 160
CHECK_LINES = 8
# What stands apart from the rest of the talk, with a word before it.
_NAMED = {
    "result": ("Result: ", "bold"),
    "plan": ("Plan:\n", "cyan"),
    "question": ("Question: ", "yellow"),
    "error": ("Error: ", "red"),
    "notice": ("Notice: ", "yellow"),
}


@dataclass(frozen=True)
class Passage:
    """Text to show, already cleaned, and how."""

    text: str
    style: str | None = None


def passage(event: ServerEvent) -> Passage | None:
    """How an event is shown to a person; None for those that say nothing to one."""
    text = clean(str(event.data.get("text") or "")).rstrip("\n")
    match event.kind:
        case "text":
            return Passage(text)
        case "attempt" if (number := event.data.get("number", 1)) != 1:
            after = event.data.get("after")
            why = f", after: {one_line(after, 300)}" if after else ""
            who = event.data.get("agent") or "its agent"
            return Passage(f"── attempt {number} by {who}{why} ──", "dim")
        case "tool_call":
            given = event.data.get("data")
            about = json.dumps(given, ensure_ascii=False) if given else text
            called = f"→ {event.data.get('name') or 'tool'} {about}"
            return Passage(one_line(called, LINE_WIDTH), "cyan")
        case "tool_result":
            return Passage(one_line(f"← {text or 'done'}", LINE_WIDTH), "dim")
        case "stderr":
            return Passage("\n".join(f"! {line}" for line in text.split("\n")), "dim")
        case "checking":
            return Passage(one_line(f"▸ checking: {event.data.get('name')}", LINE_WIDTH), "cyan")
        case "check":
            return check_passage(event.data)
        case "error" | "notice" if not text:
            text = one_line(str(event.data.get("name") or "unknown"))
    label, style = _NAMED.get(event.kind, ("", None))
    return Passage(f"{label}{text}", style) if text and label else None


def check_passage(check: dict[str, Any]) -> Passage:
    """What came of a check; of one that failed, also the last lines of its output."""
    took = f" ({short(check['duration_s'])})" if check.get("duration_s") is not None else ""
    name = one_line(f"{check.get('name')}", LINE_WIDTH) + took
    if check.get("passed"):
        if not check.get("proof") or check.get("proved"):
            return Passage(f"✓ check passed: {name}", "green")
        blind = one_line(check["proof"], LINE_WIDTH)
        return Passage(f"✓ check passed: {name}\n    {blind}", "yellow")
    said = clean(str(check.get("output") or "")).strip()
    below = [f"    {line}" for line in last_lines(said, CHECK_LINES)] if said else []
    return Passage("\n".join([f"✗ check failed: {name}", *below]), "red")


def show_json(event: ServerEvent) -> None:
    """The event as a line for programs."""
    json_line({"event": event.kind, **event.data})


def show(shown: Passage | None, stream: TextIO | None = None) -> None:
    """A passage as lines on stdout or elsewhere, coloured only in a terminal, and seen at once."""
    if shown is not None:
        stream = stream or sys.stdout
        stream.write(paint(shown.text, shown.style) + "\n")
        stream.flush()


class Whole:
    """Shows a text that came in pieces when it is whole, and a result only if it says more."""

    def __init__(self, show: Callable[[ServerEvent], None]) -> None:
        self._show = show
        self._pieces: list[str] = []
        self._said = ""

    def __call__(self, event: ServerEvent) -> None:
        is_piece = event.kind == "text" and (event.data.get("data") or {}).get("delta") is True
        if is_piece:
            self._pieces.append(str(event.data.get("text") or ""))
            return
        if self._pieces:
            self._show_new(ServerEvent("text", {"text": "".join(self._pieces)}, None))
            self._pieces = []
        self._show_new(event)

    def _show_new(self, event: ServerEvent) -> None:
        text = str(event.data.get("text") or "").strip()
        if event.kind == "result" and text == self._said:
            return
        if event.kind in {"text", "error"}:
            self._said = text
        self._show(event)
