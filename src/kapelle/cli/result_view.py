"""The result of a run: tables of its lists of objects, or else its JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from kapelle.cli.layout import check_mark, format_table, paint
from kapelle.cli.progress import describe_verdict, format_fact
from kapelle.cli.text import (
    cell_width,
    clean,
    cut_text,
    last_lines,
    one_line,
    shorten_ids_on_terminal,
)

if TYPE_CHECKING:
    from kapelle.client.records import RunJson

ResultItem: TypeAlias = Mapping[str, object]
"""An object in the result of a pattern, such as an iteration, a candidate or a phase."""

_VERDICT_STYLES = {"pass": "green", "keep": "green", "fail": "red", "discard": "dim"}
_NUMBER_COLUMNS = frozenset({"number", "iteration"})
# These columns stand last, take the room that is left, and are cut at the terminal's edge.
_LONG_COLUMNS = ("problem", "reason")
_GOOD_STATUSES = frozenset({"merged", "completed", "passed"})
_JSON_LINES = 15
_JSON_WIDTH = 300
_TEXT_LINES = 6
_INDENT = 4


def result_lines(run: "RunJson", iterations: Sequence[ResultItem]) -> Iterator[str]:
    """Yield the result of a run; if it has none yet, its iterations that have ended by now."""
    result = run["result"]
    if result is None:
        ended = [iteration for iteration in iterations if iteration.get("verdict")]
        if ended:
            yield from item_table("iterations", ended, None)
    elif isinstance(result, dict) and any(is_item_list(value) for value in result.values()):
        best_number = _best_number(result)
        for name, value in result.items():
            if is_item_list(value):
                yield from item_table(name, value, best_number)
            elif isinstance(value, list) and value and isinstance(value[0], str):
                yield paint(f"  {_format_name(name)}", "dim")
                for text in value:
                    yield f"    - {one_line(text, 200)}"
    else:
        yield from _json_lines(result, run["id"])


def is_item_list(value: object) -> TypeGuard[list[ResultItem]]:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _best_number(result: ResultItem) -> object:
    """Return the number of the object that the pattern has chosen, if it chooses one."""
    best = result.get("best")
    if isinstance(best, dict):
        return best.get("number")
    return result.get("winner")


def _json_lines(result: object, run_id: str) -> Iterator[str]:
    """Yield the beginning of a result as JSON."""
    lines = clean(json.dumps(result, indent=2, ensure_ascii=False)).split("\n")
    yield paint("  result", "dim")
    for line in lines[:_JSON_LINES]:
        yield f"    {cut_text(line, _JSON_WIDTH)}"
    is_cut = len(lines) > _JSON_LINES or any(cell_width(line) > _JSON_WIDTH for line in lines)
    if is_cut:
        whole = f"    … all of it: kapelle runs result {run_id}"
        yield paint(shorten_ids_on_terminal(whole), "dim")


def item_table(name: str, items: Sequence[ResultItem], best_number: object) -> Iterator[str]:
    """Yield a table of objects; values that do not fit into a cell stand below their row."""
    columns = _columns(items)
    extra_lines = [_lines_below(item) for item in items]
    if not set(columns) - {"number", "name"} and not any(extra_lines):
        return  # the tasks below tell all of it
    header = [_column_title(column) for column in columns]
    rows = [[_cell(column, item, best_number) for column in columns] for item in items]
    if not columns or columns[-1] not in _LONG_COLUMNS:
        # The last column is cut at the terminal's edge: let that be an empty one.
        header.append("")
        for row in rows:
            row.append("")
    styles = [_style(item, best_number) for item in items]
    lines = format_table(header, rows, styles, _INDENT)
    yield paint(f"  {_format_name(name)}", "dim")
    yield lines[0]
    for line, extra in zip(lines[1:], extra_lines, strict=True):
        yield line
        for text in extra:
            yield f"      {text}"
    if best_number is not None and any(item.get("number") == best_number for item in items):
        yield paint("    * the best", "dim")


def _columns(items: Sequence[ResultItem]) -> list[str]:
    """Return the names of the values that fit into cells: numbers first, long texts last."""
    names: dict[str, None] = {}
    for item in items:
        names.update(dict.fromkeys(item))
    columns = [name for name in names if _is_column(name, [item.get(name) for item in items])]
    columns.sort(key=lambda name: (name not in _NUMBER_COLUMNS, name in _LONG_COLUMNS))
    return columns


def _is_column(name: str, values: Sequence[object]) -> bool:
    """Tell whether a value is worth a column, and none is a text of several lines."""
    texts = [value.strip() for value in values if isinstance(value, str)]
    if name not in _LONG_COLUMNS and any("\n" in text for text in texts):
        return False
    return any(texts) or any(isinstance(value, int | float) for value in values)


def _column_title(name: str) -> str:
    if name in _NUMBER_COLUMNS:
        return "#"
    return _format_name(name).upper()


def _cell(name: str, item: ResultItem, best_number: object) -> str:
    value = item.get(name)
    if name in _NUMBER_COLUMNS:
        if best_number is not None and value == best_number:
            return f"{value}*"
        return str(value)
    if value is None or value == "":
        return "" if name in _LONG_COLUMNS else "-"
    if name in _LONG_COLUMNS:
        return one_line(format_fact(value))
    if name == "commit":
        return str(value)[:10]
    if name == "verdict":
        return one_line(describe_verdict(str(value)), 60)
    return one_line(format_fact(value), 60)


def _style(item: ResultItem, best_number: object) -> str | None:
    if "verdict" in item:
        return _VERDICT_STYLES.get(str(item["verdict"]))
    if item.get("problem"):
        return "red"
    if best_number is not None and item.get("number") == best_number:
        return "green"
    return None


def _lines_below(item: ResultItem) -> list[str]:
    """Return the values of an object that are not plain: its parts, checks, judgements, texts."""
    lines: list[str] = []
    for name, value in item.items():
        if is_item_list(value):
            lines += _list_lines(name, value)
        elif isinstance(value, dict):
            lines += _judgement_lines(name, value)
        elif isinstance(value, str) and "\n" in value.strip() and name not in _LONG_COLUMNS:
            lines += [paint(f"{_format_name(name)}:", "dim"), *last_lines(value, _TEXT_LINES)]
    return lines


def _list_lines(name: str, items: Sequence[ResultItem]) -> list[str]:
    if "passed" in items[0]:
        passed = [item for item in items if item["passed"]]
        return [f"{len(passed)} of {len(items)} {_format_name(name)} passed"]
    if "status" in items[0]:
        return [_part_line(item) for item in items]
    return []


def _judgement_lines(name: str, judgement: ResultItem) -> list[str]:
    """Return an object of yes and no as a verdict."""
    # An object with a status is a task or a run, which has a line of its own below.
    is_judgement = any(isinstance(value, bool) for value in judgement.values())
    if "status" in judgement or not is_judgement:
        return []
    denied = [_format_name(question) for question, value in judgement.items() if value is False]
    if not denied:
        return [f"{_format_name(name)}: approved"]
    verdict = f"no to {', '.join(denied)}"
    if judgement.get("feedback"):
        verdict += f": {one_line(str(judgement['feedback']), 200)}"
    return [f"{_format_name(name)}: {verdict}"]


def _part_line(part: ResultItem) -> str:
    is_good = part["status"] in _GOOD_STATUSES
    line = (
        f"{check_mark(is_good)} {one_line(str(part.get('title') or part.get('name') or ''), 100)}"
    )
    if not is_good:
        line += f" ({part['status']})"
    if part.get("reason"):
        line += f": {one_line(str(part['reason']), 200)}"
    return line


def _format_name(name: str) -> str:
    return one_line(name.replace("_", " "), 40)
