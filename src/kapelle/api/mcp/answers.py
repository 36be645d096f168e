"""Answers of limited length, because an agent pays for each character and clients refuse long ones.

Lists have short rows. A text or a list that is too long is cut. `cut` then names its field, with
the offset at which it continues: the same call with that `field` and `offset` gets the next part.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from kapelle.domain.errors import InvalidInput, NotFound

# The most characters of an answer as JSON. A cut answer is shorter, to have room for `cut`.
MOST = 20_000
_ROOM = 15_500
_PART = 15_000
_MAX_CUT = 20
# Longer paths are not in `cut`: they would cost more than they help.
_MAX_PATH = 120
# Outputs of commands: the end of these texts matters most.
_CUT_AT_BEGIN = frozenset({"log", "output"})
_MAX_EVENT = 4_000
# An item of a list is left out if there is less room for it.
_MIN_ITEM = 80

_REST = "Call the tool again with the same arguments and a field and offset of cut."
_REST_ELSEWHERE = "Get the rest by field and offset, with task_get, run_get or another get tool."

AnswerObject = dict[str, Any]


def fit_answer(answer: AnswerObject, *, is_repeatable: bool = True) -> AnswerObject:
    """Return an answer with its longest parts cut, if it is too long.

    `is_repeatable` is whether the same call may be made again for the rest.
    """
    if size_of(answer) <= MOST:
        return answer
    fitter = _Fitter()
    short_answer: AnswerObject = fitter.fit(answer, _ROOM, "")
    return {**short_answer, **fitter.describe_cuts(is_repeatable=is_repeatable)}


def read_part(answer: AnswerObject, field: str, offset: int) -> AnswerObject:
    """Return a part of a field, from an offset on: of a text, a list, or the JSON of an object."""
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
    result: AnswerObject = {"field": field, "text": part, "length": len(text)}
    if end < len(text):
        result["next_offset"] = end
    return result


def slice_list(answer: AnswerObject, name: str, limit: int, cursor: str | None) -> AnswerObject:
    """Return an answer with one page of its list, and the number of all items."""
    items = answer.get(name, [])
    if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
        raise InvalidInput(
            f"{cursor!r} is not a cursor of this list.", hint="Leave it out to get the first page."
        )
    start = int(cursor or 0)
    end = start + limit
    page = {**answer, name: items[start:end], "total": len(items)}
    if end < len(items):
        page["next_cursor"] = str(end)
    return page


def fit_events(
    events: list[tuple[str, AnswerObject]], cursor: str, limit: int | None
) -> AnswerObject:
    """Return the first events that fit, and the cursor after the last of them.

    The longest texts of an event are cut. `cursor` is returned if there is no event.
    """
    fitter = _Fitter()
    first_events: list[AnswerObject] = []
    room = _ROOM
    for index, (position, event) in enumerate(events[:limit]):
        short_event = fitter.fit(event, _MAX_EVENT, f"/events/{index}")
        room -= size_of(short_event) + 2
        if room < 0 and first_events:
            break
        first_events.append(short_event)
        cursor = position or cursor
    more = len(first_events) < len(events)
    return {"events": first_events, "cursor": cursor, "more": more, **fitter.describe_cuts()}


class _Fitter:
    """Cuts values to a size, and records the cuts."""

    def __init__(self) -> None:
        self._cuts: list[AnswerObject] = []

    def describe_cuts(self, *, is_repeatable: bool = True) -> AnswerObject:
        """Return the fields that list the cuts and say how to get the rest; none without a cut."""
        if not self._cuts:
            return {}
        cuts = [cut for cut in self._cuts if len(cut["field"]) <= _MAX_PATH]
        return {"cut": cuts[:_MAX_CUT], "rest": _REST if is_repeatable else _REST_ELSEWHERE}

    def fit(self, value: Any, room: int, path: str) -> Any:
        """Return a value, cut to at most `room` characters of JSON; `path` is that of its field."""
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
        if path.rpartition("/")[2] in _CUT_AT_BEGIN:
            self._record_cut(path, 0, len(text))
            return f"…{_cut_text(text[::-1], max(room - 1, 0))[::-1]}"
        beginning = _cut_text(text, max(room - 1, 0))
        self._record_cut(path, len(beginning), len(text))
        return f"{beginning}…"

    def _fit_list(self, items: list[Any], room: int, path: str) -> list[Any]:
        """Return the first items; of several, none may take more than a quarter of the room."""
        if len(items) == 1:
            max_item = room - 2
        else:
            max_item = max(room // 4, room // len(items) - 2)
        first_items: list[Any] = []
        remaining = room - 2
        for index, item in enumerate(items):
            size = min(size_of(item), max_item)
            if remaining < size + 2 and remaining < _MIN_ITEM:
                break
            short_item = self.fit(item, min(size, remaining - 2), f"{path}/{index}")
            first_items.append(short_item)
            remaining -= size_of(short_item) + 2
        if len(first_items) < len(items):
            self._record_cut(path, len(first_items), len(items))
        return first_items

    def _fit_object(self, fields: AnswerObject, room: int, path: str) -> AnswerObject:
        """Return all fields; small ones stay whole, large ones share the remaining room."""
        sizes = {name: size_of(value) for name, value in fields.items()}
        size_of_names = sum(size_of(name) + 4 for name in fields)
        remaining = room - size_of_names - 2
        if remaining < max(_MIN_ITEM, 4 * len(fields)):
            return self._take_first_fields(fields, room, path)
        shares: dict[str, int] = {}
        for name in sorted(sizes, key=sizes.__getitem__):
            fair_share = remaining // (len(sizes) - len(shares))
            shares[name] = min(sizes[name], fair_share)
            remaining -= shares[name]
        short_fields = {}
        for name, value in fields.items():
            short_fields[name] = self.fit(value, shares[name], f"{path}/{_escape_key(name)}")
        return short_fields

    def _take_first_fields(self, fields: AnswerObject, room: int, path: str) -> AnswerObject:
        """Return the first fields that fit; the whole object can be read as text."""
        first_fields: AnswerObject = {}
        for name, value in fields.items():
            room -= size_of({name: value}) + 2
            if room < 0:
                break
            first_fields[name] = value
        self._record_cut(path, 0, size_of(fields))
        return first_fields

    def _record_cut(self, path: str, offset: int, length: int) -> None:
        self._cuts.append({"field": path, "offset": offset, "length": length})


def size_of(value: Any) -> int:
    """Return the number of characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


