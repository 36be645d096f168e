"""What a measurement says: rows of a table, and whether each reaches its target."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """What a measurement is given: a directory of its own, and how much time it may take."""

    directory: Path
    quick: bool

    def samples(self, full: int) -> int:
        return max(5, full // 4) if self.quick else full


@dataclass(frozen=True)
class Row:
    """One figure; its target is a most, or a least where `at_least` says so."""

    figure: str
    measured: float
    unit: str
    target: float | None = None
    at_least: bool = False
    beside: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    def cells(self) -> list[str]:
        sign = "≥" if self.at_least else "≤"
        target = "" if self.target is None else f"{sign} {shown(self.target)} {self.unit}".strip()
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return [
            self.figure,
            f"{shown(self.measured)} {self.unit}".strip(),
            self.beside,
            target,
            verdict,
        ]

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


Measure = Callable[[Run], list[Row]]


def shown(number: float) -> str:
    """A number with as many digits as mean something."""
    if number == int(number) or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def spread(values_s: Sequence[float]) -> dict[str, float]:
    """Seconds as the milliseconds that are shown and stored."""
    return {
        "p50_ms": percentile(values_s, 50) * 1000,
        "p95_ms": percentile(values_s, 95) * 1000,
        "max_ms": max(values_s) * 1000,
        "samples": len(values_s),
    }


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as a Markdown table whose columns line up."""
    head = ["figure", "measured", "beside it, same run", "target", ""]
    lines = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rule = ["-" * width for width in widths]
    return [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in [head, rule, *lines[1:]]
    ]
