"""Read and compare the versions of agents' programs."""

import re
from typing import Literal

Comparison = Literal["same", "newer", "older"]

_VERSION = re.compile(r"\d+(?:\.\d+)+")


def find_version(text: str) -> str | None:
    """Return the first version in the output of a program, or None."""
    match = _VERSION.search(text)
    if match is None:
        return None
    return match[0]


def compare_versions(version: str, tested: str) -> Comparison:
    """Tell whether the installed version is newer or older than the tested one."""
    numbers = _numbers(version)
    tested_numbers = _numbers(tested)
    if numbers == tested_numbers:
        return "same"
    if numbers > tested_numbers:
        return "newer"
    return "older"


def describe_version(version: str | None, tested: str) -> str:
    """Return a phrase with both versions, which promises nothing about an untested one."""
    if version is None:
        return f"version unknown, tested with {tested}"
    comparison = compare_versions(version, tested)
    if comparison == "same":
        return f"version {version}, tested with {tested}"
    return f"version {version} ({comparison}), tested with {tested}"


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
