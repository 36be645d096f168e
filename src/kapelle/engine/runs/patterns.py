"""Patterns of somebody's own: those of a person, and those of a repository.

A file is imported in a process of its own first, so that one that hangs or ends its process is told
of and does not matter; where the repository is not trusted, it is only read.
"""

import ast
import asyncio
import difflib
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from kapelle.domain.errors import InvalidInput, NotFound, NotTrusted
from kapelle.domain.views import PatternView
from kapelle.engine.parts import Parts
from kapelle.home import Home, in_repository, read_small, require_ours
from kapelle.patterns import registry
from kapelle.patterns.registry import Pattern
from kapelle.runner.command import Command, Running
from kapelle.settings.files import Stamp, stamp
from kapelle.settings.trust import is_trusted, pattern_files

# A file that takes longer to import than this is not waited for.
IMPORT_S = 10.0
_IMPORT = "import sys; from kapelle.patterns.registry import tell; tell(sys.argv[1])"
_MOST_TOLD = 4_000_000
_LONGEST_SUMMARY = 500
# Files that were not imported in time, and when they are tried again: the machine may be busy.
_slow: dict[tuple[Path, Stamp | None], float] = {}
_SLOW_S = 60.0
# One thread of their own: files that take their time keep nobody waiting but one another.
_IMPORTER = ThreadPoolExecutor(1, "patterns")

Found = tuple[list[PatternView], list[str]]
T = TypeVar("T")


async def find_pattern(parts: Parts, name: str, directory: Path) -> Pattern:
    """The pattern of this name; somebody's own is imported where it holds up nothing else."""
    found = registry.shipped(name)
    if found is not None:
        return found
    return await _import(
        partial(get, name, parts.home, directory, trusted=_is_trusted(parts, directory))
    )


async def list_patterns(
    parts: Parts, directory: Path | None
) -> tuple[list[PatternView], list[InvalidInput]]:
    """Every pattern that may be named, as seen from a directory, and what is wrong there."""
    trusted = directory is not None and _is_trusted(parts, directory)
    return await _import(partial(available, parts.home, directory, trusted=trusted))


def _is_trusted(parts: Parts, directory: Path) -> bool:
    return is_trusted(parts.home, directory, parts.environ)


async def _import(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_IMPORTER, call)


def get(name: str, home: Home, directory: Path, *, trusted: bool = False) -> Pattern:
    """The pattern of this name as seen from a directory; raises NotFound.

    Its file is imported, after a process of its own has survived that.
    """
    item = registry.shipped(name)
    if item is not None:
        return item
    found, broken = _own(home, directory, trusted)
    if name in found and found[name].trusted:
        path = Path(found[name].origin)
        # Between the process and here it may have been written anew, without the pattern.
        for item in registry.in_file(path):
            if item.name == name:
                return item
    if name in found and not found[name].trusted:
        raise NotTrusted(
            f"{found[name].origin} is not trusted, so the pattern {name!r} cannot be used.",
            hint="Look with `kapelle trust --show`; if it may be executed, type: kapelle trust",
        )
    if broken:
        raise broken[0]
    names = sorted({*registry.installed(), *found, *(item.name for item in registry.built_in())})
    near = difflib.get_close_matches(name, names, 1, 0.6)
    known = f"known are: {', '.join(names)}."
    raise NotFound(
        f"There is no pattern {name!r}; {f'did you mean {near[0]}?' if near else known}",
        hint="docs/patterns.md tells how to write one: .kapelle/patterns/NAME.py",
    )


def available(
    home: Home, directory: Path | None, *, trusted: bool = False
) -> tuple[list[PatternView], list[InvalidInput]]:
    """Every pattern that can be used, by name, and what is wrong with those that cannot.

    No file of somebody's own is imported here.
    """
    found, problems = _own(home, directory, trusted)
    others = registry.built_in()
    for entry in registry.installed().values():
        try:
            others.insert(0, registry.loaded(entry))
        except InvalidInput as error:
            problems.append(error)
    for item in others:
        if item.name in found:
            problems.append(_taken(found[item.name], item))
        try:
            found[item.name] = registry.describe(item)
        except InvalidInput as error:
            problems.append(error)
    return [found[name] for name in sorted(found)], problems


def _own(
    home: Home, directory: Path | None, trusted: bool
) -> tuple[dict[str, PatternView], list[InvalidInput]]:
    """A person's patterns and a repository's by name, and the files that cannot be used."""
    found: dict[str, PatternView] = {}
    broken: list[InvalidInput] = []
    place = in_repository(home, directory, "patterns") if directory else None
    paths = [
        *pattern_files(home.config.parent / "patterns"),
        *(pattern_files(place) if place else ()),
    ]
    for path in paths:
        try:
            is_foreign = bool(directory and place and path.parent == place)
            if directory and place and is_foreign:
                for part in (place.parent, place, path):
                    require_ours(part, directory)
            items, problems = _written(path) if is_foreign and not trusted else _tried(path)
            broken += map(InvalidInput, problems)
            for item in items:
                if item.name in found:
                    raise _taken(item, found[item.name])
                found[item.name] = item
        except InvalidInput as error:
            broken.append(error)
    return found, broken


def _taken(item: Pattern | PatternView, by: Pattern | PatternView) -> InvalidInput:
    return InvalidInput(
        f"{item.origin} defines the pattern {item.name!r}, which {by.origin} defines already.",
        hint="Give it another name.",
    )


def _written(path: Path) -> Found:
    """The patterns that a file says it defines, found without executing any of it."""
    try:
        tree = ast.parse(read_small(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [], [f"{path} cannot be read: {type(error).__name__}."]
    items = []
    for node in (node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)):
        for call in node.decorator_list:
            match call:
                case ast.Call(
                    func=ast.Name(id="pattern") | ast.Attribute(attr="pattern"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    summary = (ast.get_docstring(node) or name).splitlines()[0][:_LONGEST_SUMMARY]
                    # A text in a source may hold what no encoding has.
                    summary = summary.encode("utf-8", "replace").decode()
                    if registry.is_name(name):
                        items.append(
                            PatternView(
                                name=name, summary=summary, origin=str(path),
                                spec_schema={}, trusted=False,
                            )
                        )  # fmt: skip
    return items, []


def _tried(path: Path) -> Found:
    """The patterns that a file defines, as a process of its own says that has imported it."""
    version = stamp(path)
    if (path, version) in _slow and time.monotonic() < _slow[path, version]:
        raise _too_slow(path)
    told = _told(path, version)
    return [PatternView(**item) for item in told["patterns"]], told["problems"]


@lru_cache(maxsize=100)
def _told(path: Path, version: Stamp | None) -> dict[str, Any]:
    argv = [sys.executable, "-P", "-c", _IMPORT, str(path)]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    env = {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = Running(Command(argv, env, Path("/"), IMPORT_S, _MOST_TOLD, grace_s=0.05)).run()
    if ended.timed_out:
        _slow[path, version] = time.monotonic() + _SLOW_S
        raise _too_slow(path)
    try:
        told: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        problem = f"{path} ends the process that imports it (exit code {ended.code})."
        return {"patterns": [], "problems": [problem]}
    return told


def _too_slow(path: Path) -> InvalidInput:
    return InvalidInput(f"{path} was not imported within {IMPORT_S:.0f} s, so it is not used.")
