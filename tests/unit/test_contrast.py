"""The colours of the page can be read: computed from its tokens, in both themes."""

import re
from pathlib import Path

import pytest

TOKENS = Path(__file__).parents[2] / "web" / "src" / "styles" / "tokens.css"
_PAIR = re.compile(r"--([\w-]+):\s*light-dark\((#\w{6}), (#\w{6})\)")
COLOURS = {name: (light, dark) for name, light, dark in _PAIR.findall(TOKENS.read_text())}
STATES = ("you", "go", "ok", "bad")
GROUNDS = ("bg", "surface", "raised", "sunken", "hover", "select")
TINTS = tuple(f"{state}-tint" for state in STATES)
TEXT = [
    *((ink, ground) for ink in ("ink", "ink-2") for ground in GROUNDS + TINTS),
    *(("ink-3", ground) for ground in GROUNDS if ground != "select"),
    *((state, ground) for state in STATES for ground in ("bg", "surface", f"{state}-tint")),
    ("on-ink", "ink"),
    ("on-ink", "ink-2"),
]
SHAPES = [
    *((f"{state}-solid", ground) for state in STATES for ground in ("bg", "surface")),
    *((f"{state}-solid", f"{state}-tint") for state in STATES),
    *(("on-solid", f"{state}-solid") for state in STATES),
    *(("control", ground) for ground in ("bg", "surface", "raised")),
]


def luminance(colour: str) -> float:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("pairs", "least"), [(TEXT, 4.5), (SHAPES, 3.0)], ids=["text", "shapes"])
def test_every_pair_that_may_meet_is_far_enough_apart(
    pairs: list[tuple[str, str]], least: float
) -> None:
    found = {
        (theme, front, back): contrast(COLOURS[front][place], COLOURS[back][place])
        for place, theme in enumerate(("light", "dark"))
        for front, back in pairs
    }
    assert {pair: round(value, 2) for pair, value in found.items() if value < least} == {}
