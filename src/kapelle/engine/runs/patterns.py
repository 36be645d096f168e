"""Patterns of somebody's own: those of a person, and those of a repository.

A file is imported in a process of its own first, so that one that hangs or ends its process is told
of and does not matter; where the repository is not trusted, it is only read.
"""

import asyncio
import difflib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.views import PatternView
from kapelle.engine.parts import Parts
from kapelle.home import Home
from kapelle.patterns import registry
from kapelle.patterns.registry import Pattern
from kapelle.runner.command import Command, RunningCommand
from kapelle.settings.trust import Executable, list_pattern_files, refusal, source

# A file that takes longer to import than this is not waited for.
IMPORT_S = 10.0
_IMPORT = (
    "import sys; from kapelle.patterns.registry import print_patterns; print_patterns(sys.argv[1])"
)
_MOST_TOLD = 4_000_000
# A pattern as it is written: its name, and the first line of its docstring somewhere below.
_DEFINITION = re.compile(r"^@(?:\w+\.)?pattern\(\s*([\"'])([\w-]{1,64})\1", re.MULTILINE)
_SUMMARY = re.compile(r"async def [^@]*?:\s*\n\s*(\"\"\"|'''|\"|')(.{1,500}?)(?:\1|\n)")
_MOST_BETWEEN = 2000
# Files that were not imported in time, and when they are tried again: the machine may be busy.
_slow: dict[tuple[Path, str], float] = {}
_SLOW_S = 60.0
# One thread of their own: files that take their time keep nobody waiting but one another.
_IMPORTER = ThreadPoolExecutor(1, "patterns")

Listed = tuple[list[PatternView], list[InvalidInput]]
T = TypeVar("T")


async def find_pattern(parts: Parts, name: str, directory: Path) -> Pattern:
    """The pattern of this name; somebody's own is imported where it holds up nothing else."""
    if (pattern := registry.find_shipped(name)) is not None:
        return pattern
    return await _import(partial(get, name, *_context_of(parts, directory)))


async def list_patterns(parts: Parts, directory: Path | None) -> Listed:
    """Every pattern that may be named, as seen from a directory, and what is wrong there."""
    return await _import(partial(available, *_context_of(parts, directory)))


def _context_of(parts: Parts, directory: Path | None) -> tuple[Home, Executable | None, bool]:
    if directory is None:
        return parts.home, None, False
    executable, status = parts.standing(str(directory))
    return parts.home, executable, status == "trusted"


async def _import(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_IMPORTER, call)


def get(name: str, home: Home, executable: Executable | None, is_trusted: bool = False) -> Pattern:
    """The pattern of this name as seen from a directory; raises NotFound.

    Its file is imported, after a process of its own has survived that.
    """
    if (pattern := registry.find_shipped(name)) is not None:
        return pattern
    own, problems = _own(home, executable, is_trusted)
    if name in own:
        item, text = own[name]
        if not item.trusted:
            sentence = f"{item.origin} is not trusted, so the pattern {name!r} cannot be used."
            raise refusal(sentence, executable.place if executable else "")
        for one in registry.load_file(Path(item.origin), text):
            if one.name == name:
                return one
    if problems:
        raise problems[0]
    built_in = [item.name for item in registry.load_built_in()]
    names = sorted({*registry.list_installed(), *own, *built_in})
    near = difflib.get_close_matches(name, names, 1, 0.6)
    if near:
        others = f"did you mean {near[0]}?"
    else:
        others = f"known are: {', '.join(names)}."
    raise NotFound(
        f"There is no pattern {name!r}; {others}",
        hint="docs/patterns.md tells how to write one: .kapelle/patterns/NAME.py",
    )


def available(home: Home, executable: Executable | None, is_trusted: bool = False) -> Listed:
    """Every pattern that can be used, by name, and what is wrong with those that cannot.

    No file of somebody's own is imported here.
    """
    own, problems = _own(home, executable, is_trusted)
    views = {name: item for name, (item, _) in own.items()}
    others = [*registry.load_built_in()]
    for entry in registry.list_installed().values():
        try:
            others.insert(0, registry.load_installed(entry))
        except InvalidInput as error:
            problems.append(error)
    for item in others:
        if item.name in views:
            problems.append(_name_conflict(views[item.name], item))
        try:
            views[item.name] = registry.describe(item)
        except InvalidInput as error:
            problems.append(error)
    return [views[name] for name in sorted(views)], problems


def _own(
    home: Home, executable: Executable | None, is_trusted: bool
) -> tuple[dict[str, tuple[PatternView, str]], list[InvalidInput]]:
    """A person's patterns and a repository's by name, each with the text of its file, and what
    cannot be used."""
    own: dict[str, tuple[PatternView, str]] = {}
    problems = [*map(InvalidInput, executable.problems if executable else ())]
    theirs = executable.sources if executable else {}
    for path in [*list_pattern_files(home.config.parent / "patterns"), *theirs]:
        try:
            if path in theirs:
                text = theirs[path]
            else:
                text = source(path)
            may_run = is_trusted or path not in theirs
            file_problems: list[str] = []
            if may_run:
                items, file_problems = _import_in_process(path, text)
            else:
                items = _read_definitions(path, text)
            problems += map(InvalidInput, file_problems)
            for item in items:
                if item.name in own:
                    raise _name_conflict(item, own[item.name][0])
                own[item.name] = item, text
        except (OSError, InvalidInput) as error:
            problems.append(InvalidInput(str(error)))
    return own, problems


def _name_conflict(item: Pattern | PatternView, by: Pattern | PatternView) -> InvalidInput:
    return InvalidInput(
        f"{item.origin} defines the pattern {item.name!r}, which {by.origin} defines already.",
        hint="Give it another name.",
    )


def _read_definitions(path: Path, text: str) -> list[PatternView]:
    """The patterns that a text says it defines, found without executing or parsing any of it."""
    items = []
    for match in _DEFINITION.finditer(text):
        summary = _SUMMARY.search(text, match.end(), match.end() + _MOST_BETWEEN)
        about = {"name": match[2], "summary": summary[2] if summary else match[2]}
        items.append(PatternView(**about, origin=str(path), spec_schema={}, trusted=False))
    return items


@lru_cache(maxsize=100)
def _import_in_process(path: Path, text: str) -> tuple[list[PatternView], list[str]]:
    """The patterns that a file defines, as a process of its own says that has imported it."""
    problem = f"{path} was not imported within {IMPORT_S:.0f} s, so it is not used."
    # An exception is not kept by the cache.
    if time.monotonic() < _slow.get((path, text), 0):
        raise InvalidInput(problem)
    argv = [sys.executable, "-P", "-c", _IMPORT, str(path)]
    base_env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    env = {**base_env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = Command(argv, env, Path("/"), IMPORT_S, _MOST_TOLD, text.encode(), grace_s=0.05)
    process_end = RunningCommand(command).run()
    if process_end.timed_out:
        _slow[path, text] = time.monotonic() + _SLOW_S
        raise InvalidInput(problem)
    try:
        report: dict[str, Any] = json.loads(process_end.stdout)
    except ValueError:
        return [], [f"{path} ends the process that imports it (exit code {process_end.code})."]
    return [PatternView(**item) for item in report["patterns"]], report["problems"]
