"""`kapelle top`: all work at once, live in the terminal, with keys to look at it and to act."""

import os
import re
import select
import shlex
import signal
import sys
import termios
import threading
import time
import tty
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from kapelle.cli.figures import format_elapsed, format_usd, now, parse_time
from kapelle.cli.ids import path_of
from kapelle.cli.interaction import confirm, read_line
from kapelle.cli.layout import STATUS_STYLE, format_table, paint
from kapelle.cli.output import say
from kapelle.cli.parser import command, reports
from kapelle.cli.questions import question_lines
from kapelle.cli.result import Result
from kapelle.cli.states import describe_activity
from kapelle.cli.text import cell_width, cut_text, one_line
from kapelle.cli.view import repository_name
from kapelle.client.http import DaemonConnection, listens
from kapelle.domain.errors import KapelleError
from kapelle.domain.report import FINAL

if TYPE_CHECKING:
    from kapelle.client.records import WorkJson

# A task is never paused, and a run is never blocked.
_OPEN_TASK_STATUSES = ("blocked", "queued", "running", "waiting")
_OPEN_RUN_STATUSES = ("paused", "queued", "running", "waiting")
_STATUS_ORDER = (
    "running",
    "waiting",
    "paused",
    "queued",
    "blocked",
    "failed",
    "cancelled",
    "completed",
)
_MOST_ITEMS = 200
# Ended work stays in the table for so long.
_ENDED_S = 600.0
_REFRESH_S = 1.0
_KEY_TIMEOUT_S = 0.3
_COLUMN_WIDTHS = {"ID": 7, "STATUS": 9, "AGE": 6, "AGENT": 11, "REPOSITORY": 11, "COST": 8}
# The last columns are left out until the title has so much room.
_LEAST_TITLE_WIDTH = 22
_LONGEST_CELL = 24

# Escape sequences: use the alternate screen without a cursor and line breaks, and go back.
_ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE_SCREEN = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_KEY = re.compile(r"\x1b[\[O].|.", re.DOTALL)
_STEPS = {"k": -1, "\x1b[A": -1, "\x1bOA": -1, "j": 1, "\x1b[B": 1, "\x1bOB": 1}
_BACK_KEYS = frozenset({"\n", "q", " ", "\x1b"})
_HELP = """
  ↑ ↓ j k   select a task or run
  ⏎         show it; ended work moves to the end then
  l         show its logs
  a         answer its question
  d         show its diff
  m         merge it
  c         cancel it
  r         start it again
  ^Z        suspend
  q         quit; all work goes on
"""


@command("top", "kapelle top")
@reports
def top() -> Result:
    """Watch all active work live, with keys to answer, cancel or merge.

    Where stdin or stdout is no terminal, it prints how things stand and ends.
    """
    work = _WorkTable(DaemonConnection())
    items = work.load()
    return Result(items, _watch_or_list(work, items))


def _watch_or_list(work: "_WorkTable", items: "Sequence[WorkJson]") -> Iterator[str]:
    """Show the work on a screen; where stdin or stdout is no terminal, return a table of it."""
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb":
        _run_screen(work)
    elif items:
        rows = [[*_cells(item), " · ".join(_describe(item))] for item in items]
        yield from format_table([*_COLUMN_WIDTHS, "TITLE"], rows)
    else:
        say("Nothing is at work.")


