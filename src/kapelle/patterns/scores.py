"""Reading the number that a score command prints."""

import math
import re

from kapelle.patterns.results import Scored

# Not the 7 of build-7, which is a part of a name.
_NUMBER = re.compile(r"(?<![\w.-])[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def read_score(printed: str, output: str) -> Scored:
    """The number in the last line that is not empty; output is what is kept of all it printed."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    value = _number(lines[-1]) if lines else None
    if value is not None:
        return Scored(value=value, output=output)
    shown = f"{lines[-1][:200]!r}" if lines else "nothing"
    problem = f"the last line of the score command is {shown}, not a number"
    return Scored(value=None, output=output, problem=problem)


def _number(line: str) -> float | None:
    """The number that a line is, or the only one in it."""
    found = _NUMBER.findall(line.replace("\N{MINUS SIGN}", "-"))
    if len(found) != 1:
        return None
    try:
        value = float(found[0].replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
