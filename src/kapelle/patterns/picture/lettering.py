"""Text in a picture: how wide it is, where its lines break, and how it is written."""

import re
from dataclasses import dataclass
from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', 'Liberation Sans', sans-serif"

# Widths of DejaVu Sans, the widest of the usual fonts, so that no text leaves its box.
_NARROW, _WIDE = frozenset("iljI.,:;'|!«»"), frozenset("mwMW@…—%")
_NO_BREAK = "\u00a0"


@dataclass(frozen=True)
class Style:
    size: float
    fill: str
    weight: int = 400
    italic: bool = False

    @property
    def leading(self) -> float:
        return round(self.size * 1.38, 1)


def width_of(text: str, style: Style) -> float:
    """A careful estimate, in pixels."""
    units = sum(
        0.33 if letter in _NARROW else 0.95 if letter in _WIDE else 0.42 if letter in " ()/frt-"
        else 0.72 if letter.isupper() else 0.63
        for letter in text.replace(_NO_BREAK, " ")
    )  # fmt: skip
    return units * style.size * (1.1 if style.weight > 500 else 1.0)


def lines_of(text: str, style: Style, width: float) -> list[str]:
    """A text in lines that fit; a placeholder is not broken unless it must be."""
    kept = re.sub(r"«[^»]*»", lambda found: _whole(found[0], style, width), text)
    lines = [""]
    for word in kept.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if width_of(longer, style) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_cut(line, style, width) for line in lines]


def _whole(placeholder: str, style: Style, width: float) -> str:
    if width_of(placeholder, style) <= width:
        return placeholder.replace(" ", _NO_BREAK)
    return placeholder.replace(" ", "» «")


def _cut(line: str, style: Style, width: float) -> str:
    while len(line) > 1 and width_of(line, style) > width:
        line = line[:-2].rstrip() + "…"
    return line


def written(lines: list[str], x: float, y: float, style: Style, *, middle: bool = False) -> str:
    """Lines of text as one element, the first with its top at y."""
    spans = []
    for number, line in enumerate(lines):
        place = f'x="{x:g}" y="{y + style.size + number * style.leading:g}"'
        spans.append(f"<tspan {place}>{_marked(line)}</tspan>")
    anchor = ' text-anchor="middle"' if middle else ""
    slant = ' font-style="italic"' if style.italic else ""
    return (
        f'<text font-size="{style.size:g}" font-weight="{style.weight}" fill="{style.fill}"'
        f"{anchor}{slant}>{''.join(spans)}</text>"
    )


def _marked(line: str) -> str:
    """Placeholders in italics instead of brackets."""
    text = escape(line.replace(_NO_BREAK, " "))
    text = re.sub(r"«([^»]*)»?", r'<tspan font-style="italic">\1</tspan>', text)
    return text.replace("»", "")
