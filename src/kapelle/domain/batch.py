"""Lists of independent items in Markdown or CSV, as `kapelle batches` stores them."""

import csv
import difflib
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from kapelle.domain.errors import InvalidInput

Format = Literal["markdown", "csv"]
BatchItem = dict[str, Any]
NAME = r"^\w[\w .-]{0,99}$"  # the names of lists

# The fields of an item by their names in a list. Several checks take several lines.
_FIELDS = (
    "title", "agent", "model", "directory", "priority", "check", "timeout_s", "max_attempts",
    "pattern", "options",
)  # fmt: skip
_COLUMNS = ("prompt", *_FIELDS)
_ITEM = re.compile(r"[-*+] +(?:\[[ xX]\] +)?(.*)|\d+[.)] +(.*)")
_FIELD = re.compile(rf"\s+[-*+] +({'|'.join(_FIELDS)}): *(.*)")
_NESTED = re.compile(r"\s+[-*+] +(\w+):")
# A line of a prompt that looks like a field, even a misspelled one, starts with a backslash.
_ESCAPED = re.compile(r"^(\s*)\\(?=\\*[-*+] +\w+:)")
_UNESCAPED = re.compile(r"^(\s*)(?=\\*[-*+] +\w+:)")
_HINT = "Start each item with `- `; the line `  - agent: NAME` below it selects its agent."


def read_items(text: str, kind: Format) -> list[BatchItem]:
    """Return the items of a list; raise InvalidInput with the line of the first mistake."""
    if kind == "csv":
        items = _from_csv(text)
    else:
        items = _from_markdown(text)
    if not items:
        raise InvalidInput("This list has no items.", hint=_HINT)
    return items


def list_unknown_fields(text: str) -> list[str]:
    """Return the words of a Markdown list that look like fields, but belong to prompts.

    A front end can warn about them. Lines that start with a backslash are prompts on purpose.
    """
    words: dict[str, None] = {}
    for line in text.splitlines():
        match = _NESTED.match(line)
        if match and match[1] not in _FIELDS:
            words[match[1]] = None
    return list(words)


def detect_format(name: str) -> Format:
    """Return the format of a file by its name."""
    if name.lower().endswith(".csv"):
        return "csv"
    return "markdown"


def _from_markdown(text: str) -> list[BatchItem]:
    items: list[BatchItem] = []
    for number, line in enumerate(text.splitlines(), 1):
        if item := _ITEM.fullmatch(line):
            items.append({"prompt": (item[1] or item[2] or "").strip()})
        elif line.startswith((" ", "\t")) and items:
            if field := _FIELD.fullmatch(line):
                _set_field(items[-1], field[1], field[2].strip(), f"line {number}")
            else:
                _refuse_typo(line, number)
                continuation = _ESCAPED.sub(r"\1", line.removeprefix("  "))
                items[-1]["prompt"] += "\n" + continuation.rstrip()
        elif not line.strip():
            if items:
                items[-1]["prompt"] += "\n"
        elif not line.startswith("#") and items:
            problem = f"line {number}: {line.strip()[:60]!r} belongs to no item."
            raise InvalidInput(problem, hint="Indent continuation lines by two spaces. " + _HINT)
    return [{**item, "prompt": item["prompt"].strip()} for item in items]


def _refuse_typo(line: str, number: int) -> None:
    """Raise InvalidInput if a line has a nested item whose word is almost a field."""
    match = _NESTED.match(line)
    if match and (near := difflib.get_close_matches(match[1], _FIELDS, 1, 0.75)):
        problem = f"line {number}: {match[1]!r} is not a field; did you mean {near[0]}?"
        raise InvalidInput(problem, hint="In a prompt, put a backslash before its dash.")


def _from_csv(text: str) -> list[BatchItem]:
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    items: list[BatchItem] = []
    try:
        names = [name.strip().lower() for name in next(rows, [])]
        _require_columns(names)
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            values = dict(zip(names, row, strict=False))
            item: BatchItem = {"prompt": values.pop("prompt", "").strip()}
            for name, value in values.items():
                # A cell holds several checks in several lines.
                parts = value.splitlines() if name == "check" else [value]
                for part in parts:
                    if part.strip():
                        _set_field(item, name, part.strip(), f"line {rows.line_num}")
            items.append(item)
    except csv.Error as error:
        raise InvalidInput(f"line {rows.line_num}: this is not CSV: {error}.") from None
    return items


def _require_columns(names: list[str]) -> None:
    unknown = [name for name in names if name not in _COLUMNS]
    hint = f"Use {', '.join(_COLUMNS)}."
    if unknown:
        raise InvalidInput(f"line 1: {unknown[0]!r} is not a column.", hint=hint)
    if "prompt" not in names:
        raise InvalidInput("line 1: the column prompt is missing.", hint=hint)


def _set_field(item: BatchItem, name: str, value: str, place: str) -> None:
    if name == "check":
        item.setdefault("checks", []).append(value)
    elif name == "options":
        try:
            item[name] = json.loads(value)
        except ValueError:
            hint = 'Write, for example, {"count": 3}.'
            raise InvalidInput(f"{place}: options is not JSON.", hint=hint) from None
    else:
        item[name] = value


def format_markdown(items: Iterable[BatchItem]) -> str:
    """Return a list in Markdown; `read_items` reads the same items from it."""
    lines: list[str] = []
    for item in items:
        first, *others = item["prompt"].splitlines()
        others = [_UNESCAPED.sub(r"\1\\", line) for line in others]
        lines += [f"- {first}", *(f"  {line}" if line.strip() else "" for line in others)]
        for name, value in _cells(item):
            lines += [f"  - {name}: {' '.join(part.splitlines())}" for part in value]
    return "\n".join(lines) + "\n"


def format_csv(items: Iterable[BatchItem]) -> str:
    """Return a list in CSV, with a column for each field that an item has."""
    rows = []
    for item in items:
        row = {"prompt": item["prompt"]}
        for name, lines in _cells(item):
            row[name] = "\n".join(lines)
        rows.append(row)
    names = [name for name in _COLUMNS if any(name in row for row in rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cells(item: BatchItem) -> Iterator[tuple[str, list[str]]]:
    """Yield the fields of an item, each with its lines."""
    for name in _FIELDS:
        value = item.get("checks" if name == "check" else name)
        if value in (None, [], {}):
            continue
        if name == "check":
            yield name, [_format_check(check) for check in value]
        elif name == "options":
            yield name, [json.dumps(value)]
        else:
            yield name, [str(value)]


def _format_check(check: Any) -> str:
    if isinstance(check, str):
        return check
    return str(check.get("command") or check["kind"])
