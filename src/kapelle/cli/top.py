"""`kapelle top`: all that is at work, live in the terminal, with keys to look and to act."""

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kapelle.cli.follow import read_line
from kapelle.cli.format import (
    STATUS_STYLE,
    between,
    columns_of,
    doing_words,
    dollars,
    fit,
    moment,
    now,
    one_line,
    paint,
    repository_path,
    table,
)
from kapelle.cli.ids import is_run, path_of
from kapelle.cli.output import say
from kapelle.cli.parser import command, reports
from kapelle.cli.questions import question_lines
from kapelle.cli.result import Result
from kapelle.client.http import DaemonConnection, listens
from kapelle.domain.errors import KapelleError
from kapelle.domain.report import FINAL, RunFields, TaskFields

ActiveItem = TaskFields | RunFields

_OPEN = ("running", "waiting", "paused", "queued", "blocked")
_ORDER = (*_OPEN, "failed", "cancelled", "completed")
_MOST = 200
# So long what has ended is shown.
_ENDED_S = 600.0
_LOOK_S = 1.0
_REDRAW_S = 0.3
_COLUMNS = {"ID": 7, "STATUS": 9, "AGE": 6, "AGENT": 11, "REPOSITORY": 11, "COST": 8}
# So much room the title has at least, or a column is left out.
_LEAST = 22
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_TYPED = re.compile(r"\x1b[\[O].|.", re.DOTALL)
_STEPS = {"k": -1, "\x1b[A": -1, "\x1bOA": -1, "j": 1, "\x1b[B": 1, "\x1bOB": 1}


@command("top", "kapelle top")
@reports
def top() -> Result:
    """Watch all active work live, with keys to answer, cancel or merge.

    Where stdin or stdout is no terminal, it prints how things stand and ends.
    """
    known = _WorkTable(DaemonConnection())
    found = known.ask()
    return Result(found, _show_or_list(known, found))


def _show_or_list(known: "_WorkTable", found: list[ActiveItem]) -> Iterator[str]:
    """Watch the work in a terminal; elsewhere return a table of it."""
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb":
        _watch(known)
    elif found:
        rows = [[*_cells(item), " · ".join(_words(item))] for item in found]
        yield from table([*_COLUMNS, "TITLE"], rows)
    else:
        say("Nothing is at work.")


class _WorkTable:
    """What is at work and what has just ended, in the order in which it is shown."""

    def __init__(self, client: DaemonConnection) -> None:
        self.items: list[ActiveItem] = []
        self.needs = 0  # how many things need a person, over all work
        self.problem: Exception | None = None
        self.is_away = False
        self._client = client

    def ask(self) -> list[ActiveItem]:
        """All of it as it is now: a request for each list, and for each that has left its list."""
        before = {item["id"]: item for item in self.items}
        found: dict[str, ActiveItem] = {}
        for noun, never in (("tasks", "paused"), ("runs", "blocked")):
            for states in (_OPEN, FINAL) if not before else (_OPEN,):
                query = {"status": sorted({*states} - {never}), "limit": _MOST}
                found |= {item["id"]: item for item in self._client.get(f"/{noun}", query)[noun]}
        for gone in before.keys() - found.keys():
            ended = before[gone]["status"] in FINAL
            found[gone] = before[gone] if ended else self._client.get(path_of(gone))
        self.items = in_order({id_: item for id_, item in found.items() if _is_shown(item)})
        self.needs = self._client.get("/needs", {"limit": 1})["rows"]
        return self.items

    def mark_seen(self, item: ActiveItem) -> None:
        """Let what has ended, and was looked at, stand behind what was not."""
        if item["status"] in FINAL and not item.get("seen_at"):
            with suppress(KapelleError):  # the list is right without it
                marked = self._client.post(f"/work/{item['id']}/mark", {"seen": True})
                item["seen_at"] = marked["seen_at"]
                self.items = in_order({one["id"]: one for one in self.items})

    def follow(self) -> None:
        """Keep it up to date in the background, until something goes wrong that has to be told."""
        threading.Thread(target=self._refresh, daemon=True).start()

    def _refresh(self) -> None:
        address = self._client.address
        while self.problem is None:
            time.sleep(_LOOK_S)
            # One that was stopped is started again by whoever stopped it; one that died, by us.
            died = address.url is None and address.home.socket.exists()
            self.is_away = not listens(address)
            try:
                if died or not self.is_away:
                    self.ask()
                    self.is_away = False
            except KapelleError:
                self.is_away = True
            except Exception as error:
                self.problem = error