def _cut_text(text: str, room: int) -> str:
    """Return the longest beginning of a text with at most `room` characters as JSON."""
    beginning = text[:room]
    while beginning and size_of(beginning) > room:
        # JSON has six characters for a control character, two for a line break.
        length = len(beginning) * room // size_of(beginning)
        beginning = beginning[: min(len(beginning) - 1, length)]
    return beginning


def _read_items(items: list[Any], field: str, offset: int) -> AnswerObject:
    _require_inside(field, offset, len(items))
    fitter = _Fitter()
    part: list[Any] = []
    room = _PART
    for index, item in enumerate(items[offset:], offset):
        short_item = fitter.fit(item, _MAX_EVENT, f"{field}/{index}")
        room -= size_of(short_item) + 2
        if room < 0 and part:
            break
        part.append(short_item)
    end = offset + len(part)
    result: AnswerObject = {"field": field, "items": part, "length": len(items)}
    if end < len(items):
        result["next_offset"] = end
    return {**result, **fitter.describe_cuts()}


def _require_inside(field: str, offset: int, length: int) -> None:
    if not 0 <= offset <= length:
        raise InvalidInput(f"offset must be 0 to {length}, the length of {field}, not {offset}.")


def _find_field(answer: AnswerObject, field: str) -> Any:
    """Return the value at a path such as /attempts/0/reason (RFC 6901)."""
    value: Any = answer
    for name in field.removeprefix("/").split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            paths = ", ".join(f"/{_escape_key(name)}" for name in list(answer)[:40])
            raise NotFound(f"The answer has no field {field!r}.", hint=f"It has {paths}.")
    return value


def _escape_key(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# Rows of lists.


def shorten_rows(tool: str, answer: AnswerObject, now: datetime | None = None) -> AnswerObject:
    """Return the answer of a list with each item as a short row."""
    if tool not in _ROWS:
        return answer
    name, shorten = _ROWS[tool]
    moment = now or datetime.now(UTC)
    short_answer: AnswerObject = {name: [shorten(item, moment) for item in answer.get(name, [])]}
    for key in ("next_cursor", "total"):
        if key in answer:
            short_answer[key] = answer[key]
    return short_answer


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
    """Return the beginning of a text with at most `most` bytes."""
    if text is None or len(text.encode()) <= most:
        return text
    return text.encode()[: most - 3].decode(errors="ignore") + "…"


def _format_age(moment: str, now: datetime) -> str:
    """Return how long ago a moment was, in one unit."""
    seconds = max((now - datetime.fromisoformat(moment)).total_seconds(), 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _end_of_path(path: str, most: int) -> str:
    """Return the end of a path with at most `most` bytes."""
    data = path.encode()
    if len(data) <= most:
        return path
    return "…" + data[3 - most :].decode(errors="ignore")


_ROWS: dict[str, tuple[str, Callable[[Mapping[str, Any], datetime], AnswerObject]]] = {
    "task_list": ("tasks", _shorten_work),
    "run_list": ("runs", _shorten_work),
    "schedule_list": ("schedules", _shorten_schedule),
    "pattern_list": ("items", _shorten_pattern),
    "agent_list": ("items", _shorten_agent),
}
