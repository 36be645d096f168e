"""Makes the package `synchronous` from `asynchronous`: `python -m kapelle.client.generate`.

Token by token: async and await go, and names lose what marks them as asynchronous. `make docs`
commits the result, and a test compares it.
"""

import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).parent / "asynchronous"
TARGET = Path(__file__).parent / "synchronous"
_HEADER = "# Made by `make docs` from asynchronous/{name}: change that file.\n"
_INTRODUCTION = (
    '"""The client for programs without asyncio, made from the package `asynchronous`."""\n'
)

# Names of the standard library and of httpx that come in pairs.
_PAIRS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aclosing": "closing",
    "aread": "read",
    "asynchronous": "synchronous",
}


def modules() -> Iterator[tuple[Path, str]]:
    """Each file to write, and its text."""
    yield TARGET / "__init__.py", _INTRODUCTION
    for path in sorted(SOURCE.glob("*.py")):
        if path.name != "__init__.py":
            source = path.read_text(encoding="utf-8")
            yield TARGET / path.name, _tidied(_HEADER.format(name=path.name) + synchronous(source))


def synchronous(source: str) -> str:
    """The same module without asyncio."""
    lines = source.splitlines(keepends=True)
    found = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token, following in reversed([*pairwise(found)]):
        if token.type != tokenize.NAME:
            continue
        row, start = token.start
        end = following.start[1] if token.string in {"async", "await"} else token.end[1]
        line = lines[row - 1]
        lines[row - 1] = line[:start] + _word(token.string) + line[end:]
    return "".join(lines)


def _word(name: str) -> str:
    if name in {"async", "await"}:
        return ""
    if name in _PAIRS:
        return _PAIRS[name]
    return name.removeprefix("Async").removeprefix("async_")


def _tidied(source: str) -> str:
    """Shorter names need other line breaks and another order of imports."""
    lint = ["check", "--quiet", "--select=I,UP028", "--fix", "--unsafe-fixes"]
    for command in (lint, ["format", "--quiet"]):
        source = subprocess.run(
            [sys.executable, "-m", "ruff", *command, f"--stdin-filename={TARGET / 'x.py'}", "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return source


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    for path, text in modules():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
