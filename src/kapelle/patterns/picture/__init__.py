"""Pictures of patterns, drawn from their own code: `python -m kapelle.patterns.picture NAME`."""

from html import escape
from typing import Any

from kapelle.patterns.picture.drawing import INK, LINE, MUTED, PAPER, draw
from kapelle.patterns.picture.flow import Body, outline
from kapelle.patterns.picture.lettering import FONT, Style, lines_of, written
from kapelle.patterns.picture.reading import read
from kapelle.patterns.picture.tidying import tidied
from kapelle.patterns.registry import Pattern

WIDTH = 720
_MARGIN = 22
_TITLE = Style(17, INK, 700)
_SUMMARY = Style(13, MUTED)
_LEGEND = Style(11, MUTED)
_EXPLAINED = "Italics stand for options, and for what the run finds."
_PACKAGE = "kapelle.patterns"

__all__ = ["flow_of", "picture"]


def flow_of(pattern: Pattern) -> Body:
    """What a pattern does, as far as its source tells."""
    own = getattr(pattern.function, "__module__", "")

    def follows(code: Any) -> bool:
        module = getattr(code, "__module__", None) or ""
        return module == own or module.startswith(f"{_PACKAGE}.")

    return tidied(read(pattern.function, follows))


def picture(pattern: Pattern) -> str:
    """The flow of a pattern as an SVG that needs nothing else."""
    flow = flow_of(pattern)
    inner = WIDTH - 2 * _MARGIN
    summary = lines_of(pattern.summary, _SUMMARY, inner)
    top = _MARGIN + _TITLE.leading + len(summary) * _SUMMARY.leading + 14
    drawn = draw(flow, _MARGIN, top, inner)
    height = top + drawn.height + _MARGIN + 22
    told = "\n".join(outline(flow))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
            f'width="{WIDTH}" height="{height:g}" role="img" '
            f'aria-labelledby="title description" font-family="{FONT}">',
            f'<title id="title">The flow of the pattern {escape(pattern.name)}</title>',
            f'<desc id="description">{escape(pattern.summary)}\n{escape(told)}</desc>',
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="12" '
            f'fill="{PAPER}" stroke="{LINE}" stroke-opacity="0.5"/>',
            written([pattern.name], _MARGIN, _MARGIN - 4, _TITLE),
            written(summary, _MARGIN, _MARGIN + _TITLE.leading - 2, _SUMMARY),
            *drawn.parts,
            written([_EXPLAINED], _MARGIN, top + drawn.height + 15, _LEGEND),
            "</svg>\n",
        ]
    )