class _WorkTable:
    """The tasks and runs that are at work or have just ended, in the order of the table."""

    def __init__(self, client: DaemonConnection) -> None:
        self.items: list[WorkJson] = []
        self.need_count = 0  # of all work, also of that outside of the table
        self.problem: Exception | None = None
        self.is_away = False
        self._client = client

    def load(self) -> "list[WorkJson]":
        """Request the present state of all items, and return them."""
        previous = {item["id"]: item for item in self.items}
        items = self._list_items("tasks", _OPEN_TASK_STATUSES)
        items |= self._list_items("runs", _OPEN_RUN_STATUSES)
        if not previous:
            items |= self._list_items("tasks", sorted(FINAL))
            items |= self._list_items("runs", sorted(FINAL))
        for item_id, item in previous.items():
            if item_id in items:
                continue
            if item["status"] in FINAL:
                items[item_id] = item
            else:
                # It has left the list of open work since the last request.
                items[item_id] = self._client.get(path_of(item_id))
        visible = {item_id: item for item_id, item in items.items() if _is_visible(item)}
        self.items = sort_items(visible)
        self.need_count = self._client.get("/needs", {"limit": 1})["rows"]
        return self.items

    def _list_items(self, noun: str, statuses: Sequence[str]) -> "dict[str, WorkJson]":
        """Return the tasks or the runs with one of the statuses, by id."""
        query = {"status": list(statuses), "limit": _MOST_ITEMS}
        return {item["id"]: item for item in self._client.get(f"/{noun}", query)[noun]}

    def mark_seen(self, item: "WorkJson") -> None:
        """Move an ended item to the end of the table, because a person has looked at it."""
        if item["status"] not in FINAL or item.get("seen_at"):
            return
        with suppress(KapelleError):  # the table is right without the mark
            answer = self._client.post(f"/work/{item['id']}/mark", {"seen": True})
            item["seen_at"] = answer["seen_at"]
            self.items = sort_items({one["id"]: one for one in self.items})

    def start_refreshing(self) -> None:
        """Keep the items up to date in the background, until an unexpected error occurs."""
        threading.Thread(target=self._refresh, daemon=True).start()

    def _refresh(self) -> None:
        address = self._client.address
        while self.problem is None:
            time.sleep(_REFRESH_S)
            self.is_away = not listens(address)
            # A daemon that was stopped has removed its socket: whoever stopped it starts it
            # again. A daemon that died has left its socket: the next request starts it.
            has_died = address.url is None and address.home.socket.exists()
            if self.is_away and not has_died:
                continue
            try:
                self.load()
                self.is_away = False
            except KapelleError:
                self.is_away = True
            except Exception as error:
                self.problem = error


def sort_items(items: "Mapping[str, WorkJson]") -> "list[WorkJson]":
    """Return open items first, parts behind their run; ended items that were seen come last."""

    def sort_key(item: "WorkJson") -> tuple[int, str, str]:
        leader = _leader(item, items)
        rank = _STATUS_ORDER.index(leader["status"])
        if leader["status"] in FINAL and leader.get("seen_at"):
            rank = len(_STATUS_ORDER)
        if leader is item:
            return rank, item["id"], ""
        return rank, leader["id"], item["id"]

    return sorted(items.values(), key=sort_key)


def _leader(item: "WorkJson", items: "Mapping[str, WorkJson]") -> "WorkJson":
    """Return the run that an item stands behind: its own if both are open; else the item."""
    run = items.get(_run_id(item) or "")
    if run is None or item["status"] in FINAL or run["status"] in FINAL:
        return item
    return run


def _run_id(item: "WorkJson") -> str | None:
    """Return the id of the run that a task or a run is a part of."""
    if "pattern" in item:
        return item.get("parent_id")
    return item.get("run_id")


def _is_visible(item: "WorkJson") -> bool:
    """Tell whether an item is open, or has ended a short time ago and is no part of a run."""
    if item["status"] not in FINAL:
        return True
    is_task_of_run = "pattern" not in item and item.get("run_id")
    ended_at = parse_time(item["ended_at"]) or now()
    return not is_task_of_run and (now() - ended_at).total_seconds() < _ENDED_S


def _cells(item: "WorkJson") -> list[str]:
    """Return the cells of an item, for all columns except the title."""
    indent = " " if _run_id(item) else ""
    age = format_elapsed(item["created_at"], None)
    who = one_line(_worker(item), _LONGEST_CELL)
    repository = one_line(repository_name(item), _LONGEST_CELL)
    return [indent + item["id"][-5:], item["status"], age, who, repository, _format_cost(item)]


def _worker(item: "WorkJson") -> str:
    """Return the pattern of a run, or the agent that works on a task or did so last."""
    if "pattern" in item:
        return item["pattern"]
    if item["attempts"]:
        last = item["attempts"][-1]
        return "/".join(filter(None, [last["agent"], last["model"]]))
    return "/".join(filter(None, [item["agent"], item["model"]]))


def _format_cost(item: "WorkJson") -> str:
    """Return the known cost of a task or a run; empty if none is known."""
    if "pattern" in item:
        costs = [item["spent"]["cost_usd"]]
    else:
        usages = [attempt["usage"] for attempt in item["attempts"]]
        costs = [usage["cost_usd"] for usage in usages if usage]
    known_costs = [cost for cost in costs if cost is not None]
    if not known_costs:
        return ""
    return format_usd(sum(known_costs))


def _describe(item: "WorkJson") -> list[str]:
    """Return the title, and what the item does now or why it is in doubt, if there is any."""
    parts = []
    if item.get("verified") is False:
        parts.append("not verified")
    parts.append(describe_activity(item))
    activity = one_line(", ".join(filter(None, parts)), 300)
    title = one_line(item["title"], 80)
    if activity:
        return [title, activity]
    return [title]


