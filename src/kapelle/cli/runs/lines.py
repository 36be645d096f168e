"""The events of a run as lines for people; those that only repeat others are left out."""

from typing import Any

from kapelle.cli.runs.progress import progress_words
from kapelle.cli.style import terminal_width
from kapelle.cli.text import one_line
from kapelle.cli.times import moment
from kapelle.cli.transcript import Passage

Event = dict[str, Any]

_WIDTH = 300
_STYLES = {
    "completed": "green", "failed": "red", "cancelled": "dim", "waiting": "yellow",
    "paused": "yellow", "pausing": "yellow", "stopping": "yellow",
}  # fmt: skip
_MARKS = {"running": "▸", "completed": "✓", "failed": "✗", "cancelled": "✗", "waiting": "?"}
_RUN_WORDS = {
    "created": "Created: {title}",
    "running": "Under way",
    "waiting": "It asks: {reason}",
    "answered": "Answered: {answer}",
    "pausing": "It pauses as soon as what is at work has ended",
    "stopping": "It ends as soon as what is at work has stopped",
    "paused": "Paused",
    "resumed": "Resumed",
    "merged": "Merged into {base}",
    "archived": "Archived",
}


def passage(event: Event) -> Passage | None:
    """How an event is shown; None for those that say nothing to a person."""
    noun, _, what = event["kind"].partition(".")
    match noun:
        case "run":
            return _of_run(what, event["data"])
        case "task":
            return _of_task(what, event)
        case "check":
            mark = _MARKS["completed" if what == "passed" else "failed"]
            text = one_line(f"  {event['data'].get('name')}", _WIDTH)
            style = "green" if what == "passed" else "red"
            return Passage(f"  {mark} check {what}: {text}", style)
    if event["kind"] in {"attempt.warning", "attempt.diagnosed"}:
        said = one_line(str(event["data"].get("text") or ""), _WIDTH)
        return Passage(f"  ! {said}", "yellow")
    return None


def line(event: Event) -> Passage | None:
    """The same with the local time before it."""
    shown = passage(event)
    if shown is None:
        return None
    at = moment(event["at"])
    clock = at.astimezone().strftime("%H:%M:%S") if at else ""
    return Passage(f"{clock} {shown.text}", shown.style)


def _of_run(what: str, data: dict[str, Any]) -> Passage | None:
    if what == "progress":
        return Passage(one_line(progress_words(data), _WIDTH), "cyan")
    if what == "queued":
        return None
    style = _STYLES.get(what)
    if what in _RUN_WORDS:
        words = _RUN_WORDS[what].format_map(_Known(data))
        return Passage(one_line(words, _WIDTH), style)
    reason = f": {data['reason']}" if data.get("reason") else ""
    return Passage(one_line(f"{what.capitalize()}{reason}", _WIDTH), style)


def _of_task(what: str, event: Event) -> Passage | None:
    if what not in _MARKS:
        return None
    title = short_title(str(event["data"].get("title") or ""), _title_width())
    reason = event["data"].get("reason")
    why = f": {one_line(str(reason), _WIDTH)}" if reason and what != "completed" else ""
    if what == "waiting" and str(reason).startswith("It asks:"):
        why += f' (answer with `kapelle resume {event["task_id"]} "…"`)'
    style = None if what == "running" else _STYLES[what]
    return Passage(f"  {_MARKS[what]} {title} ({event['task_id']}){why}", style)


def _title_width() -> int:
    """So many letters that a title fits on the line with the time and an id."""
    return max(min((terminal_width() or 200) - 48, 80), 30)


def short_title(title: str, width: int) -> str:
    """A title cut to a width; what stands in brackets at its end says which it is, and stays."""
    line = one_line(title)
    if len(line) <= width:
        return line
    start, bracket, which = line.rpartition(" (")
    if not bracket or len(which) > width // 2:
        return one_line(line, width)
    return f"{one_line(start, width - len(which) - 2)} ({which}"


class _Known(dict[str, Any]):
    """What an event does not tell is left out of its sentence."""

    def __missing__(self, key: str) -> str:
        return ""