def in_order(found: dict[str, ActiveItem]) -> list[ActiveItem]:
    """Return what is at work first, each behind its run; what has ended and was seen last."""

    def place(item: ActiveItem) -> tuple[int, str, str]:
        whole = found.get(item.get("run_id") or item.get("parent_id") or "", item)
        if FINAL & {item["status"], whole["status"]}:
            whole = item
        else:
            whole = whole
        is_seen = whole["status"] in FINAL and whole.get("seen_at")
        if is_seen:
            rank = len(_ORDER)
        else:
            rank = _ORDER.index(whole["status"])
        return rank, whole["id"], "" if whole is item else item["id"]

    return sorted(found.values(), key=place)


def _is_shown(item: ActiveItem) -> bool:
    if item["status"] not in FINAL:
        return True
    ended = moment(item["ended_at"]) or now()
    return not item.get("run_id") and (now() - ended).total_seconds() < _ENDED_S


def _cells(item: ActiveItem) -> list[str]:
    attempts = item.get("attempts", [])
    last = (attempts or [item])[-1]
    who = item.get("pattern") or "/".join(filter(None, [last["agent"], last["model"]]))
    used = [item.get("spent"), *(attempt["usage"] for attempt in attempts)]
    costs = [part["cost_usd"] for part in used if part and part["cost_usd"] is not None]
    if item.get("run_id") or item.get("parent_id"):
        inside = " "
    else:
        inside = ""
    age = between(item["created_at"], None)
    cost = dollars(sum(costs)) if costs else ""
    where = one_line(os.path.basename(repository_path(item)), 24)
    return [inside + item["id"][-5:], item["status"], age, one_line(who, 24), where, cost]


def _words(item: ActiveItem) -> list[str]:
    """The title, and what it is doing or that nobody verified it, if there is something to say."""
    if item.get("verified") is False:
        doubt = "not verified"
    else:
        doubt = None
    doing = ", ".join(filter(None, [doubt, doing_words(item)]))
    return [one_line(item["title"], 80), *filter(None, [one_line(doing, 300)])]


