"""Passages of a transcript or a history: an event as lines for people, with a style."""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any, TextIO

from kapelle.cli.figures import format_seconds, local_time
from kapelle.cli.layout import STATUS_STYLE, paint, terminal_width, wrap_line
from kapelle.cli.output import json_line
from kapelle.cli.progress import describe_progress_event
from kapelle.cli.text import clean, cut_title, last_output_lines, one_line
from kapelle.client.protocol import ServerEvent

if TYPE_CHECKING:
    from kapelle.client.records import CheckResultJson, EventJson

_LINE_WIDTH = 160
_LONGEST_EVENT = 300
_CHECK_TAIL = 12
_TIME_WIDTH = len("12:00:00 ")
# The room that the time, the status and the id of a task take beside its title.
_BESIDE_TITLE = 48
# Labels and styles of the events of a transcript that stand out from what an agent says.
_LABELS = {
    "result": ("Result: ", "bold"),
    "plan": ("Plan:\n", "cyan"),
    "question": ("Question: ", "yellow"),
    "error": ("Error: ", "red"),
    "notice": ("Notice: ", "yellow"),
}
_MESSAGE_STATES = {"waiting": " (not read yet)", "refused": " (not read: the task has ended)"}
STATUS_MARKS = {"running": "▸", "completed": "✓", "failed": "✗", "cancelled": "✗", "waiting": "?"}
_EVENT_STYLES = {**STATUS_STYLE, "running": None, "pausing": "yellow", "stopping": "yellow"}
_RUN_SENTENCES = {
    "created": "Created: {title}",
    "running": "Running",
    "waiting": "It asks: {reason}",
    "answered": "Answered: {answer}",
    "pausing": "Pausing: the run starts nothing more and waits for its running tasks",
    "stopping": "Stopping: the run ends when its tasks have stopped",
    "paused": "Paused",
    "resumed": "Resumed",
    "merged": "Merged into {base}",
    "archived": "Archived",
    "marked": "Marked by a person",
}


@dataclass(frozen=True)
class Passage:
    """Text for people, cleaned already, and its style."""

    text: str
    style: str | None = None


def print_passage(passage: Passage | None, stream: TextIO | None = None) -> None:
    """Print a passage on stdout or another stream, and flush it; None prints nothing."""
    if passage is not None:
        stream = stream or sys.stdout
        stream.write(paint(passage.text, passage.style) + "\n")
        stream.flush()


def print_event_json(event: ServerEvent) -> None:
    """Print an event of a transcript as one line of JSON."""
    json_line({"event": event.kind, **event.data})


def transcript_passage(event: ServerEvent) -> Passage | None:
    """Return an event of a transcript for people; None if it tells them nothing."""
    text = clean(str(event.data.get("text") or "")).rstrip("\n")
    match event.kind:
        case "text":
            return Passage(text)
        case "attempt" if event.data.get("number", 1) != 1:
            return _attempt_passage(event.data)
        case "person":
            return _person_passage(event.data, text)
        case "tool_call":
            return _tool_call_passage(event.data, text)
        case "tool_result":
            return Passage(one_line(f"← {text or 'done'}", _LINE_WIDTH), "dim")
        case "stderr":
            return Passage("\n".join(f"! {line}" for line in text.split("\n")), "dim")
        case "checking":
            return Passage(one_line(f"▸ checking: {event.data.get('name')}", _LINE_WIDTH), "cyan")
        case "check":
            return check_passage(event.data)
        case "error" | "notice" if not text:
            text = one_line(str(event.data.get("name") or "unknown"))
    label, style = _LABELS.get(event.kind, ("", None))
    if text and label:
        return Passage(f"{label}{text}", style)
    return None


def _attempt_passage(data: Mapping[str, object]) -> Passage:
    """Return the line between a later attempt and the attempt before it."""
    reason = ""
    if data.get("after"):
        reason = f", after: {one_line(str(data['after']), 300)}"
    agent = data.get("agent") or "its agent"
    return Passage(f"── attempt {data.get('number')} by {agent}{reason} ──", "dim")


def _person_passage(data: Mapping[str, object], text: str) -> Passage:
    """Return a hint, an answer or a message of a person, and whether an agent has read it."""
    label = "You"
    if data.get("message") == "answer":
        label = "You answered"
    state = _MESSAGE_STATES.get(str(data.get("state")), "")
    return Passage(f"{label}: {text}{state}", "bold")


def _tool_call_passage(data: Mapping[str, object], text: str) -> Passage:
    arguments = text
    if data.get("data"):
        arguments = json.dumps(data["data"], ensure_ascii=False)
    call = f"→ {data.get('name') or 'tool'} {arguments}"
    return Passage(one_line(call, _LINE_WIDTH), "cyan")


