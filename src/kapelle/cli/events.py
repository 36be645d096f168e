"""Events as lines for people, and `kapelle events`."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from textwrap import indent
from typing import Any

from kapelle.cli.format import STATUS_STYLE, local, one_line, short_title, terminal_width, wrapped
from kapelle.cli.ids import complete
from kapelle.cli.logs import Passage, check_passage
from kapelle.cli.output import json_line
from kapelle.cli.parser import command, follow_flag, json_lines_flag, option
from kapelle.cli.types import Number
from kapelle.client.http import DaemonConnection
from kapelle.domain.text import format_count

EventData = dict[str, Any]
EventFacts = dict[str, Any]

_WIDTH = 300
_STYLES = {**STATUS_STYLE, "running": None, "pausing": "yellow", "stopping": "yellow"}
MARKS = {"running": "▸", "completed": "✓", "failed": "✗", "cancelled": "✗", "waiting": "?"}
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
    "marked": "Marked by a person",
}
_PROBLEM = 200
_VERDICTS = {
    "start": "the start",
    "pass": "passed",
    "progress": "not yet",
    "keep": "better, kept",
    "discard": "not better, put back",
    "fail": "failed",
}
# Facts of the built-in patterns, which the sentences below are made of.
_KNOWN_FACTS = frozenset(
    {"iteration", "failures", "best", "verdict", "score", "problem", "feedback", "step", "steps",
     "doing", "phase", "lack", "subgoals", "merged", "planned", "verified", "cycle", "cycles",
     "round", "rounds", "loop", "loops", "items", "ended", "done", "failed", "candidates",
     "eligible", "winner", "agent"}
)  # fmt: skip


@command("events", "kapelle events --follow", "kapelle events --task 4f2xq --json")
@follow_flag
@option("--after", type=Number(0), metavar="NUMBER", help="Number of the event to begin behind.")
@option("--task", metavar="ID", help="Task of the events.", shell_complete=complete("tasks"))
@option(
    "--run",
    metavar="ID",
    help="Run of the events and of its tasks.",
    shell_complete=complete("runs"),
)
@json_lines_flag
def events(
    follow: bool, after: int | None, task: str | None, run: str | None, as_json: bool
) -> None:
    """Show the history of all events.

    With --follow and without --after, it begins now.
    """
    query = {"after": after, "task_id": task, "run_id": run, "follow": follow}
    for event in DaemonConnection().stream("/events", query, endless=follow):
        if "seq" in event.data and as_json:
            json_line(event.data)
        elif "seq" in event.data:
            sys.stdout.write(event_line(event.data) + "\n")
            sys.stdout.flush()


def event_line(event: dict[str, Any]) -> str:
    """One event for people: number, local time, what happened, to which task or run."""
    facts = _facts(event["kind"], event["data"])
    subject = event["task_id"] or event.get("run_id") or ""
    words = f"{event['seq']} {local(event['at'])} {event['kind']} {subject} {facts}"
    return one_line(words, 400)


def _facts(kind: str, data: dict[str, Any]) -> str:
    match kind, data:
        case "account.paused", {"reason": reason, "until": str(until)}:
            return f"{reason}; it pauses until {local(until)}"
        case "attempt.warning", {"text": text}:
            return str(text)
        case "attempt.diagnosed", {"agent": agent, "text": text}:
            return f"by {agent}: {text}"
    # Its path is for scripts; people have `kapelle logs`.
    facts = {key: value for key, value in data.items() if key != "output_path"}
    return " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)


def line(event: EventData) -> Passage | None:
    """How an event is shown behind its local time, with long lines broken in a terminal."""
    shown = passage(event)
    if shown is None:
        return None
    return Passage(wrapped(f"{local(event['at'], '%H:%M:%S')} {shown.text}", 9), shown.style)


def passage(event: EventData) -> Passage | None:
    """How an event is shown; None for those that say nothing to a person."""
    noun, _, what = event["kind"].partition(".")
    match noun:
        case "run":
            return _of_run(what, event["data"])
        case "task":
            return _of_task(what, event)
        case "check" if what != "started":  # the live line tells what is being made
            shown = check_passage({**event["data"], "passed": what == "passed"})
            return Passage(indent(shown.text, "  "), shown.style)
    if event["kind"] in {"attempt.warning", "attempt.diagnosed"}:
        said = one_line(str(event["data"].get("text") or ""), _WIDTH)
        return Passage(f"  ! {said}", "yellow")
    return None


def _of_run(what: str, data: dict[str, Any]) -> Passage | None:
    if what == "progress":
        return Passage(one_line(progress_words(data), _WIDTH), "cyan")
    if what == "queued":
        return None
    why = _unverified(data) + (f": {data['reason']}" if data.get("reason") else "")
    words = _RUN_WORDS.get(what, f"{what.capitalize()}{{why}}")
    # What an event does not tell is left out of its sentence.
    words = words.format_map(defaultdict(str, data, why=why))
    return Passage(one_line(words, _WIDTH), _STYLES.get(what))


def _unverified(data: dict[str, Any]) -> str:
    if data.get("verified") is False:
        return ", not verified"
    return ""


def _of_task(what: str, event: EventData) -> Passage | None:
    if what not in MARKS:
        return None
    # So many letters that a title fits on the line with the time and an id.
    width = max(min((terminal_width() or 200) - 48, 80), 30)
    title = short_title(str(event["data"].get("title") or ""), width)
    reason = event["data"].get("reason")
    if reason and what != "completed":
        why = f": {one_line(str(reason), _WIDTH)}"
    else:
        why = ""
    why += _unverified(event["data"])
    if what == "waiting" and event["data"].get("waiting_for") == "input":
        why += f' (answer with `kapelle answer {event["task_id"]} "…"`)'
    return Passage(f"  {MARKS[what]} {title} ({event['task_id']}){why}", _STYLES[what])


def progress_words(facts: EventFacts) -> str:
    """One thing that a run has told, for its history."""
    if facts.get("verdict") is not None:
        return _verdict(facts)
    return (
        ", ".join([*_place(facts), *_score("score", facts.get("score")), *_more(facts)])
        or "goes on"
    )


def state_words(facts: EventFacts, limit: int | None = None) -> str:
    """All that is known by now, for a line about the present; limit is the most iterations."""
    score = _score("last score", facts.get("score"))
    return ", ".join([*_place(facts, limit), *score, *_more(facts)])


def _score(name: str, value: Any) -> list[str]:
    if is_number(value):
        return [f"{name} {value:.12g}"]
    return []


def verdict_words(verdict: str) -> str:
    """What became of an iteration of a loop."""
    return _VERDICTS.get(verdict, verdict)


def _verdict(facts: EventFacts) -> str:
    score = facts.get("score")
    best = facts.get("best")
    found = [*_score("score", score), verdict_words(str(facts["verdict"]))]
    found += _score("best", best) if best != score else []
    why = facts.get("problem") or facts.get("feedback")
    if why:
        said = f" ({one_line(str(why), _PROBLEM)})"
    else:
        said = ""
    return f"iteration {facts.get('iteration')}: {', '.join(found)}{said}"


def _place(facts: EventFacts, limit: int | None = None) -> list[str]:
    found = []
    if facts.get("iteration") is not None:
        of = f" of {limit}" if limit else ""
        found.append(f"iteration {facts['iteration']}{of}")
    if facts.get("phase"):
        about = facts.get("lack")
        subgoals = facts.get("subgoals")
        if facts["phase"] == "work" and isinstance(subgoals, list):
            about = ", ".join(str(one["title"]) for one in subgoals if isinstance(one, dict))
        about = about or _nested_parts(facts)
        if about:
            more = f": {one_line(str(about), _PROBLEM)}"
        else:
            more = ""
        found.append(f"{one_line(str(facts['phase']), 60)}{more}")
    if facts.get("step") is not None:
        if facts.get("doing"):
            doing = f": {one_line(str(facts['doing']), 60)}"
        else:
            doing = ""
        found.append(f"step {facts['step']} of {facts.get('steps')}{doing}")
    elif facts.get("doing"):
        found.append(one_line(str(facts["doing"]), 120))
    return found + _score("best", facts.get("best"))


def _nested_parts(facts: EventFacts) -> str:
    """Return the parts of a plan that are runs of their own; tasks have lines of their own."""
    plan = facts.get("plan")
    if facts["phase"] != "work" or not isinstance(plan, list):
        return ""
    parts = [part for part in plan if isinstance(part, dict) and part.get("kind", "task") != "task"]
    return ", ".join(f"{part['title']} ({part['kind']}): {part['status']}" for part in parts)


def _more(facts: EventFacts) -> list[str]:
    """What has been reached of what is planned, then what only the pattern itself understands."""
    return [*_reached(facts)] + [
        one_line(f"{key.replace('_', ' ')} {value_words(value)}", 80)
        for key, value in facts.items()
        if key not in _KNOWN_FACTS and value is not None and not isinstance(value, list | dict)
    ]


def _reached(facts: EventFacts) -> Iterator[str]:
    """Return how many of the planned cycles, rounds, items or candidates there are by now."""
    for name in ("cycle", "round", "loop"):
        number = facts.get(name)
        most = facts.get(f"{name}s")
        if number and most and (name != "loop" or most != 1):
            yield f"{name} {number} of {most}"
    done = facts.get("done")
    milestones = facts.get("milestones")
    if isinstance(milestones, list) and milestones:
        yield f"{done or 0} of {format_count(len(milestones), 'milestone')} done"
    elif facts.get("items") is not None:
        yield f"{done or 0} of {facts['items']} done"
    if facts.get("failed"):
        yield f"{facts['failed']} failed"
    if facts.get("eligible") is not None:
        yield f"{facts['eligible']} of {facts.get('candidates')} candidates passed"
    if facts.get("winner") is not None:
        if facts.get("agent"):
            by = f" ({facts['agent']})"
        else:
            by = ""
        yield f"candidate {facts['winner']}{by} wins"


def value_words(value: Any) -> str:
    """A fact of a pattern: yes or no, a number without noise, or what else it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_number(value):
        return f"{value:.12g}"
    return str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
