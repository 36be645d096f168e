"""Find patterns by name: built-in ones, installed ones, and those in a file.

`engine/runs/patterns.py` decides which files of a person or a repository may be imported.
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
# Grace period for threads that an imported file has started: what they print or break at once
# happens within it.
_THREADS_S = 1.0

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


@dataclass(frozen=True)
class Pattern:
    """A durable function with the specification that it takes.

    prompts holds the built-in prompt of each role that a repository may replace.
    """

    name: str
    spec: type[PatternSpec]
    function: Callable[..., Coroutine[Any, Any, Any]]
    origin: str
    prompts: Mapping[str, str]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or self.name).splitlines()[0]

    @property
    def spec_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the specification; raise InvalidInput if there is none."""
        try:
            schema = self.spec.model_json_schema()
            json.dumps(schema)
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise InvalidInput(
                f"{self.origin}: the spec of the pattern {self.name!r} has no JSON schema: "
                f"{lines[0]}"
            ) from error
        return schema


def pattern(
    name: str, *, spec: type[PatternSpec], prompts: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """Register an async function of a Context and a spec as a pattern of this name.

    prompts maps roles to the built-in texts that the function passes to ctx.prompt.
    """
    if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 64:
        raise ValueError(f"{name!r} is not a pattern name: use letters, digits and dashes")
    if not issubclass(spec, PatternSpec):
        raise TypeError(f"the spec of the pattern {name} must be a subclass of PatternSpec")

    def mark(function: F) -> F:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"the pattern {name} must be an async function")
        setattr(function, _MARK, (name, spec, prompts or {}))
        return function

    return mark


@cache
def load_built_in() -> tuple[Pattern, ...]:
    """Return every pattern of this package.

    Each pattern is a module or a package of its own name; nothing else names it.
    """
    patterns: list[Pattern] = []
    for module in pkgutil.iter_modules([os.path.dirname(__file__)]):
        content = importlib.import_module(f"{__package__}.{module.name}")
        patterns += _patterns_of(content, "Kapelle")
    return tuple(patterns)


def find_shipped(name: str) -> Pattern | None:
    """Return the built-in or installed pattern of this name, without reading a person's files."""
    for candidate in load_built_in():
        if candidate.name == name:
            return candidate
    entry = list_installed().get(name)
    return load_installed(entry) if entry else None


@cache
def list_installed() -> dict[str, EntryPoint]:
    """Return the entry points of patterns in other packages, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def load_installed(entry: EntryPoint) -> Pattern:
    """Import the pattern of an entry point; raise InvalidInput if that fails."""
    try:
        function = entry.load()
    except Exception as error:
        raise InvalidInput(
            f"The pattern {entry.name!r} ({entry.value}) cannot be loaded: {error}."
        ) from error
    return _as_pattern(function, entry.value)


def print_patterns(path: str) -> None:
    """Import the file whose text is on stdin, print its patterns as JSON, and end the process.

    The file's own output is discarded, and its threads do not keep the process alive.
    """
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    items = []
    problems = []
    try:
        for item in load_file(Path(path), sys.stdin.buffer.read().decode()):
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
    """Return the view of a pattern for lists; raise InvalidInput if its spec has no schema."""
    return PatternView(
        name=item.name, summary=item.summary, origin=item.origin, spec_schema=item.spec_schema
    )


def load_file(path: Path, text: str) -> list[Pattern]:
    """Return the patterns that a file with this text defines."""
    return _patterns_of(_execute_module(path, text), str(path))


def _patterns_of(module: ModuleType, origin: str) -> list[Pattern]:
    """Return the patterns that a module defines, not those that it imports."""
    functions = []
    for member in vars(module).values():
        is_own = getattr(member, "__module__", None) == module.__name__
        # One function may have several names.
        if is_own and hasattr(member, _MARK) and member not in functions:
            functions.append(member)
    return [_as_pattern(function, origin) for function in functions]


@lru_cache(maxsize=100)
def _execute_module(path: Path, text: str) -> ModuleType:
    """Return a module made from exactly this text.

    An importer would read the file a second time, or load compiled code beside it.
    """
    name = f"kapelle_patterns_{sha256(str(path).encode()).hexdigest()[:12]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(text, path, "exec"), vars(module))
    except KapelleError:
        raise
    except BaseException as error:
        raise InvalidInput(
            f"{_format_place(path, error)}: {type(error).__name__}: {error}"
        ) from error
    return module


def _format_place(path: Path, error: BaseException) -> str:
    """Return the file with the number of the line that raised an error, if that is known."""
    line = None
    if isinstance(error, SyntaxError):
        line = error.lineno
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(path):
                line = frame.lineno
    return f"{path}:{line}" if line else str(path)


def _as_pattern(function: Any, origin: str) -> Pattern:
    if not hasattr(function, _MARK):
        raise InvalidInput(f"{origin} is not marked with @pattern.")
    name, spec, prompts = getattr(function, _MARK)
    return Pattern(name, spec, function, origin, prompts)
