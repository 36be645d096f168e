"""Draws a flow as nested boxes, from top to bottom."""

from dataclasses import dataclass

from kapelle.patterns.picture.flow import (
    OTHERWISE,
    Block,
    Body,
    Choice,
    Kind,
    Loop,
    Node,
    Step,
    Together,
)
from kapelle.patterns.picture.lettering import Style, lines_of, width_of, written

INK, MUTED, LINE, PAPER = "#1f2530", "#566072", "#8b95a5", "#fbfbf9"
_LABEL = Style(13, INK)
_NOTE = Style(11.5, MUTED)
_HEAD = Style(12, INK, 600)
_MARK = Style(9, "#ffffff", 700)
_END = Style(11.5, "#8f1d2c", 600)

_COLOURS: dict[Kind, tuple[str, str]] = {
    "agent": ("#e8effb", "#2f62b5"),
    "command": ("#e4f3e8", "#24773f"),
    "git": ("#fbf0dc", "#96610f"),
    "person": ("#fbe6ee", "#a92a5f"),
    "wait": ("#ececf0", "#565d6b"),
    "run": ("#eee8fb", "#6245b4"),
    "end": ("#fdecec", "#c9404f"),
}
_GAP = 18
_INSET = 13
_MARK_WIDTH = 64
_NARROWEST = 150


@dataclass(frozen=True)
class Drawing:
    parts: list[str]
    height: float


def draw(body: Body, x: float, y: float, width: float) -> Drawing:
    """Nodes below one another, joined by arrows."""
    parts: list[str] = []
    at = y
    for number, node in enumerate(body):
        if number:
            parts.append(_arrow(x + width / 2, at, _GAP, head=not _is_end(node)))
            at += _GAP
        drawn = _node(node, x, at, width)
        parts += drawn.parts
        at += drawn.height
    return Drawing(parts, at - y)


def _is_end(node: Node) -> bool:
    return isinstance(node, Step) and node.kind == "end"


def _node(node: Node, x: float, y: float, width: float) -> Drawing:
    match node:
        case Step(kind="end"):
            return _end(node, x, y, width)
        case Step():
            return _step(node, x, y, width)
        case Block():
            return _box(_Frame("", node.note, "none", "#eef0f3", ""), node.body, x, y, width)
        case Loop():
            frame = _Frame(node.head, node.note, LINE, "#ffffff", "loop")
            return _box(frame, node.body, x, y, width)
        case Together():
            return _together(node, x, y, width)
        case Choice():
            return _choice(node, x, y, width)


def _step(step: Step, x: float, y: float, width: float) -> Drawing:
    fill, stroke = _COLOURS[step.kind]
    room = width - _MARK_WIDTH - 3 * 8
    label = lines_of(step.label[:1].upper() + step.label[1:], _LABEL, room)
    note = lines_of(step.note, _NOTE, room) if step.note else []
    text = len(label) * _LABEL.leading + len(note) * _NOTE.leading
    height = text + 14
    left = x + _MARK_WIDTH + 17
    parts = [
        _rect(x, y, width, height, fill, stroke, 1),
        _rect(x + 8, y + 7, _MARK_WIDTH, 17, stroke, "none", 1, radius=4),
        written([step.kind.upper()], x + 8 + _MARK_WIDTH / 2, y + 10.5, _MARK, middle=True),
        written(label, left, y + 7, _LABEL),
    ]
    if note:
        parts.append(written(note, left, y + 8 + len(label) * _LABEL.leading, _NOTE))
    return Drawing(parts, height)


def _end(step: Step, x: float, y: float, width: float) -> Drawing:
    """A way out, drawn on the line."""
    fill, stroke = _COLOURS["end"]
    text = lines_of(step.label, _END, width - 24)
    wide = min(width, max(width_of(line, _END) for line in text) + 24)
    height = len(text) * _END.leading + 8
    left = x + (width - wide) / 2
    parts = [
        _rect(left, y, wide, height, fill, stroke, 1, radius=height / 2),
        written(text, x + width / 2, y + 4.5, _END, middle=True),
    ]
    return Drawing(parts, height)


@dataclass(frozen=True)
class _Frame:
    """What a box around others says, and how it looks."""

    head: str
    note: str
    stroke: str
    fill: str
    icon: str
    dashed: bool = False
    copies: int = 0

    def heading(self, x: float, y: float, width: float) -> Drawing:
        parts, at = [], y + 9
        if self.head:
            lines = lines_of(self.head[:1].upper() + self.head[1:], _HEAD, width - 2 * _INSET - 20)
            parts += [_icon(self.icon, x + _INSET, at + 1.5), written(lines, x + 33, at, _HEAD)]
            at += len(lines) * _HEAD.leading
        if self.note:
            lines = lines_of(self.note, _NOTE, width - 2 * _INSET)
            parts.append(written(lines, x + _INSET, at + 1, _NOTE))
            at += len(lines) * _NOTE.leading + 2
        return Drawing(parts, at + 7 - y)

    def around(self, x: float, y: float, width: float, height: float) -> list[str]:
        shifted = range(self.copies, -1, -1)
        return [
            _rect(x + 5 * n, y + 5 * n, width, height, self.fill, self.stroke, 1.2, self.dashed)
            for n in shifted
        ]


