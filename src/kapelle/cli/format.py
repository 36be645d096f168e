"""Text, tables, times, amounts and states for people, made harmless for a terminal."""

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.domain import ids
from kapelle.domain.report import RunFields, TaskFields, has_no_changes
from kapelle.domain.states import is_delivering, is_resting
from kapelle.domain.text import format_count
from kapelle.home import disk_use

_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor movement
    # OSC and kin. The beginning of another one ends one: a line of them took quadratic time.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # the short ones, and the beginning of unfinished ones
)
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DECEPTIVE = re.compile(r"[\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """The text without anything that could steer a terminal; bidi controls become visible."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    text = _ESCAPE_SEQUENCE.sub("", text)
    # A progress bar returns the carriage; dropping that would glue its states together.
    text = text.replace("\r", "\n")
    text = _CONTROL.sub("", text)
    return _DECEPTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clean_painted(line: str) -> str:
    """The line without anything that could steer a terminal, but with its colours."""
    pieces = _COLOUR.split(line)
    return "".join(piece if _COLOUR.fullmatch(piece) else clean(piece) for piece in pieces)


def shown(text: str) -> str:
    """The text as it is read by people, with short ids, on a terminal; a program gets it whole."""
    if sys.stdout.isatty():
        return ids.shorten_ids(text)
    return text


def one_line(text: str, width: int | None = None) -> str:
    """The cleaned text on a single line, cut to a width."""
    line = " ".join(clean(text).split())
    if width is not None and len(line) > width:
        return line[: max(width - 1, 0)] + "…"
    return line


def last_lines(text: str, lines: int) -> list[str]:
    """The last lines of the cleaned text."""
    return clean(text).rstrip("\n").split("\n")[-lines:]


REASON_TAIL = 20
# What npm prints below the output of every failed script.
_NOISE = ("npm error", "npm ERR!")


def telling_lines(text: str, lines: int) -> list[str]:
    """Return the last lines of an output, without what npm adds to every failure."""
    found = clean(text).rstrip("\n").split("\n")
    kept = [line for line in found if not line.startswith(_NOISE)]
    return (kept or found)[-lines:]


def reason_lines(reason: str) -> list[str]:
    """Return a reason as one line, and below it the output that it tells, in lines."""
    first, *output = clean(reason).strip().split("\n")
    return [one_line(first), *output[-REASON_TAIL:]]


_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
# So much of the last column is to be seen of a table whose rows stand on one line each.
_LEAST_LAST = 16
STATUS_STYLE = {
    "completed": "green",
    "failed": "red",
    "lost": "red",
    "cancelled": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "blocked": "yellow",
    "paused": "yellow",
}


def colourful() -> bool:
    """Whether stdout shows colours and its reader wants them."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") != "dumb"
    )


def paint(text: str, style: str | None) -> str:
    """The text in a style; callers clean it first, because the codes are escape sequences."""
    if not style or not text or not colourful():
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def terminal_width() -> int | None:
    """Columns of the terminal, or None in a pipe, where lines are never cut."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def columns_of(text: str) -> int:
    """How many terminal cells a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None = None,
    indent: int = 0,
    fold: Sequence[int] = (),
    right: Container[int] = (),
) -> list[str]:
    """Rows in aligned columns; the last column is cut at the terminal's edge.

    styles holds one style per row, for its second column. In a terminal that is too narrow the
    columns of fold, by their numbers, stand on lines of their own. Those of right, which hold
    numbers, are aligned to the right.
    """
    everything = [header, *([shown(cell) for cell in row] for row in rows)]
    widths = [max(columns_of(row[index]) for row in everything) for index in range(len(header) - 1)]
    room = terminal_width()
    if fold and room is not None and indent + sum(widths) + 2 * len(widths) > room - _LEAST_LAST:
        return _folded(header, rows, styles, indent, fold)
    lines = []
    for number, row in enumerate(everything):
        cells = [
            cell.rjust(width) if index in right else cell + " " * (width - columns_of(cell))
            for index, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        used = indent + sum(widths) + 2 * len(widths)
        if room is None:
            last = row[-1]
        else:
            last = short_title(row[-1], max(room - used, 8))
        if number == 0:
            lines.append(paint("  ".join([*cells, last]).rstrip(), "bold"))
            continue
        if styles and len(cells) > 1:
            cells[1] = paint(cells[1], styles[number - 1])
        lines.append("  ".join([*cells, last]).rstrip())
    return [" " * indent + line for line in lines]


def _folded(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None,
    indent: int,
    fold: Sequence[int],
) -> list[str]:
    # The last column is the only one that is cut, so none of the others may be in its place.
    stay = [number for number in range(len(header)) if number not in fold]
    end = [""] if len(header) - 1 in fold else []
    above = [[*(row[number] for number in stay), *end] for row in (header, *rows)]
    below = [[row[number] for number in fold] for row in (header, *rows)]
    pairs = zip(
        table(above[0], above[1:], styles, indent),
        table(below[0], below[1:], None, indent + 4),
        strict=True,
    )
    return [line for pair in pairs for line in pair if line.strip()]


def wrapped(text: str, indent: int) -> str:
    """A line that is broken between words at the terminal's edge, behind an indent."""
    room = terminal_width()
    if room is None:
        return text
    first, *words = re.split(r"(?<=\S) ", text)
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        # The codes of its styles take no room.
        if columns_of(clean(longer)) <= room:
            lines[-1] = longer
        else:
            lines.append(" " * indent + word.lstrip())
    return "\n".join(lines)


def fit(text: str, room: int) -> str:
    """The text cut to so many terminal cells."""
    if columns_of(text) <= room:
        return text
    while text and columns_of(text) > room - 1:
        text = text[:-1]
    return text + "…"


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it."""
    if text:
        return datetime.fromisoformat(text)
    return None


def local(text: str | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time as the API writes it, on the clock here; empty when there is none."""
    at = moment(text)
    if at:
        return at.astimezone().strftime(form)
    return ""


def now() -> datetime:
    return datetime.now(UTC)


def short(seconds: float) -> str:
    """A duration such as 0.4s, 12s, 3m05s, 2h10m or 4d03h."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def elapsed_s(start: str, end: str | None) -> float:
    """How long something took, or takes by now."""
    return ((moment(end) or now()) - datetime.fromisoformat(start)).total_seconds()


def between(start: str | None, end: str | None) -> str:
    """How long something took, or takes by now, in words; empty when it has not begun."""
    if start:
        return short(elapsed_s(start, end))
    return ""


def ran_s(task: Mapping[str, Any]) -> float:
    """Return the time that a task's attempts took together, without the time between them."""
    attempts = task["attempts"]
    return sum(elapsed_s(attempt["started_at"], attempt["ended_at"]) for attempt in attempts)


def until(text: str | None) -> str:
    """How soon a time comes, in words; empty when there is none."""
    at = moment(text)
    if at:
        left = (at - now()).total_seconds()
    else:
        left = 0
    if at is None:
        return ""
    if left > 0:
        return f"in {short(left)}"
    return "now"


def size(count: int) -> str:
    """A number of bytes for people."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.{0 if unit == 'B' or amount >= 100 else 1}f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


_LEAST_USD = 0.0001


def dollars(amount: float) -> str:
    """An amount such as $1.2345, with a mark where it is too small for that."""
    if amount == 0 or amount >= _LEAST_USD:
        return f"${amount:,.4f}"
    return f"< ${_LEAST_USD}"


def usd_limit(amount: float) -> str:
    """An amount as somebody chose it, such as $5 or $0.25."""
    if amount >= 1 and amount % 1:
        return f"${amount:,.2f}"
    return f"${amount:,g}"


def cost(known: float | None, unknown: int) -> str:
    """Format the sum of some attempts' costs; unknown counts the attempts without a known cost."""
    if known is None:
        return "unknown"
    if not unknown:
        return dollars(known)
    return f"≥ {dollars(known)} ({format_count(unknown, 'attempt')} unknown)"


def usage_line(usage: dict[str, Any]) -> str:
    """What one attempt used, on one line."""
    if usage["cached_tokens"]:
        cached = f" ({usage['cached_tokens']:,} cached)"
    else:
        cached = ""
    facts = [f"{usage['input_tokens']:,} tokens in{cached}, {usage['output_tokens']:,} out"]
    if usage["turns"] and not usage["input_tokens"] and not usage["output_tokens"]:
        facts = ["tokens unknown"]  # an answer of a model without tokens is one that told none
    if usage["turns"]:
        facts.append(format_count(usage["turns"], "turn"))
    price = usage["cost_usd"]
    facts.append("cost unknown" if price is None else dollars(price))
    return ", ".join(facts)


def status_words(item: dict[str, Any]) -> str:
    """The status of a task or a run; what no check was made on is called so, and what passed its
    checks because nothing was changed."""
    status: str = item["status"]
    if item.get("verified") is False:
        if is_scored_alone(item):
            return f"{status}, not verified (judged by score)"
        return f"{status}, not verified"
    if has_no_changes(item):
        return f"{status}, changed nothing"
    return status


def is_scored_alone(item: dict[str, Any]) -> bool:
    """Tell whether a number alone decided about a run that is not verified."""
    spec = item.get("spec") or {}
    return item.get("verified") is False and bool(spec.get("eval")) and not spec.get("checks")


def heading(
    item: dict[str, Any], reason: str | None, styles: dict[str, str] = STATUS_STYLE
) -> Iterator[str]:
    """What every view of one thing begins with: its title, its id and its status."""
    yield paint(one_line(item["title"]), "bold")
    yield field("id", id_words(item))
    status = paint(status_words(item), styles.get(item["status"]))
    status = ", ".join([status, *(["archived"] if item.get("archived_at") else []), *marks(item)])
    first, *output = reason_lines(reason) if reason else [""]
    yield field("status", f"{status}: {first}" if first else status)
    yield from (f"    {line}" for line in output)


def marks(item: dict[str, Any]) -> list[str]:
    """What a person has marked it with: that it is flagged, and until when it is put off."""
    later = moment(item.get("snoozed_until"))
    if later and later > now():
        put_off = [f"snoozed until {local(item['snoozed_until'])}"]
    else:
        put_off = []
    return [*(["flagged"] if item.get("flagged_at") else []), *put_off]


def id_words(item: dict[str, Any]) -> str:
    """The id as it is typed, and on a terminal, where that is short, the whole of it."""
    typed = shown(item["id"])
    whole = item["id"]
    if typed == whole:
        return typed
    return f"{typed} {paint(f'({whole})', 'dim')}"


def agent_words(agent: str | None, model: str | None, fallback: Sequence[str] | None = ()) -> str:
    """Who is to do it, with which model, and who instead."""
    with_model = f" with {model}" if model else ""
    if fallback:
        then = f", then {', '.join(fallback)}"
    else:
        then = ""
    return one_line(f"{agent or 'the default'}{with_model}{then}")


def mark(good: bool) -> str:
    if good:
        return paint("✓", "green")
    return paint("✗", "red")


def field(name: str, value: str) -> str:
    line = f"  {paint(name.ljust(10), 'dim')} {value if name == 'id' else shown(value)}"
    return wrapped(line.rstrip(), 13)


def fields(facts: Mapping[str, str | None]) -> Iterator[str]:
    """Those of several fields that have something to tell."""
    return (field(name, value) for name, value in facts.items() if value)


def workspace_fields(item: dict[str, Any]) -> Iterator[str]:
    """Where a task or a run works, and on which branch."""
    workspace = item["workspace"]
    path = workspace["path"]
    is_there = path is not None and os.path.isdir(path)
    removed = (item.get("archived_at") or item["merged_at"]) and not is_there
    use = ""
    if workspace["branch"] and is_there:
        taken, inodes = disk_use(Path(path))
        use = f" ({size(taken)} in {inodes:,} files)"
    if path is None:
        place = "a worktree, which is made when it starts"
    else:
        place = clean(path) + use
    yield field("workspace", "removed" if removed else place)
    if workspace["branch"]:
        if workspace["base"]:
            onto = f" (from {one_line(workspace['base'])})"
        else:
            onto = ""
        if item["merged_at"]:
            merged = ", merged"
        else:
            merged = ""
        if item.get("merge_undone_at"):
            merged = ", merge undone"
        yield field("branch", f"{one_line(workspace['branch'])}{onto}{merged}")
    if told := item.get("delivery"):
        words = delivery_words(told, item["status"])
        yield field("deliver", paint(words, "yellow") if told["status"] == "failed" else words)


def delivery_words(told: dict[str, Any], status: str = "completed") -> str:
    """Where work of that status is delivered to, and how far that is."""
    facts = [told["state"], f"CI {told['ci']}" if told["ci"] not in {None, "none"} else None]
    what = {"merge": "merge", "push": "merge and push"}.get(told["mode"])
    if what is None:
        what = f"pull request {told['url'] or ''}".strip()
    if told["status"] == "delivered" and told["mode"] != "pr":
        facts = ["done"]
    elif told["status"] == "pending" and status in {"failed", "cancelled"}:
        facts = ["not delivered"]
    elif told["status"] != "delivered":
        facts = ["not delivered" if told["status"] == "failed" else told["status"], told["reason"]]
    else:
        # What a person has to know of it, such as that its state may be old.
        facts.append(told["reason"])
    return one_line(", ".join(filter(None, [what, *facts])), 2_000)


def command_lines(commands: list[tuple[str, str]]) -> Iterator[str]:
    """What may be typed next, and what each does."""
    yield ""
    commands = [(shown(command), purpose) for command, purpose in commands]
    width = max(len(command) for command, _ in commands)
    room = terminal_width()
    beside = room is None or width + max(len(purpose) for _, purpose in commands) + 4 <= room
    for command, purpose in commands:
        if beside:
            yield f"  {command.ljust(width)}  {paint(purpose, 'dim')}".rstrip()
        else:
            yield f"  {command}"
            if purpose:
                yield paint(f"      {purpose}", "dim")


def short_title(title: str, width: int) -> str:
    """A title cut to a width; what stands in brackets at its end says which it is, and stays."""
    line = one_line(title)
    start, bracket, which = line.rpartition(" (")
    if columns_of(line) <= width or not bracket or columns_of(which) > width * 2 // 3:
        return fit(line, width)
    return f"{fit(start, width - columns_of(which) - 2)} ({which}"


DONE = 0
WORK_FAILED = 1
ERROR = 2
INPUT_NEEDED = 3
_WAITS = {
    "input": "waiting for your answer",
    "rate_limit": "waiting for a rate limit to pass",
    "trust": "waiting until its repository is trusted",
}


def repository_path(item: TaskFields | RunFields) -> str:
    """Return the path of the repository of a task or a run; outside of one, its directory."""
    return str(item.get("repository") or item.get("directory") or "")


def settled(task: TaskFields) -> bool:
    """Whether nothing more will happen by itself to a task or a run."""
    return is_resting(task["status"], task["waiting_for"])


def finished(task: TaskFields) -> bool:
    """Whether it has settled, and its work is where it was to be delivered to."""
    commit = (task.get("workspace") or {}).get("commit")
    return settled(task) and not is_delivering(task["status"], commit, task.get("delivery"))


def exit_code(task: TaskFields) -> int:
    """0 done, 1 the work failed or is not delivered, 3 a person is needed: for an answer, or
    to let it go on."""
    if task["status"] == "completed":
        told = (task.get("delivery") or {}).get("status")
        if told in {"failed", "pending"}:
            return WORK_FAILED
        return DONE
    needed = task["status"] in {"waiting", "paused"} or task["waiting_for"] == "input"
    return INPUT_NEEDED if needed else WORK_FAILED


def exit_code_of_all(tasks: list[TaskFields]) -> int:
    """The worst news first: work that failed, then input that is needed."""
    codes = {exit_code(task) for task in tasks}
    return next((code for code in (WORK_FAILED, INPUT_NEEDED) if code in codes), DONE)


def doing_words(item: TaskFields | RunFields) -> str:
    """What a task or a run is at beyond its status, and what it waits for."""
    if item["status"] == "waiting" or item.get("waiting_for") == "input":
        return waiting_words(item)
    said = item["reason"]
    far = ""
    if check := item.get("checking"):
        said = f"checking: {check['name']}, {between(check['started_at'], None)}"
    if item["status"] == "running" and item.get("progress"):
        from kapelle.cli.events import state_words

        far = state_words(item["progress"], item["spec"].get("max_iterations"))
    return ", ".join(filter(None, [far, said]))


def waiting_words(task: TaskFields) -> str:
    """The reason of a waiting task, with the time at which it goes on by itself."""
    reason = task["reason"] or _WAITS.get(task["waiting_for"] or "", "waiting")
    soon = until(task.get("not_before"))
    if soon:
        return f"{reason}; goes on {soon}, at {local(task['not_before'])}"
    return str(reason)
