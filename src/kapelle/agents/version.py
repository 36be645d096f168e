"""Versions of agents' programs beside those that the adapters were tried with."""

import re
from typing import Literal

Comparison = Literal["same", "newer", "older"]

_VERSION = re.compile(r"\d+(?:\.\d+)+")


def version_in(text: str) -> str | None:
    """The first version in what a program prints."""
    found = _VERSION.search(text)
    return found[0] if found else None


def compared(version: str, tested: str) -> Comparison:
    """How the version that is here stands to the tested one."""
    here, there = _numbers(version), _numbers(tested)
    if here == there:
        return "same"
    return "newer" if here > there else "older"


def remark(version: str | None, tested: str) -> str:
    """A version in words that promise nothing about untested ones."""
    if version is None:
        return f"version unknown, tested with {tested}"
    comparison = compared(version, tested)
    note = "" if comparison == "same" else f" ({comparison})"
    return f"version {version}{note}, tested with {tested}"


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
