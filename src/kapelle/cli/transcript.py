"""What an agent said and did, one readable line or block per event."""

import json
import sys
from dataclasses import dataclass

from kapelle.cli.output import json_line
from kapelle.cli.sse import ServerEvent
from kapelle.cli.style import paint
from kapelle.cli.text import clean, one_line

LINE_WIDTH = 160


@dataclass(frozen=True)
class Passage:
    """Text to show, already cleaned, and how."""

    text: str
    style: str | None = None


def passage(event: ServerEvent) -> Passage | None:
    """How an event is shown to a person; None for those that say nothing to one."""
    text = clean(str(event.data.get("text") or "")).rstrip("\n")
    match event.kind:
        case "usage" | "session" | "end":
            return None
        case "attempt":
            return _attempt(event)
        case "tool_call":
            return Passage(
                one_line(f"→ {event.data.get('name') or 'tool'} {_input(event)}", LINE_WIDTH),
                "cyan",
            )
        case "tool_result":
            return Passage(one_line(f"← {text or 'done'}", LINE_WIDTH), "dim")
        case "result":
            return Passage(f"Result: {text}", "bold") if text else None
        case "error":
            return Passage(f"Error: {text or event.data.get('name') or 'unknown'}", "red")
        case "question":
            return Passage(f"Question: {text}", "yellow")
        case "stderr":
            return Passage("\n".join(f"! {line}" for line in text.split("\n")), "dim")
        case "text":
            return Passage(text)
        case _:
            return None


def _attempt(event: ServerEvent) -> Passage | None:
    number = event.data.get("number", 1)
    return Passage(f"── attempt {number} ──", "dim") if number != 1 else None


def _input(event: ServerEvent) -> str:
    given = event.data.get("data")
    if not given:
        return str(event.data.get("text") or "")
    return json.dumps(given, ensure_ascii=False)


def show_json(event: ServerEvent) -> None:
    """The event as a line for programs."""
    json_line({"event": event.kind, **event.data})


def show_plain(event: ServerEvent) -> None:
    """The event as lines on stdout, coloured only in a terminal."""
    shown = passage(event)
    if shown is not None:
        sys.stdout.write(paint(shown.text, shown.style) + "\n")


def show_at_once(event: ServerEvent) -> None:
    """The same for somebody who watches."""
    show_plain(event)
    sys.stdout.flush()
