"""Finds patterns by name: built-in ones, installed ones, a person's and a repository's own.

Which files of somebody's own may be imported, `engine/runs/patterns.py` decides.
"""

import importlib
import inspect
import json
import os
import pkgutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.views import PatternView
from kapelle.patterns.spec import PatternSpec

GROUP = "kapelle.patterns"
_MARK = "__kapelle_pattern__"
# What a file's threads do at once, they do before this has passed.
_THREADS_S = 1.0

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


@dataclass(frozen=True)
class Pattern:
    """A durable function with the specification that it takes."""

    name: str
    spec: type[PatternSpec]
    function: Callable[..., Coroutine[Any, Any, Any]]
    origin: str
    prompts: Mapping[str, str]  # what its roles are told, as far as a repository may say otherwise

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


def pattern(
    name: str, *, spec: type[PatternSpec], prompts: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """Make an async function of a Context and a spec a pattern of this name; prompts are those
    that it gives to ctx.prompt, by their roles."""
    if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 64:
        raise ValueError(f"{name!r} is no name for a pattern: use letters, digits and dashes")
    if not issubclass(spec, PatternSpec):
        raise TypeError(f"the spec of the pattern {name} must be a subclass of PatternSpec")

    def mark(function: F) -> F:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"the pattern {name} must be an async function")
        setattr(function, _MARK, (name, spec, prompts or {}))
        return function

    return mark


@cache
def built_in() -> list[Pattern]:
    """Every pattern of this package: each stands in a file of its name, and needs nothing else."""
    names = [module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)])]
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    return [item for module in modules for item in _defined(module, "Kapelle")]


def shipped(name: str) -> Pattern | None:
    """The built-in or installed pattern of this name, which depends on no files of a person's."""
    found = next((item for item in built_in() if item.name == name), None)
    if found:
        entry = None
    else:
        entry = installed().get(name)
    return loaded(entry) if entry else found


@cache
def installed() -> dict[str, EntryPoint]:
    """The patterns of other packages."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def loaded(entry: EntryPoint) -> Pattern:
    try:
        function = entry.load()
    except Exception as error:
        raise InvalidInput(
            f"The pattern {entry.name!r} ({entry.value}) cannot be loaded: {error}."
        ) from error
    return _pattern(function, entry.value)


def tell(path: str) -> None:
    """Import the file whose text is on stdin, print what it defines, and end this process, whatever
    else goes on in it."""
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    items = []
    problems = []
    try:
        for item in in_file(Path(path), sys.stdin.buffer.read().decode()):
            try:
                items.append(describe(item).model_dump())
            except InvalidInput as error:
                problems.append(error.message)
    except InvalidInput as error:
        problems.append(error.message)
    if threading.active_count() > 1:
        time.sleep(_THREADS_S)
    with open(answer, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump({"patterns": items, "problems": problems}, file)
    os._exit(0)


def describe(item: Pattern) -> PatternView:
    """What a list shows of a pattern; raises InvalidInput if its spec has no schema."""
    about = {"name": item.name, "summary": item.summary, "origin": item.origin}
    return PatternView(**about, spec_schema=item.spec_schema)


def in_file(path: Path, text: str) -> list[Pattern]:
    """The patterns in a file with this text."""
    return _defined(_module(path, text), str(path))


def _defined(module: ModuleType, origin: str) -> list[Pattern]:
    """The patterns that a module defines, not those that it imports."""
    own = [
        item
        for item in vars(module).values()
        if hasattr(item, _MARK) and getattr(item, "__module__", None) == module.__name__
    ]
    return [_pattern(item, origin) for item in dict.fromkeys(own)]


@lru_cache(maxsize=100)
def _module(path: Path, text: str) -> ModuleType:
    """The module that a text makes, and nothing else: an importer would read the file once more, or
    take compiled code that lies beside it."""
    name = f"kapelle_patterns_{sha256(str(path).encode()).hexdigest()[:12]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(text, path, "exec"), vars(module))
    except KapelleError:
        raise
    except BaseException as error:
        raise InvalidInput(f"{_place(path, error)}: {type(error).__name__}: {error}") from error
    return module


def _place(path: Path, error: BaseException) -> str:
    """The line of the file in which it went wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError):
        line = error.lineno
    elif lines:
        line = lines[-1]
    else:
        line = None
    return f"{path}:{line}" if line else str(path)


def _pattern(function: Any, origin: str) -> Pattern:
    if not hasattr(function, _MARK):
        raise InvalidInput(f"{origin} is not marked with @pattern.")
    name, spec, prompts = getattr(function, _MARK)
    return Pattern(name, spec, function, origin, prompts)