def page(
    items: list[ActiveItem], chosen: str, width: int, height: int, *, is_away: bool, needs: int = 0
) -> list[str]:
    """All lines of the screen: how many there are, the table around the chosen one, the keys."""
    counts = Counter(item["status"] for item in items)
    many = ", ".join(f"{counts[status]} {status}" for status in _ORDER if counts[status])
    if is_away:
        away = "the daemon is away; running agents go on · "
    else:
        away = ""
    if needs:
        needing = f" · {needs} need you"
    else:
        needing = ""
    head = fit(f"kapelle · {away}{many or 'nothing is at work'}{needing}", width)
    keys = [_keys(item) for item in items if item["id"] == chosen] or [{}]
    offered = [f"{key} {word}" for key, (word, _, _) in keys[0].items()]
    foot = "  ".join(["q quit", "? keys", *offered, "↑↓ choose"]).replace("\n", "⏎")
    (_, header), *rows = _rows(items, chosen, width)
    room = max(height - 3, 1)
    mine = next((number for number, (id, _) in enumerate(rows) if id == chosen), 0)
    first = max(min(mine - room // 2, len(rows) - room), 0)
    shown = [text for _, text in rows[first : first + room]]
    shown += [""] * (room - len(shown))
    return [paint(head, "bold"), header, *shown, paint(fit(foot, width), "dim")][:height]


def _rows(items: list[ActiveItem], chosen: str, width: int) -> Iterator[tuple[str, str]]:
    """Lines with the ids of their items; what one is doing stands beside its title if it fits."""
    sizes = list(_COLUMNS.values())
    while len(sizes) > 1 and width - sum(sizes) - len(sizes) < _LEAST:
        sizes.pop()
    room = max(width - sum(sizes) - len(sizes), 1)

    def row(cells: list[str], end: str, style: str | None) -> str:
        parts = [fit(cell, size).ljust(size) for cell, size in zip(cells, sizes, strict=False)]
        parts[1:2] = [paint(part, style) for part in parts[1:2]]
        return " ".join([*parts, fit(end, room)])

    yield "", paint(row([*_COLUMNS], "TITLE", None), "bold")
    for item in items:
        whole = " · ".join(words := _words(item))
        if columns_of(whole) > room:
            below = words[1:]
        else:
            below = []
        is_chosen = item["id"] == chosen
        style = STATUS_STYLE.get(item["status"])
        text = row(_cells(item), words[0] if below else whole, None if is_chosen else style)
        yield item["id"], f"\x1b[7m{text}\x1b[0m" if is_chosen else text
        yield from ((item["id"], paint(fit(f"    {doing}", width), "dim")) for doing in below)


def _keys(item: ActiveItem) -> dict[str, tuple[str, str, str]]:
    """What can be done with it, by key: the word, the command, and what is asked before."""
    is_ended = item["status"] in FINAL
    place = item["workspace"]
    keys = {"\n": ("look", "status", ""), "l": ("logs", "logs" if is_ended else "logs -f", "")}
    if item.get("questions") or item["question"]:
        keys["a"] = ("answer", "answer", "Your answer: ")
    if place["branch"]:
        keys["d"] = ("diff", "diff", "")
    has_work = place["commit"] and not place["owner"] and not item["merged_at"]
    if item["status"] == "completed" and has_work:
        keys["m"] = ("merge", "merge", "Merge it? [y/N] ")
    if not is_ended:
        keys["c"] = ("cancel", "cancel", "Cancel it? [y/N] ")
    elif not is_run(item["id"]):
        keys["r"] = ("retry", "retry", "Start it again? [y/N] ")
    return keys


def _act(word: str, command: str, asks: str, item: ActiveItem) -> None:
    """Do what a key stands for as the command does it, and let its words be read."""
    from kapelle.cli.main import guarded

    asked = item.get("questions") or [{}]
    if word == "answer":
        question: dict[str, Any] = asked[0]
    else:
        question = {}
    arguments = [*command.split(), str(question.get("token", item["id"]))]
    say(one_line(item["title"], 70))
    if question:
        for line in question_lines(question)[:-1]:
            say(line)
    with suppress(KeyboardInterrupt):
        if asks:
            typed = (read_line(asks) or "").strip()
        else:
            typed = "y"
        if not typed or (word != "answer" and typed.lower() not in {"y", "yes"}):
            return
        arguments += [typed] if word == "answer" else []
        say(f"$ kapelle {shlex.join(arguments)}")
        guarded(arguments)
        _await_key()


_BACK = frozenset({"\n", "q", " ", "\x1b"})
_HELP = """
  ↑ ↓ j k   choose a task or run
  ⏎         look at it; what has ended then stands last
  l         its logs
  a         answer its question
  d         its diff
  m         merge it
  c         cancel it
  r         start it again
  ^Z        suspend
  q         leave; everything goes on
"""


def _await_key() -> None:
    """Return when a key is pressed that goes back, or when the terminal is gone."""
    # Before the words, and without discarding what was typed already.
    tty.setcbreak(0, termios.TCSADRAIN)
    say("\nEnter, q or Esc goes back.")
    while typed := os.read(0, 64).decode("utf-8", "replace").replace("\r", "\n"):
        if _BACK & set(_TYPED.findall(typed)):
            return


def _show_keys() -> None:
    say(_HELP)
    _await_key()


class _Screen:
    """A terminal that shows the table, and is as it was before whenever this is left."""

    def __init__(self) -> None:
        self._saved = termios.tcgetattr(0)
        self._drawn: Any = None

    def __enter__(self) -> "_Screen":
        with suppress(termios.error):  # the terminal may be gone
            tty.setcbreak(0)
        self._drawn = None
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, termios.error):  # the terminal may be gone
            self._write(_LEAVE)
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Give the terminal to a command for a while."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def suspend(self, *_: Any) -> None:
        """What ^Z does to a command."""
        with self.left():
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self.suspend)

    def draw(self, items: list[ActiveItem], chosen: str, *, is_away: bool, needs: int) -> None:
        columns, height = os.get_terminal_size(1)
        size = columns or 80, height or 24
        shown = page(items, chosen, *size, is_away=is_away, needs=needs)
        if (size, shown) != self._drawn:
            self._write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in shown) + "\x1b[J")
            self._drawn = size, shown

    def typed(self) -> list[str]:
        """The keys that were pressed, after a moment none."""
        if not select.select([0], [], [], _REDRAW_S)[0]:
            return []
        text = os.read(0, 64).decode("utf-8", "replace").replace("\r", "\n")
        return _TYPED.findall(text) or ["q"]  # the end of input

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _watch(known: _WorkTable) -> None:
    screen = _Screen()
    signal.signal(signal.SIGTSTP, screen.suspend)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    known.follow()
    try:
        _look(known, screen)
    except (OSError, termios.error):
        # A window that was closed leaves nothing to show and nobody to tell.
        if os.isatty(0):
            raise


def _look(known: _WorkTable, screen: "_Screen") -> None:
    chosen = ""
    at = 0
    with screen:
        while known.problem is None:
            items = known.items
            ids = [item["id"] for item in items]
            # One that is gone leaves the choice to its neighbour.
            if chosen in ids:
                at = ids.index(chosen)
            else:
                at = max(min(at, len(ids) - 1), 0)
            chosen = ids[at] if ids else ""
            screen.draw(items, chosen, is_away=known.is_away, needs=known.needs)
            for typed in screen.typed():
                if typed == "q":
                    return
                if typed == "?":
                    with screen.left():
                        _show_keys()
                elif typed in _STEPS and ids:
                    at = max(min(at + _STEPS[typed], len(ids) - 1), 0)
                    chosen = ids[at]
                elif items and typed in (keys := _keys(items[at])):
                    with screen.left():
                        _act(*keys[typed], items[at])
                    if typed == "\n":
                        known.mark_seen(items[at])
    raise known.problem
