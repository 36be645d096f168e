"""Answers that fit: an agent pays for every character, and clients refuse long answers.

Lists are short rows. A text or a list that is too long is cut, and `cut` names its field with the
offset at which it goes on: the same call with that `field` and `offset` gives the next part.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from kapelle.domain.errors import InvalidInput, NotFound

# The most characters of an answer as JSON; what is cut is named in the difference to the first.
MOST = 20_000
_ROOM = 15_500
_PART = 15_000
_MOST_CUT = 20
# A longer path of a field is not named: it would cost more than it helps.
_LONGEST_PATH = 120
# Texts whose end matters most: what a command printed.
_ENDS = frozenset({"log", "output"})
# Of one event of a log, and the least room that is worth an item of a list.
_MOST_OF_EVENT = 4_000
_LEAST = 80

_REST = "Call the tool again with the same arguments and a field and offset of cut."
_REST_ELSEWHERE = "task_get, run_get and the other tools that read give it by field and offset."

AnswerObject = dict[str, Any]


def fit_answer(answer: AnswerObject, *, is_repeatable: bool = True) -> AnswerObject:
    """The answer, with its longest parts cut if it is too long; `cut` says where each goes on."""
    if size_of(answer) <= MOST:
        return answer
    fitter = _Fitter()
    fitted: AnswerObject = fitter.fit(answer, _ROOM, "")
    return {**fitted, **fitter.about(is_repeatable=is_repeatable)}


def read_part(answer: AnswerObject, field: str, offset: int) -> AnswerObject:
    """A part of one field of an answer, from an offset on: of a text, of a list, or of the JSON of
    an object."""
    value = _find_field(answer, field)
    if isinstance(value, list):
        return _read_items(value, field, offset)
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False)
    _require_inside(field, offset, len(text))
    part = _cut_text(text[offset:], _PART)
    end = offset + len(part)
    if end < len(text):
        more = {"next_offset": end}
    else:
        more = {}
    return {"field": field, "text": part, "length": len(text), **more}


def slice_list(answer: AnswerObject, name: str, limit: int, cursor: str | None) -> AnswerObject:
    """One page of a list that its route answers as a whole, with the number of all items."""
    items = answer.get(name, [])
    if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
        raise InvalidInput(f"cursor {cursor!r} is not one of this list; leave it out to begin.")
    start = int(cursor or 0)
    if start + limit < len(items):
        more = {"next_cursor": str(start + limit)}
    else:
        more = {}
    return {**answer, name: items[start : start + limit], "total": len(items), **more}


def fit_events(
    events: list[tuple[str, AnswerObject]], cursor: str, limit: int | None
) -> AnswerObject:
    """As many events as fit, each with its longest texts cut, and the cursor behind the last."""
    fitter = _Fitter()
    shown = list[AnswerObject]()
    room = _ROOM
    for index, (position, event) in enumerate(events[:limit]):
        fitted = fitter.fit(event, _MOST_OF_EVENT, f"/events/{index}")
        room -= size_of(fitted) + 2
        if room < 0 and shown:
            break
        shown.append(fitted)
        cursor = position or cursor
    more = len(shown) < len(events)
    return {"events": shown, "cursor": cursor, "more": more, **fitter.about()}


class _Fitter:
    """Cuts values to a size, and notes what it cut."""

    def __init__(self) -> None:
        self._cut: list[AnswerObject] = []

    def about(self, *, is_repeatable: bool = True) -> AnswerObject:
        """What was cut, and how to get the rest; nothing if nothing was."""
        if not self._cut:
            return {}
        named = [one for one in self._cut if len(one["field"]) <= _LONGEST_PATH]
        return {"cut": named[:_MOST_CUT], "rest": _REST if is_repeatable else _REST_ELSEWHERE}

    def fit(self, value: Any, room: int, path: str) -> Any:
        """The value in at most so many characters of JSON."""
        if size_of(value) <= room:
            return value
        if isinstance(value, list):
            return self._fit_list(value, room, path)
        if isinstance(value, dict):
            return self._fit_object(value, room, path)
        if isinstance(value, str):
            text = value
        else:
            text = json.dumps(value)
        if path.rpartition("/")[2] in _ENDS:
            self._note(path, 0, len(text))
            return f"…{_cut_text(text[::-1], max(room - 1, 0))[::-1]}"
        shown = _cut_text(text, max(room - 1, 0))
        self._note(path, len(shown), len(text))
        return f"{shown}…"

    def _fit_list(self, items: list[Any], room: int, path: str) -> list[Any]:
        """The first items, none of which may take more than a quarter, if there are several."""
        if len(items) == 1:
            most = room - 2
        else:
            most = max(room // 4, room // len(items) - 2)
        shown: list[Any] = []
        left = room - 2
        for index, item in enumerate(items):
            size = min(size_of(item), most)
            if left < size + 2 and left < _LEAST:
                break
            shown.append(self.fit(item, min(size, left - 2), f"{path}/{index}"))
            left -= size_of(shown[-1]) + 2
        if len(shown) < len(items):
            self._note(path, len(shown), len(items))
        return shown

    def _fit_object(self, fields: AnswerObject, room: int, path: str) -> AnswerObject:
        """Every field, the small ones whole: what they leave is shared by the large ones."""
        sizes = {name: size_of(value) for name, value in fields.items()}
        keys = sum(size_of(name) + 4 for name in fields)
        left = room - keys - 2
        if left < max(_LEAST, 4 * len(fields)):
            return self._first_fields(fields, room, path)
        shares: dict[str, int] = {}
        for name in sorted(sizes, key=sizes.__getitem__):
            shares[name] = min(sizes[name], left // (len(sizes) - len(shares)))
            left -= shares[name]
        return {
            name: self.fit(value, shares[name], f"{path}/{_escape_key(name)}")
            for name, value in fields.items()
        }

    def _first_fields(self, fields: AnswerObject, room: int, path: str) -> AnswerObject:
        """As many fields as there is room for; the whole object can be read as text."""
        shown: AnswerObject = {}
        for name, value in fields.items():
            room -= size_of({name: value}) + 2
            if room < 0:
                break
            shown[name] = value
        self._note(path, 0, len(json.dumps(fields, ensure_ascii=False)))
        return shown

    def _note(self, path: str, offset: int, length: int) -> None:
        self._cut.append({"field": path, "offset": offset, "length": length})


def size_of(value: Any) -> int:
    """The characters of a value as JSON, as answers are written."""
    return len(json.dumps(value, ensure_ascii=False))


def _cut_text(text: str, room: int) -> str:
    """The longest beginning of a text that takes at most so many characters as JSON."""
    shown = text[:room]
    while shown and size_of(shown) > room:
        # A control character takes six, a line break two.
        shown = shown[: min(len(shown) - 1, len(shown) * room // size_of(shown))]
    return shown


def _read_items(items: list[Any], field: str, offset: int) -> AnswerObject:
    _require_inside(field, offset, len(items))
    fitter = _Fitter()
    shown = list[Any]()
    left = _PART
    for index, item in enumerate(items[offset:], offset):
        fitted = fitter.fit(item, _MOST_OF_EVENT, f"{field}/{index}")
        left -= size_of(fitted) + 2
        if left < 0 and shown:
            break
        shown.append(fitted)
    end = offset + len(shown)
    if end < len(items):
        more = {"next_offset": end}
    else:
        more = {}
    return {"field": field, "items": shown, "length": len(items), **more, **fitter.about()}


def _require_inside(field: str, offset: int, length: int) -> None:
    if not 0 <= offset <= length:
        raise InvalidInput(f"offset must be 0 to {length}, the length of {field}, not {offset}.")


def _find_field(answer: AnswerObject, field: str) -> Any:
    """The value at a path such as /attempts/0/reason (RFC 6901)."""
    value: Any = answer
    for name in field.removeprefix("/").split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            known = ", ".join(f"/{_escape_key(one)}" for one in list(answer)[:40])
            raise NotFound(f"The answer has no field {field!r}.", hint=f"It has {known}.")
    return value


def _escape_key(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# Rows of lists.


def shorten_rows(tool: str, answer: AnswerObject, now: datetime | None = None) -> AnswerObject:
    """The answer of a list with each item as a short row."""
    if tool not in _ROWS:
        return answer
    name, shorten = _ROWS[tool]
    moment = now or datetime.now(UTC)
    rows = [shorten(item, moment) for item in answer.get(name, [])]
    kept = {key: value for key, value in answer.items() if key in {name, "next_cursor", "total"}}
    return {**kept, name: rows}


def _shorten_work(work: Mapping[str, Any], now: datetime) -> AnswerObject:
    return _drop_empty({
        "id": work["id"],
        "title": _shorten_text(work["title"], 45),
        "status": work["status"],
        "reason": _shorten_text(work.get("reason"), 45),
        "pattern": _shorten_text(work.get("pattern"), 12),
        "agent": _shorten_text(work.get("agent") or work.get("spec", {}).get("agent"), 15),
        "age": _format_age(work["created_at"], now),
        "repository": _end_of_path(work["directory"], 30),
    })  # fmt: skip


def _shorten_schedule(schedule: Mapping[str, Any], now: datetime) -> AnswerObject:
    return _drop_empty({
        "id": schedule["id"],
        "title": _shorten_text(schedule["title"], 45),
        "status": schedule["status"],
        "reason": _shorten_text(schedule.get("reason"), 30),
        "kind": _shorten_text(schedule["kind"], 12),
        "next_at": schedule.get("next_at"),
        "age": _format_age(schedule["created_at"], now),
        "repository": _end_of_path(schedule["directory"], 30),
    })  # fmt: skip


def _shorten_pattern(pattern: Mapping[str, Any], _now: datetime) -> AnswerObject:
    return _drop_empty({
        "name": _shorten_text(pattern["name"], 64),
        "summary": _shorten_text(pattern["summary"], 150),
        "origin": _end_of_path(pattern.get("origin") or "", 40),
    })  # fmt: skip


def _shorten_agent(agent: Mapping[str, Any], _now: datetime) -> AnswerObject:
    return _drop_empty({
        "name": _shorten_text(agent["name"], 30),
        "status": _shorten_text(agent["status"], 40),
        "default": agent.get("default"),
        "model": _shorten_text(agent.get("model"), 30),
        "problem": _shorten_text(agent.get("problem"), 60),
        "paused_until": agent.get("paused_until"),
    })  # fmt: skip


def _drop_empty(row: AnswerObject) -> AnswerObject:
    return {name: value for name, value in row.items() if value}


def _shorten_text(text: str | None, most: int) -> str | None:
    """The beginning of a text in at most so many bytes."""
    if text is None or len(text.encode()) <= most:
        return text
    return text.encode()[: most - 3].decode(errors="ignore") + "…"


def _format_age(moment: str, now: datetime) -> str:
    """How long ago something was, in one unit."""
    seconds = max((now - datetime.fromisoformat(moment)).total_seconds(), 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _end_of_path(path: str, longest: int) -> str:
    """The end of a path, which tells more than its beginning."""
    data = path.encode()
    if len(data) <= longest:
        return path
    return "…" + data[3 - longest :].decode(errors="ignore")


_ROWS: dict[str, tuple[str, Callable[[Mapping[str, Any], datetime], AnswerObject]]] = {
    "task_list": ("tasks", _shorten_work),
    "run_list": ("runs", _shorten_work),
    "schedule_list": ("schedules", _shorten_schedule),
    "pattern_list": ("items", _shorten_pattern),
    "agent_list": ("items", _shorten_agent),
}
