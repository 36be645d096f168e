"""Which files of a repository judge work or decide what a check does, by their names.

A judge is a test, or a file that leads a check: its configuration, a script that it runs, or a
module that a test runner imports by itself or in place of one of its own.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TEST = re.compile(
    r"(^|/)(tests?|specs?|__tests__|testing)/|(^|/)(test_[^/]*|conftest\.py)$|[._](test|spec)s?\."
    r"|_(test|spec)\.[a-z]+$"
)
_BESIDE = re.compile(
    r"\.(md|rst|txt|toml|cfg|ini|lock|ya?ml|json|xml|mod|sum|sh)$|(^|/)(\.[^/]*|Makefile|LICENSE)$"
)
# By the name of the file, at any depth.
_LEADING = re.compile(
    r"\.(toml|cfg|ini|mk|make|pth|gradle|gradle\.kts)$|([Mm]ake|[Jj]ust|Rake|Gem|Docker)file$"
    r"|^(package\.json|go\.work|pom\.xml|phpunit\.xml|CMakeLists\.txt|meson\.build|build\.rs)$"
    r"|^(conftest|noxfile|setup|sitecustomize|usercustomize)\.py$"
    r"|\.(config|setup)\.[cm]?[jt]s$|^\.[^/]*rc(\.[a-z]+)?$|^\.rspec$"
)
# A shell script may as well be what the work is about: those of tools are told by place and name.
_SHELL = re.compile(r"\.(sh|bash)$")
_TOOL = re.compile(
    r"(^|/)(scripts?|tools?|hack|bin|\.?ci)/|(^|[/._-])(tests?|checks?|ci|lint|verify|build|run)[^/]*$"
)
_RUNNERS = frozenset(
    "pytest _pytest pluggy iniconfig xdist coverage hypothesis nose nose2 tox".split()  # noqa: SIM905
)
_SHADOWED = _RUNNERS | sys.stdlib_module_names
# Where Python looks for modules first: the directory of a check, and the usual roots of packages.
_ROOTS = ("", "src", "lib", "python")
_EXECUTED = re.compile(
    r"(?:^|[;&|(]|\b(?:ba|da|z)?sh|\bpython[\d.]*|\b(?:node|ruby|perl|pytest|bash))\s*"
    r"(?:-[^\s/]+\s+)*([\w.@+-]*[./][^\s;&|()<>\"']*)"
)
_WORD = re.compile(r"[^\s;&|()<>\"'=:]+")
_INCLUDE = re.compile(r"^-?s?include\s+(.+)$", re.MULTILINE)
_MAKEFILE = re.compile(r"(^|/)([Mm]akefile|GNUmakefile|[^/]*\.mk|[^/]*\.make)$")


def is_test(path: str) -> bool:
    return bool(_TEST.search(path))


def is_makefile(path: str) -> bool:
    return bool(_MAKEFILE.search(path))


def executed(command: str) -> set[str]:
    """Return the paths that a command runs as programs or scripts, as they are written there."""
    return {os.path.normpath(path) for path in _EXECUTED.findall(command)}


def included(makefile: str) -> set[str]:
    """Return the paths of the files that a makefile includes and of the tools that it runs."""
    paths = {path for line in _INCLUDE.findall(makefile) for path in line.split()}
    for line in makefile.splitlines():
        scripts = executed(line.strip("\t @-"))
        paths.update(path for path in scripts if _SHELL.search(path) or _TOOL.search(path))
    return paths


@dataclass(frozen=True)
class Judges:
    """The judges of one check: its command, where it runs, and what its makefiles include."""

    command: str
    directory: str = ""
    includes: frozenset[str] = frozenset()

    def leads(self, path: str) -> bool:
        """Tell whether a file decides what the check does, without being a test."""
        name = os.path.basename(path)
        if _LEADING.search(name) or path in self.includes:
            return True
        if _SHELL.search(name) and _TOOL.search(path):
            return True
        return self._is_executed(path) or self._shadows(path)

    def judges(self, path: str) -> bool:
        return is_test(path) or self.leads(path)

    def is_beside(self, path: str) -> bool:
        """Tell whether a file is no work by itself: settings, documents, and what leads a check."""
        return bool(_BESIDE.search(path)) or self.leads(path)

    def among(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return those of the files by whose content a proof of the check is remembered."""
        chosen = [path for path in files if self.judges(path) or _SHELL.search(path)]
        return {path: files[path] for path in chosen}

    def decisive(self, files: list[str]) -> list[str]:
        """Return those of the changed files that the check must look at."""
        others = [path for path in files if not self._is_executed(path)] or files
        tests = [path for path in others if is_test(path)]
        works = [path for path in others if not is_test(path) and not self.is_beside(path)]
        return works or tests or others

    def asks_for(self, path: str, before: Iterable[str]) -> bool:
        """Tell whether the command names a file, or a directory of it, that is new."""
        words = [os.path.normpath(word) for word in _WORD.findall(self.command)]
        named = [os.path.normpath(os.path.join(self.directory, word)) for word in words]
        for place in (*named, *words):
            is_named = path == place or path.startswith(f"{place}/")
            was_there = any(one == place or one.startswith(f"{place}/") for one in before)
            if is_named and place != "." and not was_there:
                return True
        return False

    def _is_executed(self, path: str) -> bool:
        scripts = executed(self.command)
        below = os.path.relpath(path, self.directory) if self.directory else path
        return path in scripts or below in scripts

    def _shadows(self, path: str) -> bool:
        """Tell whether Python would import this file in place of its own or a runner's module."""
        for root in {*_ROOTS, self.directory}:
            below = path.removeprefix(f"{root}/") if root else path
            if root and below == path:
                continue
            module = below.partition("/")[0]
            if below.endswith(".py") and module.removesuffix(".py") in _SHADOWED:
                return True
        return False