def _box(frame: _Frame, body: Body, x: float, y: float, width: float) -> Drawing:
    own = width - 5 * frame.copies
    head = frame.heading(x, y, own)
    inner = draw(body, x + _INSET, y + head.height, own - 2 * _INSET)
    height = head.height + inner.height + _INSET
    parts = [*frame.around(x, y, own, height), *head.parts, *inner.parts]
    return Drawing(parts, height + 5 * frame.copies)


def _together(node: Together, x: float, y: float, width: float) -> Drawing:
    copies = 2 if node.each else 0
    frame = _Frame(node.head, node.note, LINE, "#ffffff", "together", copies=copies)
    if len(node.branches) == 1:
        return _box(frame, node.branches[0], x, y, width)
    columns = [("", branch) for branch in node.branches]
    return _columns(frame, columns, x, y, width)


def _choice(node: Choice, x: float, y: float, width: float) -> Drawing:
    ways = [(way.condition, way.body) for way in node.ways]
    if len(ways) == 1:
        frame = _Frame(f"if {ways[0][0]}", node.note, LINE, PAPER, "choice", dashed=True)
        return _box(frame, ways[0][1], x, y, width)
    named = [(said if said == OTHERWISE else f"if {said}", body) for said, body in ways]
    frame = _Frame("", node.note, LINE, PAPER, "", dashed=True)
    return _columns(frame, named, x, y, width)


def _columns(
    frame: _Frame, columns: list[tuple[str, Body]], x: float, y: float, width: float
) -> Drawing:
    """Bodies side by side, or below one another where that is too narrow."""
    head = frame.heading(x, y, width) if frame.head or frame.note else Drawing([], 0)
    room = (width - _INSET) / len(columns) - _INSET
    beside = room >= _NARROWEST
    if head.height and any(said for said, _ in columns):
        head = Drawing(head.parts, head.height - 9)
    parts, tallest, at = list(head.parts), 0.0, y + head.height
    for number, (said, body) in enumerate(columns):
        left = x + _INSET + number * (room + _INSET) if beside else x + _INSET
        wide = room if beside else width - 2 * _INSET
        title = _Frame(said, "", "", "", "choice").heading(left - _INSET, at, wide + 2 * _INSET)
        start = title.height if said else 0
        drawn = draw(body, left, at + start, wide)
        parts += (title.parts if said else []) + drawn.parts
        if beside:
            tallest = max(tallest, start + drawn.height)
        else:
            at += start + drawn.height + 4
            tallest = at - y - head.height
    height = head.height + tallest + _INSET
    if beside:
        for number in range(1, len(columns)):
            middle = x + _INSET / 2 + number * (room + _INSET)
            parts.append(_divider(middle, y + head.height + 8, y + height - 8))
    return Drawing([*frame.around(x, y, width, height), *parts], height)


def _rect(
    x: float, y: float, width: float, height: float, fill: str, stroke: str, thick: float,
    dashed: bool = False, radius: float = 8,
) -> str:  # fmt: skip
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="{thick:g}"{dashes}/>'
    )


def _arrow(x: float, y: float, length: float, *, head: bool) -> str:
    tip = y + length - 1
    line = f'<path d="M{x:g} {y:g}V{tip - (4 if head else -1):g}" stroke="{LINE}" fill="none"/>'
    if not head:
        return line
    return line + f'<path d="M{x - 4:g} {tip - 6:g}h8l-4 6z" fill="{LINE}"/>'


def _divider(x: float, top: float, bottom: float) -> str:
    return f'<path d="M{x:g} {top:g}V{bottom:g}" stroke="{LINE}" stroke-dasharray="5 4"/>'


_ICONS = {
    "loop": "M11.5 6.5a4.7 4.7 0 1 1-1.6-3.6M10.3.3v3h-3",
    "together": "M2 1.5v10M6.5 1.5v10M11 1.5v10",
    "choice": "M6.5.8l5.7 5.7-5.7 5.7L.8 6.5z",
}


def _icon(name: str, x: float, y: float) -> str:
    return (
        f'<path transform="translate({x:g} {y:g})" d="{_ICONS[name]}" fill="none" '
        f'stroke="{INK}" stroke-width="1.4" stroke-linecap="round"/>'
    )