def check_passage(check: "CheckResultJson | Mapping[str, Any]") -> Passage:
    """Return the result of a check, with the last lines of its output if it failed."""
    name = one_line(f"{check.get('name')}", _LINE_WIDTH)
    if check.get("duration_s") is not None:
        name += f" ({format_seconds(check['duration_s'])})"
    proof = check.get("proof")
    if check.get("passed"):
        if not proof or check.get("proved"):
            return Passage(f"✓ check passed: {name}", "green")
        # The check passes as well where the files hold nonsense.
        return Passage(f"✓ check passed: {name}\n    {one_line(proof, _LINE_WIDTH)}", "yellow")
    lines = [f"✗ check failed: {name}"]
    output = clean(str(check.get("output") or "")).strip()
    if output:
        lines += [f"    {line}" for line in last_output_lines(output, _CHECK_TAIL)]
    return Passage("\n".join(lines), "red")


class PieceJoiner:
    """Passes on the events of a transcript, with the pieces of a text joined into one event.

    A result that repeats the text before it is left out.
    """

    def __init__(self, show_event: Callable[[ServerEvent], None]) -> None:
        self._show_event = show_event
        self._pieces: list[str] = []
        self._last_text = ""

    def __call__(self, event: ServerEvent) -> None:
        details = event.data.get("data") or {}
        if event.kind == "text" and details.get("delta") is True:
            self._pieces.append(str(event.data.get("text") or ""))
            return
        if self._pieces:
            self._pass_on(ServerEvent("text", {"text": "".join(self._pieces)}, None))
            self._pieces = []
        self._pass_on(event)

    def _pass_on(self, event: ServerEvent) -> None:
        text = str(event.data.get("text") or "").strip()
        if event.kind == "result" and text == self._last_text:
            return
        if event.kind in {"text", "error"}:
            self._last_text = text
        self._show_event(event)


def event_line(event: "EventJson") -> str:
    """Return an event of the history with its number, its time and all of its facts."""
    subject = event["task_id"] or event.get("run_id") or ""
    head = f"{event['seq']} {local_time(event['at'])} {event['kind']} {subject}"
    return one_line(f"{head} {_event_facts(event)}", 400)


def _event_facts(event: "EventJson") -> str:
    match event["kind"], event["data"]:
        case "account.paused", {"reason": reason, "until": str(until)}:
            return f"{reason}; it pauses until {local_time(until)}"
        case "attempt.warning", {"text": text}:
            return str(text)
        case "attempt.diagnosed", {"agent": agent, "text": text}:
            return f"by {agent}: {text}"
    facts = []
    for name, value in event["data"].items():
        # The path of the output is for scripts: people use `kapelle logs`.
        if name != "output_path" and value is not None:
            facts.append(f"{name}={value}")
    return " ".join(facts)


def timed_event_passage(event: "EventJson") -> Passage | None:
    """Return an event of a run's history with its local time; None if it tells people nothing."""
    passage = event_passage(event)
    if passage is None:
        return None
    text = f"{local_time(event['at'], '%H:%M:%S')} {passage.text}"
    return Passage(wrap_line(text, _TIME_WIDTH), passage.style)


def event_passage(event: "EventJson") -> Passage | None:
    """Return an event of a run's history for people; None if it tells them nothing."""
    noun, _, change = event["kind"].partition(".")
    data = event["data"]
    if noun == "run":
        return _run_passage(change, data)
    if noun == "task":
        return _task_passage(change, event)
    # The live view names the check that is running.
    if noun == "check" and change != "started":
        passage = check_passage({**data, "passed": change == "passed"})
        return Passage(indent(passage.text, "  "), passage.style)
    if event["kind"] in {"attempt.warning", "attempt.diagnosed"}:
        return Passage(f"  ! {one_line(str(data.get('text') or ''), _LONGEST_EVENT)}", "yellow")
    return None


def _run_passage(change: str, data: Mapping[str, object]) -> Passage | None:
    if change == "queued":
        return None
    if change == "progress":
        return Passage(one_line(describe_progress_event(data), _LONGEST_EVENT), "cyan")
    sentence = _RUN_SENTENCES.get(change)
    if sentence is None:
        text = change.capitalize() + _doubt(data)
        if data.get("reason"):
            text += f": {data['reason']}"
    else:
        # A fact that the event lacks is left out of its sentence.
        text = sentence.format_map(defaultdict(str, data))
    return Passage(one_line(text, _LONGEST_EVENT), _EVENT_STYLES.get(change))


def _task_passage(change: str, event: "EventJson") -> Passage | None:
    if change not in STATUS_MARKS:
        return None
    data = event["data"]
    width = max(min((terminal_width() or 200) - _BESIDE_TITLE, 80), 30)
    title = cut_title(str(data.get("title") or ""), width)
    text = f"  {STATUS_MARKS[change]} {title} ({event['task_id']})"
    if data.get("reason") and change != "completed":
        text += f": {one_line(str(data['reason']), _LONGEST_EVENT)}"
    text += _doubt(data)
    if change == "waiting" and data.get("waiting_for") == "input":
        text += f' (answer with `kapelle answer {event["task_id"]} "…"`)'
    return Passage(text, _EVENT_STYLES[change])


def _doubt(data: Mapping[str, object]) -> str:
    if data.get("verified") is False:
        return ", not verified"
    return ""