def render_page(
    items: "Sequence[WorkJson]",
    selected_id: str,
    width: int,
    height: int,
    *,
    is_away: bool,
    need_count: int = 0,
) -> list[str]:
    """Return the lines of the screen: a summary, the table around the selected item, the keys."""
    head = paint(cut_text(_summary(items, is_away, need_count), width), "bold")
    foot = paint(cut_text(_key_hints(items, selected_id), width), "dim")
    columns = _TopColumns.for_width(width)
    header = paint(columns.format_row([*_COLUMN_WIDTHS], "TITLE", None), "bold")
    lines: list[str] = []
    selected_line = 0
    for item in items:
        if item["id"] == selected_id:
            selected_line = len(lines)
        lines += _item_lines(item, columns, width, is_selected=item["id"] == selected_id)
    room = max(height - 3, 1)
    first = max(min(selected_line - room // 2, len(lines) - room), 0)
    visible = lines[first : first + room]
    visible += [""] * (room - len(visible))
    return [head, header, *visible, foot][:height]


def _summary(items: "Sequence[WorkJson]", is_away: bool, need_count: int) -> str:
    """Return how many items there are of each status, and how many need a person."""
    counts = Counter[str](item["status"] for item in items)
    parts = [f"{counts[status]} {status}" for status in _STATUS_ORDER if counts[status]]
    summary = "kapelle · "
    if is_away:
        summary += "the daemon is away; running agents go on · "
    summary += ", ".join(parts) or "nothing is at work"
    if need_count:
        summary += f" · {need_count} need you"
    return summary


def _key_hints(items: "Sequence[WorkJson]", selected_id: str) -> str:
    """Return the keys for the selected item, each with a word."""
    hints = ["q quit", "? keys"]
    for item in items:
        if item["id"] == selected_id:
            hints += [f"{key} {action.word}" for key, action in _actions(item).items()]
    return "  ".join([*hints, "↑↓ choose"]).replace("\n", "⏎")


class _TopColumns(NamedTuple):
    """The columns of the table that fit on the screen."""

    widths: list[int]
    title_width: int

    @classmethod
    def for_width(cls, width: int) -> "_TopColumns":
        """Leave out columns from the end until the title has room."""
        widths = list(_COLUMN_WIDTHS.values())
        # A space follows each column.
        while len(widths) > 1 and width - sum(widths) - len(widths) < _LEAST_TITLE_WIDTH:
            widths.pop()
        return cls(widths, max(width - sum(widths) - len(widths), 1))

    def format_row(self, cells: Sequence[str], title: str, status_style: str | None) -> str:
        """Return a line of the table, with the cells of the columns that fit."""
        parts = []
        for cell, width in zip(cells, self.widths, strict=False):
            parts.append(cut_text(cell, width).ljust(width))
        if len(parts) > 1:
            parts[1] = paint(parts[1], status_style)
        return " ".join([*parts, cut_text(title, self.title_width)])


def _item_lines(
    item: "WorkJson", columns: _TopColumns, width: int, *, is_selected: bool
) -> list[str]:
    """Return the line of an item, and one for its activity if that does not fit beside."""
    description = _describe(item)
    title = " · ".join(description)
    below = []
    if cell_width(title) > columns.title_width:
        title, *below = description
    # The codes of a colour would end the inverse video of the selected line.
    status_style = None if is_selected else STATUS_STYLE.get(item["status"])
    line = columns.format_row(_cells(item), title, status_style)
    if is_selected:
        line = f"\x1b[7m{line}\x1b[0m"
    return [line, *(paint(cut_text(f"    {activity}", width), "dim") for activity in below)]


class _Action(NamedTuple):
    """The command that a key runs on an item."""

    word: str
    command: str
    # A question that a person has to confirm first.
    question: str = ""


def _actions(item: "WorkJson") -> dict[str, _Action]:
    """Return the actions that an item allows, by their keys."""
    is_ended = item["status"] in FINAL
    workspace = item["workspace"]
    actions = {"\n": _Action("look", "status"), "l": _Action("logs", "logs -f")}
    if is_ended:
        actions["l"] = _Action("logs", "logs")
    if item.get("questions") or item["question"]:
        actions["a"] = _Action("answer", "answer")
    if workspace["branch"]:
        actions["d"] = _Action("diff", "diff")
    is_mergeable = workspace["commit"] and not workspace["owner"] and not item["merged_at"]
    if item["status"] == "completed" and is_mergeable:
        actions["m"] = _Action("merge", "merge", "Merge it?")
    if not is_ended:
        actions["c"] = _Action("cancel", "cancel", "Cancel it?")
    elif "pattern" not in item:
        actions["r"] = _Action("retry", "retry", "Start it again?")
    return actions


def _perform(action: _Action, item: "WorkJson") -> None:
    """Run the command of a key, and leave its output on the terminal until a key is pressed."""
    from kapelle.cli.main import guarded

    say(one_line(item["title"], 70))
    with suppress(KeyboardInterrupt):
        arguments = [*action.command.split(), item["id"]]
        if action.word == "answer":
            if item.get("questions"):
                question = item["questions"][0]
                arguments[-1] = question["token"]
                for line in question_lines(question)[:-1]:
                    say(line)
            answer = (read_line("Your answer: ") or "").strip()
            if not answer:
                return
            arguments.append(answer)
        elif action.question and not confirm(action.question):
            return
        say(f"$ kapelle {shlex.join(arguments)}")
        guarded(arguments)
        _await_key()


def _await_key() -> None:
    """Return when a key is pressed that goes back, or when the terminal is gone."""
    # Before the hint is printed, and with what was typed already: it must not be lost.
    tty.setcbreak(0, termios.TCSADRAIN)
    say("\nEnter, q or Esc goes back.")
    while text := os.read(0, 64).decode("utf-8", "replace").replace("\r", "\n"):
        if _BACK_KEYS & set(_KEY.findall(text)):
            return


class _Screen:
    """The terminal while it shows the table; it is restored whenever the block is left."""

    def __init__(self) -> None:
        self._saved = termios.tcgetattr(0)
        self._drawn: tuple[tuple[int, int], list[str]] | None = None

    def __enter__(self) -> "_Screen":
        with suppress(termios.error):  # the terminal may be gone
            tty.setcbreak(0)
        self._drawn = None
        self._write(_ENTER_SCREEN)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, termios.error):  # the terminal may be gone
            self._write(_LEAVE_SCREEN)
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Restore the terminal for a command, and show the table again after the block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def suspend(self, *_: object) -> None:
        """Suspend the process, as ^Z does without this handler, with a restored terminal."""
        with self.lend():
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self.suspend)

    def draw(self, work: _WorkTable, selected_id: str) -> None:
        """Draw the page, unless it is on the screen already."""
        columns, rows = os.get_terminal_size(1)
        size = columns or 80, rows or 24
        page = render_page(
            work.items, selected_id, *size, is_away=work.is_away, need_count=work.need_count
        )
        if (size, page) != self._drawn:
            self._write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in page) + "\x1b[J")
            self._drawn = size, page

    def read_keys(self) -> list[str]:
        """Return the keys that were pressed; after a short time without any, none."""
        if not select.select([0], [], [], _KEY_TIMEOUT_S)[0]:
            return []
        text = os.read(0, 64).decode("utf-8", "replace").replace("\r", "\n")
        if not text:
            return ["q"]  # the end of input
        return _KEY.findall(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _run_screen(work: _WorkTable) -> None:
    """Show the table and handle keys until a person quits."""
    screen = _Screen()
    signal.signal(signal.SIGTSTP, screen.suspend)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    work.start_refreshing()
    try:
        _handle_keys(work, screen)
    except (OSError, termios.error):
        # A terminal window that was closed is no error.
        if os.isatty(0):
            raise


def _handle_keys(work: _WorkTable, screen: _Screen) -> None:
    selected_id = ""
    row = 0
    with screen:
        while work.problem is None:
            items = work.items
            row = _find_row(items, selected_id, row)
            selected_id = items[row]["id"] if items else ""
            screen.draw(work, selected_id)
            for key in screen.read_keys():
                if key == "q":
                    return
                if key == "?":
                    with screen.lend():
                        say(_HELP)
                        _await_key()
                elif key in _STEPS and items:
                    row = _clamp_row(items, row + _STEPS[key])
                    selected_id = items[row]["id"]
                elif items and key in _actions(items[row]):
                    with screen.lend():
                        _perform(_actions(items[row])[key], items[row])
                    if key == "\n":
                        work.mark_seen(items[row])
    raise work.problem


def _find_row(items: "Sequence[WorkJson]", selected_id: str, row: int) -> int:
    """Return the row of the selected item; if that is gone, the row where it was."""
    for number, item in enumerate(items):
        if item["id"] == selected_id:
            return number
    return _clamp_row(items, row)


def _clamp_row(items: "Sequence[WorkJson]", row: int) -> int:
    """Return the nearest row that exists; 0 if the table is empty."""
    return max(min(row, len(items) - 1), 0)
