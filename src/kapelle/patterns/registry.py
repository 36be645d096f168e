"""Finds patterns by name: built-in ones, installed ones, a person's and a repository's own."""

import difflib
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from kapelle.domain.errors import InvalidInput, KapelleError, NotFound
from kapelle.home import Home, in_repository, require_ours
from kapelle.patterns.spec import PatternSpec

GROUP = "kapelle.patterns"
_MARK = "__kapelle_pattern__"

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


@dataclass(frozen=True)
class Pattern:
    """A durable function with the specification that it takes."""

    name: str
    spec: type[PatternSpec]
    function: Callable[..., Coroutine[Any, Any, Any]]
    origin: str

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or self.name).splitlines()[0]

    @property
    def spec_schema(self) -> dict[str, Any]:
        """The JSON schema of what it takes; raises InvalidInput if there is none."""
        try:
            schema = self.spec.model_json_schema()
            json.dumps(schema)
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise InvalidInput(
                f"{self.origin}: the spec of the pattern {self.name!r} has no JSON schema: {why}"
            ) from error
        return schema


def pattern(name: str, *, spec: type[PatternSpec]) -> Callable[[F], F]:
    """Make an async function of a Context and a spec a pattern of this name."""
    if not name or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 64:
        raise ValueError(f"{name!r} is no name for a pattern: use letters, digits and dashes")
    if not issubclass(spec, PatternSpec):
        raise TypeError(f"the spec of the pattern {name} must be a subclass of PatternSpec")

    def mark(function: F) -> F:
        is_async: bool = inspect.iscoroutinefunction(function)
        if not is_async:
            raise TypeError(f"the pattern {name} must be an async function")
        setattr(function, _MARK, (name, spec))
        return function

    return mark


def built_in() -> list[Pattern]:
    """Every pattern of this package: each stands in a file of its name, and needs nothing else."""
    return [item for name in _modules() for item in _in_package(name)]


def get(name: str, home: Home, directory: Path) -> Pattern:
    """The pattern of this name as seen from a directory; raises NotFound."""
    module, installed = name.replace("-", "_"), _installed()
    # What is built in does not depend on files that may be half written.
    for item in _in_package(module) if module in _modules() else ():
        if item.name == name:
            return item
    if name in installed:
        return _loaded(installed[name])
    found, broken = _own(home, directory)
    if name in found:
        return found[name]
    if broken:
        raise broken[0]
    names = sorted({*installed, *found, *(item.name for item in built_in())})
    near = difflib.get_close_matches(name, names, 1, 0.6)
    known = f"known are: {', '.join(names)}."
    raise NotFound(
        f"There is no pattern {name!r}; {f'did you mean {near[0]}?' if near else known}",
        hint="docs/patterns.md tells how to write one: .kapelle/patterns/NAME.py",
    )


def available(home: Home, directory: Path | None) -> tuple[list[Pattern], list[InvalidInput]]:
    """Every pattern that can be used, by name, and what is wrong with those that cannot."""
    found, problems = _own(home, directory)
    installed: list[Pattern] = []
    for entry in _installed().values():
        try:
            installed.append(_loaded(entry))
        except InvalidInput as error:
            problems.append(error)
    for item in (*installed, *built_in()):
        if item.name in found:
            problems.append(_taken(found[item.name], item))
        found[item.name] = item
    return [found[name] for name in sorted(found)], problems


def _own(home: Home, directory: Path | None) -> tuple[dict[str, Pattern], list[InvalidInput]]:
    """A person's patterns and a repository's by name, and the files that cannot be used."""
    found: dict[str, Pattern] = {}
    broken: list[InvalidInput] = []
    place = in_repository(home, directory, "patterns") if directory else None
    paths = [*_files(home.config.parent / "patterns"), *(_files(place) if place else ())]
    for path in paths:
        try:
            if directory and place and path.parent == place:
                for part in (place.parent, place, path):
                    require_ours(part, directory)
            for item in _in_file(path):
                if item.name in found:
                    raise _taken(item, found[item.name])
                found[item.name] = item
        except InvalidInput as error:
            broken.append(error)
    return found, broken


def _taken(item: Pattern, by: Pattern) -> InvalidInput:
    return InvalidInput(
        f"{item.origin} defines the pattern {item.name!r}, which {by.origin} defines already.",
        hint="Give it another name.",
    )


@cache
def _modules() -> list[str]:
    """The modules beside this one; most are patterns, and those that are not define none."""
    return [module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)])]


def _in_package(module: str) -> list[Pattern]:
    return _defined(importlib.import_module(f"{__package__}.{module}"), "Kapelle")


@cache
def _installed() -> dict[str, EntryPoint]:
    """The patterns of other packages; an older installation of this one may still name its own."""
    entries = entry_points(group=GROUP)
    return {entry.name: entry for entry in entries if not entry.module.startswith(f"{GROUP}.")}


def _loaded(entry: EntryPoint) -> Pattern:
    try:
        function = entry.load()
    except Exception as error:
        raise InvalidInput(
            f"The pattern {entry.name!r} ({entry.value}) cannot be loaded: {error}."
        ) from error
    return _pattern(function, entry.value)


def _files(place: Path) -> list[Path]:
    """The files with patterns; what begins with a dot is an editor's."""
    found = (path for path in place.glob("[!.]*.py") if os.path.isfile(path))
    return sorted(found)


def _in_file(path: Path) -> list[Pattern]:
    return _defined(_module(path, path.stat().st_mtime_ns, path.stat().st_size), str(path))


def _defined(module: ModuleType, origin: str) -> list[Pattern]:
    """The patterns that a module defines, not those that it imports."""
    own = [
        item
        for item in vars(module).values()
        if hasattr(item, _MARK) and getattr(item, "__module__", None) == module.__name__
    ]
    return [_pattern(item, origin) for item in dict.fromkeys(own)]


@lru_cache(maxsize=100)
def _module(path: Path, _version: int, _size: int) -> ModuleType:
    """The module in a file, loaded again when the file has changed."""
    name = f"kapelle_patterns_{sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KapelleError:
        raise
    except BaseException as error:
        raise InvalidInput(f"{_place(path, error)}: {type(error).__name__}: {error}") from error
    return module


def _place(path: Path, error: BaseException) -> str:
    """The line of the file in which it went wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f"{path}:{line}" if line else str(path)


def _pattern(function: Any, origin: str) -> Pattern:
    if not hasattr(function, _MARK):
        raise InvalidInput(f"{origin} is not marked with @pattern.")
    name, spec = getattr(function, _MARK)
    return Pattern(name, spec, function, origin)
