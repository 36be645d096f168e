"""Lists of work as Markdown or CSV: what `kapelle batches` keeps, and what people write."""

import csv
import difflib
import io
import json
import re
from collections.abc import Iterable
from typing import Any, Literal

from kapelle.domain.errors import InvalidInput

Format = Literal["markdown", "csv"]
BatchItem = dict[str, Any]
NAME = r"^\w[\w .-]{0,99}$"  # of a list

# The fields of an item as they are called in a list, where several checks stand in several lines.
_FIELDS = (
    "title", "agent", "model", "directory", "priority", "check", "timeout_s", "max_attempts",
    "pattern", "options",
)  # fmt: skip
_COLUMNS = ("prompt", *_FIELDS)
_ITEM = re.compile(r"[-*+] +(?:\[[ xX]\] +)?(.*)|\d+[.)] +(.*)")
_FIELD = re.compile(rf"\s+[-*+] +({'|'.join(_FIELDS)}): *(.*)")
_NESTED = re.compile(r"\s+[-*+] +(\w+):")
# A line of a prompt that looks like a field, or like one misspelt, is written behind a backslash.
_ESCAPED = re.compile(r"^(\s*)\\(?=\\*[-*+] +\w+:)")
_UNESCAPED = re.compile(r"^(\s*)(?=\\*[-*+] +\w+:)")
_HINT = "Begin each item with `- `; `  - agent: NAME` under it says who does it."


def read_items(text: str, kind: Format) -> list[BatchItem]:
    """The items of a list; raises InvalidInput that names the line."""
    if kind == "csv":
        items = _from_csv(text)
    else:
        items = _from_markdown(text)
    if not items:
        raise InvalidInput("There are no items in this list.", hint=_HINT)
    return items


def list_unknown_fields(text: str) -> list[str]:
    """The words that stand in a list in Markdown as fields do, are none, and so belong to prompts;
    those behind a backslash are meant so."""
    said = [_NESTED.match(line) for line in text.splitlines()]
    return list(dict.fromkeys(one[1] for one in said if one and one[1] not in _FIELDS))


def detect_format(name: str) -> Format:
    """What a file of this name holds."""
    if name.lower().endswith(".csv"):
        return "csv"
    return "markdown"


def _from_markdown(text: str) -> list[BatchItem]:
    items: list[BatchItem] = []
    for number, line in enumerate(text.splitlines(), 1):
        if begun := _ITEM.fullmatch(line):
            items.append({"prompt": (begun[1] or begun[2] or "").strip()})
        elif line.startswith((" ", "\t")) and items:
            if field := _FIELD.fullmatch(line):
                _put(items[-1], field[1], field[2].strip(), f"line {number}")
            else:
                _refuse_typo(line, number)
                said = _ESCAPED.sub(r"\1", line.removeprefix("  "))
                items[-1]["prompt"] += "\n" + said.rstrip()
        elif not line.strip():
            if items:
                items[-1]["prompt"] += "\n"
        elif not line.startswith("#") and items:
            problem = f"line {number}: {line.strip()[:60]!r} belongs to no item."
            raise InvalidInput(problem, hint="Indent what goes on by two spaces. " + _HINT)
    return [{**item, "prompt": item["prompt"].strip()} for item in items]


def _refuse_typo(line: str, number: int) -> None:
    """A nested item whose word is almost a field is no part of the prompt."""
    said = _NESTED.match(line)
    if said and (near := difflib.get_close_matches(said[1], _FIELDS, 1, 0.75)):
        problem = f"line {number}: {said[1]!r} is no field; did you mean {near[0]}?"
        raise InvalidInput(problem, hint="In a prompt, put a backslash before its dash.")


def _from_csv(text: str) -> list[BatchItem]:
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    items: list[BatchItem] = []
    try:
        names = [name.strip().lower() for name in next(rows, [])]
        if unknown := [name for name in names if name not in _COLUMNS] or "prompt" not in names:
            if isinstance(unknown, list):
                told = f"{unknown[0]!r} is no column"
            else:
                told = "there is none"
            raise InvalidInput(
                f"line 1 names the columns, prompt among them: {told}.",
                hint=f"Use {', '.join(_COLUMNS)}.",
            )
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            values = dict(zip(names, row, strict=False))
            item: BatchItem = {"prompt": values.pop("prompt", "").strip()}
            for name, value in values.items():
                for part in value.splitlines() if name == "check" else [value]:
                    if part.strip():
                        _put(item, name, part.strip(), f"line {rows.line_num}")
            items.append(item)
    except csv.Error as error:
        raise InvalidInput(f"line {rows.line_num}: this is not CSV: {error}.") from None
    return items


def _put(item: BatchItem, name: str, value: str, place: str) -> None:
    if name == "check":
        item.setdefault("checks", []).append(value)
    elif name == "options":
        try:
            item[name] = json.loads(value)
        except ValueError:
            hint = 'Write it like {"count": 3}.'
            raise InvalidInput(f"{place}: options is no JSON object.", hint=hint) from None
    else:
        item[name] = value


def format_markdown(items: Iterable[BatchItem]) -> str:
    """The list for people; read again, it says the same."""
    lines: list[str] = []
    for item in items:
        first, *others = item["prompt"].splitlines()
        others = [_UNESCAPED.sub(r"\1\\", line) for line in others]
        lines += [f"- {first}", *(f"  {line}" if line.strip() else "" for line in others)]
        for name, value in _cells(item):
            lines += [f"  - {name}: {' '.join(part.splitlines())}" for part in value]
    return "\n".join(lines) + "\n"


def format_csv(items: Iterable[BatchItem]) -> str:
    """The list for spreadsheets, with a column for whatever an item says."""
    told = [
        {"prompt": item["prompt"], **{name: "\n".join(value) for name, value in _cells(item)}}
        for item in items
    ]
    names = [name for name in _COLUMNS if any(name in row for row in told)]
    written = io.StringIO()
    writer = csv.DictWriter(written, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(told)
    return written.getvalue()


def _cells(item: BatchItem) -> Iterable[tuple[str, list[str]]]:
    for name in _FIELDS:
        if (value := item.get("checks" if name == "check" else name)) in (None, [], {}):
            continue
        if name == "check":
            told = [
                one if isinstance(one, str) else one.get("command") or one["kind"] for one in value
            ]
            yield name, list(map(str, told))
        else:
            yield name, [json.dumps(value) if name == "options" else str(value)]
